"""What one trains, saves and loads: a stem for tables or images, Hamiltonian blocks, a head."""

from hdnn.models.files import load, save
from hdnn.models.images import ImageClassifier, ImageConfig, ImageStem
from hdnn.models.model import Blocks, Model
from hdnn.models.stems import Augmentation, Projection, Scaler, Stem, TableStem

__all__ = [
    "Augmentation",
    "Blocks",
    "ImageClassifier",
    "ImageConfig",
    "ImageStem",
    "Model",
    "Projection",
    "Scaler",
    "Stem",
    "TableStem",
    "load",
    "save",
]
