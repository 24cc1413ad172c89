"""What one trains, saves and loads: a stem for tables or images, Hamiltonian blocks, a head."""

from hdnn.models.hub import CardFacts
from hdnn.models.image_config import ImageConfig, ImageOptions
from hdnn.models.model import ImageClassifier, Model
from hdnn.models.persistence import load, save
from hdnn.models.projection import Projection
from hdnn.models.stages import Stages
from hdnn.models.stems import Augmentation, ImageStem, Scaler, Stem, TableStem

__all__ = [
    "Augmentation",
    "CardFacts",
    "ImageClassifier",
    "ImageConfig",
    "ImageOptions",
    "ImageStem",
    "Model",
    "Projection",
    "Scaler",
    "Stages",
    "Stem",
    "TableStem",
    "load",
    "save",
]
