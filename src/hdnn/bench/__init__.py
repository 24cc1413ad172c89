"""Speed and memory against peers: ratios of medians in one interleaved run."""
