"""Pictures to classes: an opening convolution, stages of Hamiltonian blocks, an output layer."""

from hdnn.images.classifier import ImageClassifier
from hdnn.images.config import ImageConfig, ImageOptions

__all__ = ["ImageClassifier", "ImageConfig", "ImageOptions"]
