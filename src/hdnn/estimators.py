"""Estimators for scikit-learn: pipelines, grid searches and cross-validation of these networks."""

from __future__ import annotations

import hdnn.application  # noqa: F401 (first: it names the packages that are missing)

# isort: split
import copy
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    check_X_y,
    validate_data,
)

from hdnn.config import Config
from hdnn.data import ColumnEncoder, Dataset, read_table
from hdnn.errors import HdnnError
from hdnn.models import Model
from hdnn.training.build import build
from hdnn.training.diagnosis import convergence_warning
from hdnn.training.resolve import resolve
from hdnn.training.trainer import EpochRecord, Trainer

__all__ = ["HDNNClassifier", "HDNNRegressor"]

Array = np.ndarray
CHUNK = 1 << 16  # rows that are predicted at once: bounds the memory
MODEL = {
    **{name: name for name in ("architecture", "layers", "width", "T", "step", "scheme")},
    **{name: name for name in ("padding", "activation", "time_invariant", "standardize")},
    "dtype": "dtype",
    "init_scale": "scale",
}
"""Parameters that describe the network, and what settings of `hdnn.config` they are."""
TRAINING = {
    "max_iter": "epochs",
    **{name: name for name in ("method", "solver", "batch_size", "learning_rate", "schedule")},
    **{name: name for name in ("alpha", "alpha_c", "device")},
}
"""Parameters of the training; with early_stopping=True there are two more."""
STOPPING = {"validation_fraction": "validation", "n_iter_no_change": "early_stopping"}


class HDNNEstimator(BaseEstimator):  # type: ignore[misc]
    """A Hamiltonian network as an estimator; see `HDNNClassifier` for the parameters."""

    model_: Model

    def __init__(
        self,
        architecture: Any = "H1",
        *,
        layers: int | None = None,
        width: int | None = None,
        T: float | None = None,
        step: float | None = None,
        scheme: Any = None,
        padding: str | None = None,
        activation: str = "tanh",
        time_invariant: bool = False,
        init_scale: float | None = None,
        method: str | None = None,
        solver: str | None = None,
        max_iter: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        schedule: str | None = None,
        alpha: float | None = None,
        alpha_c: float | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        standardize: bool = True,
        warm_start: bool = False,
        dtype: str | None = None,
        device: str = "cpu",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self._store(locals())

    def _store(self, values: dict[str, Any]) -> None:
        """Keep the parameters of `__init__`, each under its own name."""
        self.__dict__.update({name: value for name, value in values.items() if name != "self"})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = bool(self.standardize)  # the scaler puts the mean in its place
        return tags

    # --- data -------------------------------------------------------------------------------------

    @property
    def _continues(self) -> bool:
        return hasattr(self, "model_") and self.warm_start

    def _check(
        self, X: Any, y: Any, sample_weight: Any, **options: Any
    ) -> tuple[Array, Array, Array]:
        """Checked rows and weights; a row of weight 0 is a row that is not there."""
        reset = not self._continues
        checks = {"dtype": np.float64, "ensure_all_finite": self._finite(), **options}
        if reset:
            self._encoder = fit_encoder(X)
            self._columns = list(map(str, getattr(X, "columns", ())))
            if self._encoder is not None and self._encoder.notes:
                warnings.warn(
                    f"{'; '.join(self._encoder.notes)}; an array of numbers is used as it is",
                    stacklevel=3,
                )
        if self._encoder is None:
            X, y = validate_data(self, X, y, reset=reset, **checks)
        else:
            X, y = check_X_y(self._encode(X, reset), y, **checks)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weight.any():
            raise HdnnError("all values of sample_weight are 0: give at least one row a weight")
        positive = weight > 0
        return X[positive], y[positive], weight[positive]

    def _encode(self, X: Any, reset: bool = False) -> Array:
        """The numbers of a data frame, or of an array where all its columns were numbers."""
        assert self._encoder is not None
        if hasattr(X, "iloc"):
            X = validate_data(self, X, skip_check_array=True, reset=reset)
        elif all(column.kind == "number" for column in self._encoder.columns):
            X = validate_data(
                self, X, dtype=np.float64, ensure_all_finite=self._finite(), reset=False
            )
            X = dict(zip(self._columns, X.T, strict=True))
        else:
            names = ", ".join(self._columns[:5])
            raise HdnnError(
                "this estimator was fitted on a data frame with texts or dates: give a data frame "
                f"with its columns ({names}, ...), not {type(X).__name__}"
            )
        return self._encoder.transform(self._encoder.read_frame(X))

    def _finite(self) -> bool | str:
        return "allow-nan" if self.standardize else True

    def _dataset(
        self, X: Array, y: Array, weight: Array, task: str, classes: Any = None
    ) -> Dataset:
        encoder, names = self._encoder, getattr(self, "feature_names_in_", None)
        return Dataset.from_arrays(
            X,
            y,
            weight=weight,
            task=task,
            classes=classes,
            feature_names=names if encoder is None else encoder.feature_names,
            encoder=encoder,
        )

    # --- training ---------------------------------------------------------------------------------

    def _config(self, **more: Any) -> Config:
        """The settings that the parameters give; None depends on the data."""
        if isinstance(self.random_state, int | np.integer):  # the seed itself, as of a run
            check_random_state(self.random_state)
            seed = int(self.random_state)
        else:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        names = TRAINING | (STOPPING if self.early_stopping else {})
        model = {setting: _plain(getattr(self, name)) for name, setting in MODEL.items()}
        training = {setting: _plain(getattr(self, name)) for name, setting in names.items()}
        try:
            return Config(
                model={**model, "seed": seed}, training={**training, **more, "seed": seed}
            )
        except HdnnError as error:
            message = str(error)
            for name, setting in (MODEL | names).items():
                if message.startswith(f"{setting} "):
                    message = f"{name} {message.removeprefix(f'{setting} ')}"
            raise HdnnError(message) from None

    def _train(self, data: Dataset, **settings: Any) -> Self:
        """Train on checked data: a new network, or with warm_start the one there is."""
        config = resolve(self._config(**settings), data)
        if self._continues:
            self._check_structure()
            model = copy.deepcopy(self.model_)
        else:
            model = build(config.model, data)
            self._structure = {name: getattr(self, name) for name in MODEL}
        assert data.weight is not None
        data = replace(data.to(model.head.weight.dtype), weight=data.weight / data.weight.mean())
        trainer = Trainer(model, config.training, [_report] if self.verbose else [])
        history = trainer.fit(data)
        problem = convergence_warning(model, data, history[-1].loss) if history else None
        if problem is not None:
            warnings.warn(problem, ConvergenceWarning, stacklevel=3)
        self.model_, self.history_ = model.eval(), history
        self.loss_curve_ = [record.penalized for record in history]
        self.n_iter_ = len(history)
        return self

    def _check_structure(self) -> None:
        for name, built in self._structure.items():
            if getattr(self, name) != built:
                raise HdnnError(
                    f"{name}={getattr(self, name)!r}, but the fitted network has {built!r}: set it "
                    "back to continue with this network, or fit with warm_start=False"
                )

    @torch.no_grad()
    def _values(self, X: Any) -> Array:
        """``(rows, outputs)``: the values of the output layer."""
        parts = [self.model_(part) for part in self.inputs(X).split(CHUNK)]
        return torch.cat(parts).double().numpy()

    def inputs(self, X: Any) -> torch.Tensor:
        """What `model_` takes of the rows of a table.

        Args:
            X: ``(rows, features)``, with the columns of `fit`.

        Returns:
            ``(rows, encoded features)``, in the precision of the network.
        """
        check_is_fitted(self, "model_")
        finite = "allow-nan" if self.model_.scaler is not None else True
        if self._encoder is None:
            X = validate_data(self, X, dtype=np.float64, ensure_all_finite=finite, reset=False)
        else:
            X = self._encode(X)
        return torch.tensor(X, dtype=self.model_.head.weight.dtype)


@contextmanager
def _all_or_nothing(estimator: HDNNEstimator) -> Iterator[None]:
    """Leave an estimator as it was where the block raises."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        estimator.__dict__.clear()
        estimator.__dict__.update(before)
        raise


def fit_encoder(X: Any) -> ColumnEncoder | None:
    """The encoder of a data frame; None where it leaves all columns as they are, and for arrays."""
    if not hasattr(X, "iloc") or not len(X):
        return None
    table = read_table(X)
    encoder = ColumnEncoder.fit(table.columns, table.types)
    return None if encoder.is_plain and len(encoder.columns) == X.shape[1] else encoder


def _plain(value: Any) -> Any:
    """A numpy scalar, as grid searches give them, as Python's; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _report(trainer: Trainer, record: EpochRecord) -> None:
    """What ``verbose`` shows, where scikit-learn's estimators show it."""
    line = f"Iteration {record.epoch}, loss = {record.penalized:.6f}"
    if record.validation_loss is not None:
        line += f", validation loss {record.validation_loss:.6f}"
    sys.stdout.write(f"{line}\n")


class HDNNClassifier(ClassifierMixin, HDNNEstimator):  # type: ignore[misc]
    """A Hamiltonian deep network that classifies the rows of a table.

    Columns are standardized (a missing value becomes the mean) and widened with zeros, the network
    propagates them, and a logistic or softmax output layer classifies. Columns of a data frame may
    also hold texts, booleans or dates. A parameter that is None depends on the data, by the rule
    stated here (`hdnn.training.resolve`).

    Args:
        architecture: Name of the network: "H1", "H2", "MS1", "MS2", "MS3", "HS", or a baseline,
            "ResNet" or "FCNN"; or an `hdnn.zoo.Architecture` of your own.
        layers: Number of layers. None: 8.
        width: Width of the network; an odd one is made even. None: twice the number of features,
            within 8 and 64, up to 400 rows, rising to four times, within 32 and 64, from 800 rows
            on; more than 64 features are projected to 64.
        T: Final time; a layer has the step T / layers. FCNN has none. None: 2 for H1, else 1.2.
            H2 needs a T that shrinks with the width, as the norm of its J grows.
        step: Step size of a layer, instead of T.
        scheme: Time-stepping scheme, such as "leapfrog", or one of `hdnn.schemes`. None: the
            architecture's own.
        padding: Where zeros are added to features that are not projected: after them ("append",
            None) or between their halves ("spread").
        activation: Name of the activation: "tanh" or another of `hdnn.fields.ACTIVATIONS`.
        time_invariant: Whether all layers share their weights.
        init_scale: Standard deviation of the initial K. None: 1 / sqrt(width). Biases start
            standard normal.
        method: "joint" trains all weights with Adam; "coordinate" solves for the output layer in
            every iteration, then takes a step on the hidden layers. None: joint.
        solver: How coordinate descent solves for the output layer: "newton" (None)
            or "adam".
        max_iter: Number of epochs, passes over the data. None: 35 up to 10 rows per feature, 50
            from 100 on, in between with the logarithm.
        batch_size: Rows in an iteration. None: all of up to 200 (coordinate: 500), else 200.
        learning_rate: Learning rate of Adam. None: 0.3 / width, and two thirds of it where the
            schedule is constant.
        schedule: Learning rate over the epochs: "constant" or "cosine" (down to 0). None: cosine
            for joint, constant for coordinate descent.
        alpha: Weight of the smoothness penalty, which keeps adjacent layers alike. None: 0.001.
        alpha_c: Weight of the penalty on the output layer. None: features / rows, within 0.01
            and 1.
        early_stopping: Whether to hold out rows, stop when their loss no longer falls, and restore
            the weights of the best epoch.
        validation_fraction: Fraction of the rows to hold out for early stopping.
        n_iter_no_change: Epochs without a lower loss on the held-out rows before stopping.
        standardize: Whether to scale columns to mean 0 and variance 1, with sample weights. Missing
            values need it.
        class_weight: None, "balanced" (inversely to the frequency of the classes), or a dictionary
            from class to weight (1 where missing).
        warm_start: Whether `fit` continues from the network of the last call, with its scaling.
            There is no `partial_fit`: scaling and defaults are chosen with all rows.
        dtype: "float32" or "float64". None: float64 up to 1000 rows, and where a column's mean is
            over 1000 times its standard deviation.
        device: Where `fit` computes: "cpu", "cuda", "mps", or "auto", which is the CPU for tables.
            The fitted network is on the CPU.
        random_state: An integer for the same result at every call, a `numpy.random.RandomState`, or
            None.
        verbose: Whether to print the loss of every epoch.

    Attributes:
        classes_: The classes, sorted; the order of the columns of `predict_proba`.
        n_features_in_: Number of columns of X.
        feature_names_in_: Names of the columns, where X had them.
        model_: The trained `hdnn.Model`, for `hdnn.save`, `hdnn.export_onnx` and `hdnn.analysis`.
        n_iter_: Number of epochs that were run.
        loss_curve_: Loss with penalties of every epoch.
        history_: An `hdnn.training.EpochRecord` for every epoch.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.model_selection import train_test_split
    >>> X, X_test, y, y_test = train_test_split(*load_iris(return_X_y=True), random_state=0)
    >>> clf = HDNNClassifier(architecture="H1", layers=16, max_iter=50, random_state=0).fit(X, y)
    >>> round(clf.score(X_test, y_test), 2)
    0.97
    >>> clf.predict_proba(X_test[:5]).shape
    (5, 3)
    """

    classes_: Array

    def __init__(
        self,
        architecture: Any = "H1",
        *,
        layers: int | None = None,
        width: int | None = None,
        T: float | None = None,
        step: float | None = None,
        scheme: Any = None,
        padding: str | None = None,
        activation: str = "tanh",
        time_invariant: bool = False,
        init_scale: float | None = None,
        method: str | None = None,
        solver: str | None = None,
        max_iter: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        schedule: str | None = None,
        alpha: float | None = None,
        alpha_c: float | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        standardize: bool = True,
        class_weight: Mapping[Any, float] | str | None = None,
        warm_start: bool = False,
        dtype: str | None = None,
        device: str = "cpu",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self._store(locals())

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on ``(rows, features)`` and a class for every row; a row of weight 0 is left out.

        Args:
            X: array-like or data frame; NaN is a missing value (with ``standardize``).
            y: classes, numbers or strings; at least two different ones.
            sample_weight: a number of at least 0 for every row.

        Returns:
            The estimator itself. Where the training did not converge, it warns
            (`sklearn.exceptions.ConvergenceWarning`) with what `hdnn.analysis.advise` recommends.

        Raises:
            HdnnError: the data or a parameter cannot be used, or the loss is no longer finite.
        """
        with _all_or_nothing(self):
            X, y, weight = self._check(X, y, sample_weight)
            check_classification_targets(y)
            classes = self.classes_ if self._continues else np.unique(y)
            if unknown := np.setdiff1d(y, classes).tolist():
                raise HdnnError(f"the classes {unknown} are not among {classes.tolist()}: fit anew")
            if len(classes) < 2:
                raise HdnnError(
                    f"a classifier needs at least two classes, got one class: {classes}"
                )
            self.classes_ = classes
            data = self._dataset(X, y, weight, "classification", classes.tolist())
            return self._train(data, class_weight=self._class_weight())

    def _class_weight(self) -> str | tuple[float, ...] | None:
        weight = self.class_weight
        if weight is None or (isinstance(weight, str) and weight == "balanced"):
            return weight
        if not isinstance(weight, Mapping):
            raise HdnnError(
                f"class_weight is None, 'balanced' or a dictionary from class to weight, "
                f"got {weight!r}"
            )
        labels = self.classes_.tolist()
        weights = {_plain(label): _plain(value) for label, value in weight.items()}
        if unknown := [label for label in weights if label not in labels]:
            raise HdnnError(f"class_weight names {unknown}, but the classes are {labels}")
        return tuple(weights.get(label, 1.0) for label in labels)

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
        numbers = (values > 0).astype(int) if values.ndim == 1 else values.argmax(1)
        return self.classes_[numbers]

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


class HDNNRegressor(RegressorMixin, HDNNEstimator):  # type: ignore[misc]
    """A Hamiltonian deep network that predicts one or more numbers for every row of a table.

    Targets are standardized for the training (with sample weights), and the output layer is
    converted to their units afterwards; the loss is half the squared error. Coordinate descent
    solves for the output layer exactly: a ridge regression on the last hidden state. A parameter
    that is None depends on the data, by the rule stated here (`hdnn.training.resolve`).

    Args:
        architecture: Name of the network: "H1", "H2", "MS1", "MS2", "MS3", "HS", or a baseline,
            "ResNet" or "FCNN"; or an `hdnn.zoo.Architecture` of your own.
        layers: Number of layers. None: 8.
        width: Width of the network; an odd one is made even. None: twice the number of features,
            within 8 and 64, up to 400 rows, rising to four times, within 32 and 64, from 800 rows
            on; more than 64 features are projected to 64.
        T: Final time; a layer has the step T / layers. FCNN has none. None: 1.2.
        step: Step size of a layer, instead of T.
        scheme: Time-stepping scheme, such as "leapfrog", or one of `hdnn.schemes`. None: the
            architecture's own.
        padding: Where zeros are added to features that are not projected: after them ("append",
            None) or between their halves ("spread").
        activation: Name of the activation: "tanh" or another of `hdnn.fields.ACTIVATIONS`.
        time_invariant: Whether all layers share their weights.
        init_scale: Standard deviation of the initial K. None: 1 / sqrt(width).
        method: "joint" trains all weights with Adam; "coordinate" solves for the output layer in
            every iteration, then takes a step on the hidden layers. None: joint.
        solver: How coordinate descent solves for the output layer: "newton" (None)
            or "adam".
        max_iter: Number of epochs, passes over the data. None: 50.
        batch_size: Rows in an iteration. None: all of up to 200 (coordinate: 500), else 200.
        learning_rate: Learning rate of Adam. None: 0.4 / width, and two thirds of it where the
            schedule is constant.
        schedule: Learning rate over the epochs: "constant" or "cosine" (down to 0). None: cosine
            for joint, constant for coordinate descent.
        alpha: Weight of the smoothness penalty, which keeps adjacent layers alike. None: 0.001.
        alpha_c: Weight of the penalty on the output layer. None: 0.01.
        early_stopping: Whether to hold out rows, stop when their loss no longer falls, and restore
            the weights of the best epoch.
        validation_fraction: Fraction of the rows to hold out for early stopping.
        n_iter_no_change: Epochs without a lower loss on the held-out rows before stopping.
        standardize: Whether to scale columns to mean 0 and variance 1, with sample weights. Missing
            values need it.
        warm_start: Whether `fit` continues from the network of the last call, with its scaling.
            There is no `partial_fit`: scaling and defaults are chosen with all rows.
        dtype: "float32" or "float64". None: float64 up to 1000 rows, and where the mean of a column
            or target is over 1000 times its standard deviation.
        device: Where `fit` computes: "cpu", "cuda", "mps", or "auto", which is the CPU for tables.
            The fitted network is on the CPU.
        random_state: An integer for the same result at every call, a `numpy.random.RandomState`, or
            None.
        verbose: Whether to print the loss of every epoch.

    Attributes:
        n_features_in_: Number of columns of X.
        feature_names_in_: Names of the columns, where X had them.
        model_: The trained `hdnn.Model`, in the units of the targets.
        n_iter_: Number of epochs that were run.
        loss_curve_: Loss with penalties of every epoch, of standardized targets.
        history_: An `hdnn.training.EpochRecord` for every epoch, of standardized targets.

    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 200)[:, None]
    >>> y = np.sin(2 * X[:, 0])
    >>> round(HDNNRegressor(max_iter=200, random_state=0).fit(X, y).score(X, y), 2)
    0.99
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
            The estimator itself. Where the training did not converge, it warns
            (`sklearn.exceptions.ConvergenceWarning`) with what `hdnn.analysis.advise` recommends.

        Raises:
            HdnnError: the data or a parameter cannot be used, or the loss is no longer finite.
        """
        with _all_or_nothing(self):
            X, y, weight = self._check(X, y, sample_weight, multi_output=True, y_numeric=True)
            target = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
            if not self._continues:
                self._flat = y.ndim == 1
            elif target.shape[1] != self.model_.head.out_features:
                raise HdnnError(
                    f"y has {target.shape[1]} outputs, but the fitted network has "
                    f"{self.model_.head.out_features}: fit anew"
                )
            return self._train(self._dataset(X, target, weight, "regression"))

    def predict(self, X: Any) -> Array:
        """The targets: ``(rows,)``, or ``(rows, outputs)`` where y had columns.

        Args:
            X: ``(rows, features)``, with the columns of `fit`.

        Returns:
            In the units of the targets.
        """
        values = self._values(X)
        return np.ascontiguousarray(values[:, 0]) if self._flat else values
