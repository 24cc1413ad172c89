"""The scikit-learn estimators: scikit-learn's own checks, and what they promise beyond those."""

from __future__ import annotations

import copy
import importlib
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_iris, load_wine, make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import hdnn
from hdnn import HDNNClassifier, HdnnError, HDNNRegressor
from hdnn.errors import DivergenceError

Array = np.ndarray
IRIS = load_iris(return_X_y=True)
BOTH = pytest.mark.parametrize("kind", [HDNNClassifier, HDNNRegressor])


def quick(kind: Any = HDNNClassifier, **options: Any) -> Any:
    return kind(**{"layers": 3, "max_iter": 6, "random_state": 0, **options})


def values(estimator: Any, X: Array = IRIS[0]) -> Array:
    """The numbers behind the predictions."""
    predict = estimator.predict_proba if hasattr(estimator, "predict_proba") else estimator.predict
    return np.asarray(predict(X))


# --- scikit-learn's checks ------------------------------------------------------------------------


# Both ways of training. scikit-learn skips, by itself, what needs SCIPY_ARRAY_API.
@parametrize_with_checks(
    [
        HDNNClassifier(layers=3, max_iter=20, method="coordinate"),
        HDNNClassifier(layers=3, max_iter=20, method="joint", learning_rate=0.05),
        HDNNRegressor(layers=3, max_iter=20, method="coordinate"),
        HDNNRegressor(layers=3, max_iter=20, method="joint", learning_rate=0.05),
    ]
)
def test_scikit_learn_s_checks(estimator: Any, check: Any) -> None:
    check(estimator)


# --- learning -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("load", "floor"), [(load_iris, 0.93), (load_wine, 0.95)])
def test_the_defaults_learn(load: Any, floor: float) -> None:
    X, y = load(return_X_y=True)
    assert cross_val_score(HDNNClassifier(random_state=0), X, y, cv=3).mean() > floor


@pytest.mark.parametrize(
    ("options", "width", "projected"),
    [
        ({"max_iter": 15}, 60, False),
        ({"max_iter": 15, "width": 8}, 8, True),
        ({"max_iter": 2, "width": 200, "method": "coordinate"}, 200, False),
    ],
    ids=["default", "projected", "wide"],
)
def test_thirty_features(options: dict[str, Any], width: int, projected: bool) -> None:
    X, y = load_breast_cancer(return_X_y=True)
    clf = HDNNClassifier(**options, random_state=0).fit(X[::2], y[::2])
    assert clf.model_.network.features == width
    assert (clf.model_.stem.projection is not None) == projected
    assert clf.score(X[1::2], y[1::2]) > 0.93


def test_regression_beats_a_linear_model() -> None:
    X, y = make_friedman1(300, noise=0.5, random_state=0)
    score = cross_val_score(HDNNRegressor(random_state=0), X, y, cv=3).mean()
    assert score > cross_val_score(Ridge(), X, y, cv=3).mean() + 0.05


def test_the_model_is_the_estimator(tmp_path: Path) -> None:
    X, y = IRIS
    for estimator in (quick().fit(X, y), quick(HDNNRegressor).fit(X[:, :3], X[:, 3:])):
        data = X[:, : estimator.n_features_in_]
        hdnn.save(estimator.model_, tmp_path / "model")
        again = hdnn.load(tmp_path / "model")
        predict = again.probabilities if again.task == "classification" else again
        out = predict(torch.tensor(data)).detach().numpy()
        np.testing.assert_allclose(out, values(estimator, data), rtol=1e-10, atol=1e-14)


def test_options_reach_the_model() -> None:
    X, y = IRIS
    network = {"architecture": "MS3", "layers": 5, "width": 11, "step": 0.25, "activation": "relu"}
    options = {"padding": "spread", "time_invariant": True, "standardize": False}
    model = quick(**network, **options, dtype="float32").fit(X, y).model_
    net = model.network
    assert (net.name, net.layers, net.features, net.h) == ("MS3", 5, 12, 0.25)
    assert (net.time_invariant, net.field.activation.name) == (True, "relu")
    assert (model.stem.padding.mode, model.scaler) == ("spread", None)
    assert net.K.dtype == torch.float32
    assert quick(architecture="FCNN").fit(X, y).model_.network.name == "FCNN"


# --- weights and missing values -------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("method", ["coordinate", "joint"])
def test_weights_are_repetitions(kind: Any, method: str) -> None:
    X, y = IRIS
    rng = np.random.default_rng(0)
    weight = rng.integers(0, 3, len(X))
    options = {"method": method, "batch_size": 500, "alpha_c": 0.01}  # else by number of rows
    weighted = quick(kind, **options).fit(X, y, sample_weight=weight)
    repeated = quick(kind, **options).fit(X.repeat(weight, axis=0), y.repeat(weight))
    np.testing.assert_allclose(values(weighted), values(repeated), rtol=1e-7, atol=1e-9)


@BOTH
def test_a_row_of_weight_0_decides_nothing(kind: Any) -> None:
    """Neither scaling nor defaults, which depend on the number of rows, nor the classes."""
    X, y = IRIS
    more = np.r_[X, np.full((60, 4), 1e6)], np.r_[y, np.full(60, 9)]
    weighted = quick(kind).fit(*more, sample_weight=np.r_[np.ones(150), np.zeros(60)])
    np.testing.assert_array_equal(values(weighted), values(quick(kind).fit(X, y)))


def test_missing_values_count_as_the_mean() -> None:
    X, y = IRIS
    holes = X.copy()
    holes[::7, 2] = np.nan
    clf = quick().fit(holes, y)
    filled = np.where(np.isnan(holes), np.nanmean(holes, 0), holes)
    np.testing.assert_allclose(clf.predict_proba(holes), clf.predict_proba(filled), atol=1e-12)
    with pytest.raises(ValueError, match="contains NaN"):
        quick(standardize=False).fit(holes, y)
    with pytest.raises(ValueError, match="infinity"):
        quick().fit(np.where(np.isnan(holes), np.inf, holes), y)


# --- going on -------------------------------------------------------------------------------------


@BOTH
def test_warm_start_goes_on(kind: Any) -> None:
    X, y = IRIS
    est = quick(kind, warm_start=True, max_iter=15).fit(X, y)
    first, model = est.loss_curve_, est.model_
    scaler = copy.deepcopy(model.scaler)
    est.fit(X, y)
    assert est.loss_curve_[0] < first[0]
    assert est.n_iter_ == 15
    assert torch.equal(est.model_.scaler.mean, scaler.mean)
    assert est.model_ is not model
    with pytest.raises(HdnnError, match=r"layers=7.*warm_start=False"):
        est.set_params(layers=7).fit(X, y)
    with pytest.raises(ValueError, match="features"):
        est.set_params(layers=3).fit(X[:, :2], y)


def test_early_stopping(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = IRIS
    stopping = {"early_stopping": True, "n_iter_no_change": 2, "max_iter": 200}
    clf = quick(**stopping, learning_rate=0.2, verbose=True).fit(X, y)
    assert clf.n_iter_ < 200
    assert capsys.readouterr().out.count("\nIteration") == clf.n_iter_ - 1
    held = [entry.validation_loss for entry in clf.history_]
    assert held.index(min(held)) == clf.n_iter_ - 3


def test_held_out_rows_keep_their_weights() -> None:
    """A class that counts for nothing in training counts for nothing on the held-out part."""
    X, y = IRIS
    weight = np.where(y == 2, 1e-12, 1.0)
    clf = quick(early_stopping=True, n_iter_no_change=50, max_iter=30)
    assert clf.fit(X, y, weight).history_[-1].validation_loss < 0.05


# --- searches, names, targets ---------------------------------------------------------------------


# With psutil, loky compares its workers' memory with that after their first task, and retires one
# that grew by 300 MB, which may deadlock (joblib 1.6). A worker whose first task was another's
# would grow so by loading torch: each loads it before its first task.
LOADED = {"initializer": importlib.import_module, "initargs": ("hdnn.estimators",)}


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("threading", {}),
        ("multiprocessing", {}),
        pytest.param("loky", LOADED, marks=pytest.mark.slow),
    ],
)
def test_grid_search_in_parallel(backend: str, options: dict[str, Any]) -> None:
    X, y = IRIS
    pipe = make_pipeline(StandardScaler(), quick(standardize=False, max_iter=20))
    grid = {"hdnnclassifier__layers": [2, 4], "hdnnclassifier__alpha": np.logspace(-4, -2, 2)}
    quick().fit(X, y)  # the kernels of the parent are in use before it forks
    with joblib.parallel_config(backend, **options):
        search = GridSearchCV(pipe, grid, n_jobs=2, cv=2).fit(X, y)
    assert search.best_score_ > 0.9
    serial = GridSearchCV(pipe, grid, cv=2).fit(X, y)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], serial.cv_results_["mean_test_score"]
    )


def test_several_targets() -> None:
    X, _ = IRIS
    both = quick(HDNNRegressor).fit(X[:, :2], X[:, 2:])
    assert both.predict(X[:, :2]).shape == (150, 2)
    assert quick(HDNNRegressor).fit(X[:, :2], X[:, 2:3]).predict(X[:, :2]).shape == (150, 1)
    with pytest.raises(HdnnError, match="y has 1 outputs"):
        both.set_params(warm_start=True).fit(X[:, :2], X[:, 2])


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "H9"}, "unknown architecture 'H9'.*H1"),
        ({"layers": 0}, "layers should be greater than or equal to 1, got 0"),
        ({"layers": (2, 2)}, "lists are for images"),
        ({"T": 1.0, "step": 0.1}, "T.*step"),
        ({"init_scale": "x"}, "init_scale should be a valid number, got 'x'"),
        ({"max_iter": -1}, "max_iter should be greater than or equal to 0, got -1"),
        ({"early_stopping": True, "n_iter_no_change": 0}, "n_iter_no_change should be greater"),
        ({"class_weight": "even"}, "class_weight is None, 'balanced' or a dictionary.*'even'"),
        ({"class_weight": {5: 1.0}}, r"class_weight names \[5\], but the classes are \[0, 1, 2\]"),
        ({"class_weight": {0: -1.0}}, r"class_weight should be .*, got \(-1.0, 1.0, 1.0\)"),
    ],
)
def test_errors_name_the_remedy(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HdnnError, match=message):
        quick(**options).fit(*IRIS)


def test_other_errors() -> None:
    X, y = IRIS
    with pytest.raises(HdnnError, match=r"at least two classes, got one class: \[0\]"):
        quick().fit(X[:50], y[:50])
    with pytest.raises(ValueError, match=r"zero|all values of sample_weight"):
        quick().fit(X, y, sample_weight=np.zeros(150))
    with pytest.raises(HdnnError, match=r"not finite.*use T <= "):
        quick(HDNNRegressor, T=1e200, activation="relu", method="joint").fit(X, y)


@BOTH
def test_a_training_that_does_not_converge_warns_with_advice(kind: Any) -> None:
    with pytest.raises(DivergenceError, match=r"the loss exploded .*use T <= .* layers"):
        quick(kind, T=500.0, layers=8, activation="relu", method="joint").fit(*IRIS)
    with pytest.warns(ConvergenceWarning, match=r"did not converge.*use T <= .* layers"):
        quick(kind, T=15.0, layers=8, activation="relu", method="joint", max_iter=2).fit(*IRIS)


def test_a_frame_with_texts_needs_a_frame_to_predict() -> None:
    X, y = IRIS
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"]).assign(e=np.where(X[:, 0] > 5, "x", "y"))
    clf = quick().fit(frame, y)
    assert clf.predict(frame).shape == (150,)
    assert clf.feature_names_in_.tolist() == [*"abcde"]
    assert clf.model_.feature_names == [*"abcd", "e=x", "e=y"]
    with pytest.raises(HdnnError, match=r"data frame with its columns \(a, b, c, d, e"):
        clf.predict(frame.to_numpy())
    numbered = quick().fit(frame.set_axis(range(5), axis=1), y)  # scikit-learn keeps no such names
    with pytest.raises(HdnnError, match=r"data frame with its columns \(0, 1, 2, 3, 4"):
        numbered.predict(frame.to_numpy())


def test_columns_that_are_left_out_are_told() -> None:
    X, y = IRIS
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    ids = frame.assign(customer_id=np.arange(150))
    with pytest.warns(UserWarning, match="left out, like an id .*: customer_id; an array"):
        clf = quick().fit(ids, y)
    assert clf.model_.feature_names == [*"abcd"]
    with pytest.warns(UserWarning, match="left out, constant: e"):
        clf = quick().fit(frame.assign(e=1.0), y)
    # All are numbers, so that an array has all that is needed.
    expected = clf.predict_proba(frame.assign(e=2.0))
    with pytest.warns(UserWarning, match="valid feature names"):  # scikit-learn's
        np.testing.assert_array_equal(clf.predict_proba(np.c_[X, np.zeros(150)]), expected)


@BOTH
def test_a_fit_that_fails_leaves_the_estimator_as_it_was(kind: Any) -> None:
    X, y = IRIS
    est = quick(kind).fit(X, y)
    expected = est.predict(X)
    frame = pd.DataFrame({"e": ["x", "y"] * 50, "f": np.arange(100) % 7})
    for labels, parameters in ((np.zeros(99), {}), (y[:100], {"T": 1e200, "activation": "relu"})):
        with pytest.raises(ValueError):  # noqa: PT011 (scikit-learn's, or an HdnnError)
            est.set_params(method="joint", **parameters).fit(frame, labels)
        np.testing.assert_array_equal(est.predict(X), expected)
        assert est.n_features_in_ == 4


def test_scheme_by_name() -> None:
    clf = quick(architecture="MS3", scheme="leapfrog").fit(*IRIS)
    assert clf.model_.network.scheme == hdnn.schemes.Leapfrog()
    assert clf.predict(IRIS[0]).shape == (150,)
    with pytest.raises(HdnnError, match=r"unknown scheme 'leepfrog'.*Leapfrog"):
        quick(scheme="leepfrog").fit(*IRIS)


def test_an_estimator_is_saved_and_reported_as_its_model(tmp_path: Path) -> None:
    X, y = IRIS
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"]).assign(e=np.where(X[:, 0] > 5, "x", "y"))
    clf = quick().fit(frame, y)
    hdnn.save(clf, tmp_path / "model.safetensors")
    again = hdnn.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict(clf.inputs(frame)), clf.predict(frame))
    text = hdnn.report(clf, frame, y).html
    assert f"{clf.score(frame, y):.1%}".replace("%", "") in text
    with pytest.raises(HdnnError, match="a fitted estimator, got HDNNClassifier"):
        hdnn.save(HDNNClassifier(), tmp_path / "none")
