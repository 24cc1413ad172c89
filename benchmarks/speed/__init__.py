"""Works, peers and timing of the speed comparison; see `benchmarks/bench.py`."""
