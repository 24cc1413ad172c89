"""Cases, peers and timing of the speed comparisons; see `bench.py`."""
