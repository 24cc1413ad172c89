"""What classifier and regressor share: parameters, building, training, evaluation."""

from __future__ import annotations

import copy
import sys
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    check_X_y,
    validate_data,
)

from hdnn import zoo
from hdnn.data import ColumnEncoder, Dataset, read_table
from hdnn.errors import HdnnError
from hdnn.estimators import settings
from hdnn.models import Model, Scaler
from hdnn.training import EpochRecord, Trainer, TrainingConfig, defaults
from hdnn.training.prepare import build_for_columns
from hdnn.training.settings import ModelConfig

Array = np.ndarray
CHUNK = 1 << 16  # rows that are predicted at once: bounds the memory
STRUCTURE = (
    "architecture",
    "layers",
    "width",
    "T",
    "step",
    "augmentation",
    "activation",
    "time_invariant",
    "standardize",
    "dtype",
)


def fit_encoder(X: Any) -> ColumnEncoder | None:
    """The encoder of a data frame; None where it leaves all columns as they are, and for arrays."""
    if not hasattr(X, "iloc") or not len(X):
        return None
    table = read_table(X)
    encoder = ColumnEncoder.fit(table.columns, table.types)
    return None if encoder.is_plain and len(encoder.columns) == X.shape[1] else encoder


class HDNNEstimator(BaseEstimator):  # type: ignore[misc]
    """A Hamiltonian network as an estimator; see `HDNNClassifier` for the parameters."""

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
        warm_start: bool = False,
        dtype: str = "auto",
        device: str = "cpu",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.architecture, self.layers, self.width = architecture, layers, width
        self.T, self.step, self.augmentation = T, step, augmentation
        self.activation, self.time_invariant = activation, time_invariant
        self.init_scale, self.method, self.solver = init_scale, method, solver
        self.max_iter, self.batch_size = max_iter, batch_size
        self.learning_rate, self.schedule = learning_rate, schedule
        self.alpha, self.alpha_c, self.early_stopping = alpha, alpha_c, early_stopping
        self.validation_fraction, self.n_iter_no_change = validation_fraction, n_iter_no_change
        self.standardize, self.warm_start, self.dtype = standardize, warm_start, dtype
        self.device, self.random_state, self.verbose = device, random_state, verbose

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
        if self._encoder is None:
            X, y = validate_data(self, X, y, reset=reset, **checks)
        else:
            X, y = check_X_y(self._encode(X, reset), y, **checks)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weight.any():
            raise HdnnError("all values of sample_weight are 0: give at least one row a weight")
        kept = weight > 0
        return X[kept], y[kept], weight[kept]

    def _encode(self, X: Any, reset: bool = False) -> Array:
        """The numbers of a data frame with texts or dates."""
        assert self._encoder is not None
        frame = validate_data(self, X, skip_check_array=True, reset=reset)
        return self._encoder.transform(self._encoder.read_frame(frame))

    def _finite(self) -> bool | str:
        return "allow-nan" if self.standardize else True

    # --- building ---------------------------------------------------------------------------------

    def _build(
        self, X: Array, scalers: list[Scaler], seed: int, outputs: int, **description: Any
    ) -> Model:
        model, _ = self._settings(X, scalers, description["task"], seed)
        encoder, names = self._encoder, getattr(self, "feature_names_in_", None)
        names = names if encoder is None else encoder.feature_names
        return build_for_columns(
            ModelConfig(**model),
            X.shape[1],
            outputs,
            scalers[0] if self.standardize else None,
            self.architecture,
            feature_names=None if names is None else list(names),
            columns=None if encoder is None else encoder.to_list(),
            **description,
        )

    def _settings(
        self, X: Array, scalers: list[Scaler], task: str, seed: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Settings of model and training: those given, and the others chosen from the data."""
        model, given = settings.asked_for(self)
        row = zoo.architecture(self.architecture)
        if not row.scheme.uses_step or "step" in model:
            model.pop("T", None)
        weight = self._class_weight()
        given |= {"seed": seed} | ({} if weight is None else {"class_weight": weight})
        shape = defaults.TableShape(len(X), X.shape[1], task)
        named = {"architecture": row.name} if row.name in zoo.ARCHITECTURES else {}
        return defaults.filled({**model, **named, "seed": seed}, given, shape, scalers)

    def _class_weight(self) -> str | tuple[float, ...] | None:
        return None

    # --- training ---------------------------------------------------------------------------------

    def _start(
        self, X: Array, weight: Array, outputs: int, *targets: Scaler, **description: Any
    ) -> tuple[Model, int]:
        """The model to train (a copy of the one there is, or a new one), and the seed."""
        seed = self._seed()
        if not self._continues:
            self._scalers = [Scaler.fit(torch.tensor(X), torch.tensor(weight)), *targets]
            self._structure = {name: getattr(self, name) for name in STRUCTURE}
            return self._build(X, self._scalers, seed, outputs, **description), seed
        for name, built in self._structure.items():
            if getattr(self, name) != built:
                raise HdnnError(
                    f"{name}={getattr(self, name)!r}, but the fitted network has {built!r}: set it "
                    "back to go on with this network, or fit with warm_start=False"
                )
        return copy.deepcopy(self.model_), seed

    def _train(self, model: Model, X: Array, target: Array, weight: Array, seed: int) -> None:
        """Train a model in place, `max_iter` epochs."""
        rows, y = torch.tensor(X), torch.tensor(target)
        scaled = torch.tensor(weight / weight.mean())
        data = Dataset(rows, y, rows[:0], y[:0], model.task, weight=scaled)
        _, given = self._settings(X, self._scalers, model.task, seed)
        trainer = Trainer(model, TrainingConfig(**given), [_report] if self.verbose else [])
        self.history_: list[EpochRecord] = trainer.fit(data)
        self.loss_curve_ = [record.penalized for record in self.history_]
        self.n_iter_ = len(self.history_)

    def _seed(self) -> int:
        """An integer is the seed, as of a run; else one is drawn, as in scikit-learn."""
        if isinstance(self.random_state, int | np.integer):
            check_random_state(self.random_state)
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    @torch.no_grad()
    def _values(self, X: Any) -> Array:
        """``(rows, outputs)``: the values of the output layer."""
        check_is_fitted(self, "model_")
        finite = "allow-nan" if self.model_.scaler is not None else True
        if self._encoder is None:
            X = validate_data(self, X, dtype=np.float64, ensure_all_finite=finite, reset=False)
        else:
            X = self._encode(X)
        data = torch.tensor(X, dtype=self.model_.head.weight.dtype)
        parts = [self.model_(part) for part in data.split(CHUNK)]
        return torch.cat(parts).double().numpy()

    def _finish(self, model: Model) -> Self:
        self.model_ = model.eval()
        return self


def _report(trainer: Trainer, record: EpochRecord) -> None:
    """What ``verbose`` shows, where scikit-learn's estimators show it."""
    held = (
        "" if record.validation_loss is None else f", validation loss {record.validation_loss:.6f}"
    )
    sys.stdout.write(f"Iteration {record.epoch}, loss = {record.penalized:.6f}{held}\n")
