"""Models: a stem for tables or images, Hamiltonian blocks, a head; save, load and export them."""

from hdnn.models.c_code import export_c
from hdnn.models.image_models import ImageStem, image_model
from hdnn.models.model import Blocks, Model
from hdnn.models.model_files import load, save
from hdnn.models.stems import Padding, Projection, Scaler, Stem, TableStem

__all__ = [
    "Blocks",
    "ImageStem",
    "Model",
    "Padding",
    "Projection",
    "Scaler",
    "Stem",
    "TableStem",
    "export_c",
    "image_model",
    "load",
    "save",
]
