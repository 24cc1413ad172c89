"""Identification: from recordings of inputs and outputs to a network that cannot diverge."""

import hdnn.application  # noqa: F401
from hdnn.config import IdentificationConfig
from hdnn.identification.identifier import SystemIdentifier
from hdnn.identification.search import Identification, identify
from hdnn.identification.simulation import Fit

__all__ = ["Fit", "Identification", "IdentificationConfig", "SystemIdentifier", "identify"]
