"""What one trains, saves and loads: a stem for tables or images, Hamiltonian blocks, a head."""

from hdnn.models.image_config import ImageConfig, ImageOptions
from hdnn.models.images import ImageClassifier
from hdnn.models.model import Augmentation, Model, Scaler
from hdnn.models.persistence import load, save

__all__ = [
    "Augmentation",
    "ImageClassifier",
    "ImageConfig",
    "ImageOptions",
    "Model",
    "Scaler",
    "load",
    "save",
]
