"""Estimators for scikit-learn: pipelines, grid searches and cross-validation of these networks."""

from hdnn.data.reading import optional

optional("sklearn")  # else an error that names the extra to install

from hdnn.estimators.classifier import HDNNClassifier  # noqa: E402
from hdnn.estimators.regressor import HDNNRegressor  # noqa: E402

__all__ = ["HDNNClassifier", "HDNNRegressor"]
