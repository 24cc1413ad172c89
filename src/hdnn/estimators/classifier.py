"""`HDNNClassifier`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from hdnn.errors import HdnnError
from hdnn.estimators.base import Array, HDNNEstimator
from hdnn.estimators.settings import plain
from hdnn.training import defaults


class HDNNClassifier(ClassifierMixin, HDNNEstimator):  # type: ignore[misc]
    """A Hamiltonian deep network that classifies rows of numbers.

    Data are standardized (a missing value becomes the mean), widened with zeros, propagated by the
    network, and classified by a logistic or softmax output layer.

    Args:
        architecture: name of the network: "H1", "H2", "MS1", "MS2", "MS3", "HS", "ResNet", "FCNN".
        layers: number of layers.
        width: width of the network, made even; None: twice the features, from 8 to 64, and from
            800 rows on four times, from 32 to 64; more than 64 features are projected to 64.
        T: final time; layers have the step T / layers (not for FCNN, which has no time). "auto":
            3 for H1 where it classifies, else 1.2.
        step: step size of a layer, instead of T. H2 needs a T that shrinks with the width, as
            the norm of its J grows.
        augmentation: "append" zeros after the features, or "spread" them in the middle.
        activation: "tanh" or another name of `hdnn.fields.ACTIVATIONS`.
        time_invariant: all layers share their weights.
        init_scale: standard deviation of the initial K; "auto": 1 / sqrt(width). Biases are
            standard normal.
        method: "coordinate" (output layer solved in every iteration, then a step on the hidden
            layers), "joint" (Adam on everything), or "auto": joint.
        solver: how coordinate descent solves the output layer: "newton" or "adam".
        max_iter: epochs, passes over the data.
        batch_size: rows in an iteration; "auto": all of up to 500 (joint: 200), else 200.
        learning_rate: of Adam; "auto": 0.3 / width (regression: 0.4 / width), and two thirds of it
            where the schedule is constant.
        schedule: learning rate over epochs: "constant", "cosine" (to 0), or "auto": constant for
            coordinate descent, cosine for joint descent.
        alpha: weight of the smoothness penalty on the hidden layers.
        alpha_c: weight of the penalty on the output layer.
        early_stopping: hold out a part of the rows, stop when its loss no longer falls, and
            return to the best epoch.
        validation_fraction: the part held out.
        n_iter_no_change: epochs without a better loss on the held-out part before stopping.
        standardize: remove the mean and divide by the standard deviation, with sample weights.
        class_weight: None, "balanced", or a dictionary from class to weight (1 where missing).
        warm_start: `fit` goes on from the network of the last call, with its scaling of the data.
        dtype: "float32", "float64", or "auto": float64 up to 1000 rows, and where a column's mean
            is over 1000 times its spread.
        device: where `fit` computes: "cpu", "cuda", "mps", or "auto", which for tables is the CPU.
            The fitted network is on the CPU.
        random_state: an integer for the same result every time, a `numpy.random.RandomState`, or
            None.
        verbose: print the loss of every epoch.

    Attributes:
        classes_: the classes, sorted; the columns of `predict_proba`.
        n_features_in_, feature_names_in_: number of features, and their names where X had them.
        model_: the trained `hdnn.Model`, for `hdnn.save` and `hdnn.analysis`.
        n_iter_: epochs that were run.
        loss_curve_: the penalized loss of every epoch.
        history_: an `hdnn.training.EpochRecord` for every epoch.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = HDNNClassifier(architecture="H1", layers=16, max_iter=50, random_state=0).fit(X, y)
    >>> clf.score(X, y) > 0.95
    True
    >>> clf.predict_proba(X[:5]).shape
    (5, 3)
    """

    classes_: Array

    def __init__(
        self,
        architecture: Any = "H1",
        *,
        layers: int = defaults.LAYERS,
        width: int | None = None,
        T: float | str = "auto",
        step: float | None = None,
        augmentation: str = "append",
        activation: str = "tanh",
        time_invariant: bool = False,
        init_scale: float | str = "auto",
        method: str = "auto",
        solver: str = "newton",
        max_iter: int = 50,
        batch_size: int | str = "auto",
        learning_rate: float | str = "auto",
        schedule: str = "auto",
        alpha: float = defaults.ALPHA,
        alpha_c: float = defaults.ALPHA_C,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        standardize: bool = True,
        class_weight: Mapping[Any, float] | str | None = None,
        warm_start: bool = False,
        dtype: str = "auto",
        device: str = "cpu",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            architecture,
            layers=layers,
            width=width,
            T=T,
            step=step,
            augmentation=augmentation,
            activation=activation,
            time_invariant=time_invariant,
            init_scale=init_scale,
            method=method,
            solver=solver,
            max_iter=max_iter,
            batch_size=batch_size,
            learning_rate=learning_rate,
            schedule=schedule,
            alpha=alpha,
            alpha_c=alpha_c,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            standardize=standardize,
            warm_start=warm_start,
            dtype=dtype,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on ``(rows, features)`` and a class for every row; a row of weight 0 is left out.

        Args:
            X: array-like or data frame; NaN is a missing value (with ``standardize``).
            y: classes, numbers or strings; at least two different ones.
            sample_weight: a number of at least 0 for every row.

        Returns:
            The estimator itself.

        Raises:
            HdnnError: the data or a parameter cannot be used.
        """
        X, y, weight = self._check(X, y, sample_weight)
        check_classification_targets(y)
        found = np.unique(y)
        known = self.classes_ if self._continues else found
        if strange := [label for label in found.tolist() if label not in set(known.tolist())]:
            raise HdnnError(f"the classes {strange} are not among {known.tolist()}: fit anew")
        if len(known) < 2:
            raise HdnnError(
                f"a classifier needs rows of at least two classes, got one class: {known.tolist()}"
            )
        self.classes_ = known
        outputs = 1 if len(known) == 2 else len(known)
        model, seed = self._start(X, weight, outputs, task="classification", classes=known.tolist())
        self._train(model, X, np.searchsorted(known, y), weight, seed)
        return self._finish(model)

    def _class_weight(self) -> str | tuple[float, ...] | None:
        given = self.class_weight
        if given is None:
            return None
        if isinstance(given, str) and given == "balanced":
            return "balanced"
        if not isinstance(given, Mapping):
            raise HdnnError(
                f"class_weight is None, 'balanced' or a dictionary from class to weight, "
                f"got {given!r}"
            )
        labels = self.classes_.tolist()
        given = {plain(label): plain(value) for label, value in given.items()}
        if strange := [label for label in given if label not in labels]:
            raise HdnnError(f"class_weight names {strange}, but the classes are {labels}")
        weights = tuple(given.get(label, 1.0) for label in labels)
        if not all(isinstance(w, int | float) and 0 <= w < np.inf for w in weights):
            raise HdnnError(f"class weights are numbers of at least 0, got {self.class_weight!r}")
        return weights

    def decision_function(self, X: Any) -> Array:
        """The output layer's values: ``(rows,)`` for two classes, else ``(rows, classes)``.

        Args:
            X: ``(rows, features)``, with the columns of `fit`.

        Returns:
            Logits; above 0 is the second of two classes.
        """
        values = self._values(X)
        return values[:, 0] if values.shape[1] == 1 else values

    def predict(self, X: Any) -> Array:
        """The most probable class of every row.

        Args:
            X: ``(rows, features)``, with the columns of `fit`.

        Returns:
            ``(rows,)``, entries of ``classes_``.
        """
        values = self.decision_function(X)
        chosen = (values > 0).astype(int) if values.ndim == 1 else values.argmax(1)
        return self.classes_[chosen]

    def predict_log_proba(self, X: Any) -> Array:
        """The logarithms of `predict_proba`, exact where those underflow.

        Args:
            X: ``(rows, features)``, with the columns of `fit`.

        Returns:
            ``(rows, classes)``.
        """
        values = torch.from_numpy(self._values(X))
        if values.shape[1] == 1:
            values = torch.cat([torch.zeros_like(values), values], 1)
        return values.log_softmax(1).numpy()

    def predict_proba(self, X: Any) -> Array:
        """``(rows, classes)``: the probability of every class, in the order of ``classes_``.

        Args:
            X: ``(rows, features)``, with the columns of `fit`.

        Returns:
            Numbers in [0, 1] that sum to 1 in every row.
        """
        return np.exp(self.predict_log_proba(X))
