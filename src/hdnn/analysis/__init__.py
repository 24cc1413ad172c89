"""How gradients behave: Jacobians and norms along depth, certificates, advice, any torch model."""

from hdnn.analysis.advice import Advice, advise
from hdnn.analysis.certificate import Certificate, ModelCertificate, certify
from hdnn.analysis.checks import Check
from hdnn.analysis.jacobians import layer_factors, sensitivities, velocity_jacobians
from hdnn.analysis.norms import Norms, norms
from hdnn.analysis.profile import profile
from hdnn.analysis.watch import monitor, watch

__all__ = [
    "Advice",
    "Certificate",
    "Check",
    "ModelCertificate",
    "Norms",
    "advise",
    "certify",
    "layer_factors",
    "monitor",
    "norms",
    "profile",
    "sensitivities",
    "velocity_jacobians",
    "watch",
]
