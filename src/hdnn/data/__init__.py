"""Data sets: the planar problems, tables from files and arrays, images, and recordings."""

import hdnn.application  # noqa: F401
from hdnn.data import images
from hdnn.data.columns import ColumnType
from hdnn.data.dataset import Dataset, holdout
from hdnn.data.encoder import ColumnEncoder
from hdnn.data.loading import BUNDLED, load
from hdnn.data.planar import PROBLEMS, SPLITS, Problem, double_moons, peaks, split, swiss_roll
from hdnn.data.recordings import Recordings, load_recordings, read_recordings
from hdnn.data.tables import Table, read_blocks, read_table

__all__ = [
    "BUNDLED",
    "PROBLEMS",
    "SPLITS",
    "ColumnEncoder",
    "ColumnType",
    "Dataset",
    "Problem",
    "Recordings",
    "Table",
    "double_moons",
    "holdout",
    "images",
    "load",
    "load_recordings",
    "peaks",
    "read_blocks",
    "read_recordings",
    "read_table",
    "split",
    "swiss_roll",
]
