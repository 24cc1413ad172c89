"""Estimators for scikit-learn: pipelines, grid searches and cross-validation of these networks."""

import hdnn.application  # noqa: F401
from hdnn.estimators.classifier import HDNNClassifier
from hdnn.estimators.regressor import HDNNRegressor

__all__ = ["HDNNClassifier", "HDNNRegressor"]
