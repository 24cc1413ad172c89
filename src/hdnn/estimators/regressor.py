"""`HDNNRegressor`."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin

from hdnn.errors import HdnnError
from hdnn.estimators.base import Array, HDNNEstimator
from hdnn.models import Scaler


class HDNNRegressor(RegressorMixin, HDNNEstimator):  # type: ignore[misc]
    """A Hamiltonian deep network that predicts one or more numbers for every row.

    Targets are standardized for the training (with sample weights) and the output layer is put
    back into their units afterwards; the loss is half the squared error. Coordinate descent solves
    the output layer exactly: a ridge regression on the last hidden state.

    Args:
        architecture: name of the network: "H1", "H2", "MS1", "MS2", "MS3", "HS", "ResNet", "FCNN".
        layers, width, T, step, augmentation: as in `hdnn.HDNNClassifier`.
        activation: as in `hdnn.HDNNClassifier`.
        time_invariant, init_scale, method, solver, max_iter: as in `hdnn.HDNNClassifier`.
        batch_size, learning_rate, schedule, alpha, alpha_c: as in `hdnn.HDNNClassifier`.
        early_stopping, validation_fraction, n_iter_no_change: as in `hdnn.HDNNClassifier`.
        standardize, warm_start, dtype, device, random_state, verbose: as in
            `hdnn.HDNNClassifier`.

    Attributes:
        n_features_in_, feature_names_in_: number of features, and their names where X had them.
        model_: the trained `hdnn.Model`, in the units of the targets.
        n_iter_, loss_curve_, history_: as for `hdnn.HDNNClassifier`, of standardized targets.

    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 200)[:, None]
    >>> y = np.sin(2 * X[:, 0])
    >>> HDNNRegressor(max_iter=200, random_state=0).fit(X, y).score(X, y) > 0.95
    True
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on ``(rows, features)`` and targets ``(rows[, outputs])``; weight 0 leaves out.

        Args:
            X: array-like or data frame; NaN is a missing value (with ``standardize``).
            y: numbers.
            sample_weight: a number of at least 0 for every row.

        Returns:
            The estimator itself.

        Raises:
            HdnnError: the data or a parameter cannot be used.
        """
        X, y, weight = self._check(X, y, sample_weight, multi_output=True, y_numeric=True)
        target = torch.tensor(y.reshape(len(y), -1), dtype=torch.float64)
        if not self._continues:
            self._target = Scaler.fit(target, torch.tensor(weight))
            self._flat = y.ndim == 1
        elif target.shape[1] != len(self._target.mean):
            raise HdnnError(
                f"y has {target.shape[1]} outputs, but the fitted network has "
                f"{len(self._target.mean)}: fit anew"
            )
        model, seed = self._start(X, weight, target.shape[1], self._target, task="regression")
        self._train(model, X, target.numpy(), weight, seed)
        return self._finish(model)

    def predict(self, X: Any) -> Array:
        """The targets: ``(rows,)``, or ``(rows, outputs)`` where y had columns.

        Args:
            X: ``(rows, features)``, with the columns of `fit`.

        Returns:
            In the units of the targets.
        """
        values = self._values(X)
        return np.ascontiguousarray(values[:, 0]) if self._flat else values
