"""Looking at gradients: sensitivities, their norms, and the theory as checks."""

from hdnn.analysis.advice import Advice, advise
from hdnn.analysis.certificate import Certificate, certify
from hdnn.analysis.check import Check
from hdnn.analysis.depth import DepthError, depth_error
from hdnn.analysis.gradient_norms import Norms, norms, product_bound
from hdnn.analysis.margins import Margins, Robustness, margins, robustness
from hdnn.analysis.monitor import Measurement, Monitor, monitor
from hdnn.analysis.perturbations import accuracy_under
from hdnn.analysis.profiles import Profile, profile
from hdnn.analysis.sensitivity import forward_sensitivities, layer_factors, sensitivities
from hdnn.analysis.spectra import Spectrum, spectrum, velocity_jacobians
from hdnn.analysis.watch import Watch, Watched, watch

__all__ = [
    "Advice",
    "Certificate",
    "Check",
    "DepthError",
    "Margins",
    "Measurement",
    "Monitor",
    "Norms",
    "Profile",
    "Robustness",
    "Spectrum",
    "Watch",
    "Watched",
    "accuracy_under",
    "advise",
    "certify",
    "depth_error",
    "forward_sensitivities",
    "layer_factors",
    "margins",
    "monitor",
    "norms",
    "product_bound",
    "profile",
    "robustness",
    "sensitivities",
    "spectrum",
    "velocity_jacobians",
    "watch",
]
