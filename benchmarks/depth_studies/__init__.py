"""Studies of depth as a dial, see benchmarks/depth.py."""
