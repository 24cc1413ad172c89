"""Data sets: the planar problems of the paper."""

from hdnn.data.toy import double_moons, swiss_roll

__all__ = ["double_moons", "swiss_roll"]
