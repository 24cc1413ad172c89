"""Which numbers of the paper: Table 1, Table 2, Figure 1 and Figure 2.

Each is an `Experiment`: cells x seeds -> records -> tables and figures. A new one is a
module that says what its cells are, how one is trained, and which columns its table has.
Published values are TOML beside the code; the protocols are `hdnn.training.protocols`.
"""
