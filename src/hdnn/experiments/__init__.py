"""Which numbers of the paper: frozen specs, published values, runs, records, tables, figures."""
