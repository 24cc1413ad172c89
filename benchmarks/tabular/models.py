"""The models that are compared, each with its defaults, behind scikit-learn's interface."""

from __future__ import annotations

from typing import Any

import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import hdnn

HDNN = "HDNN"

MODELS: dict[str, dict[str, type]] = {
    "linear": {"classification": LogisticRegression, "regression": Ridge},
    "MLP": {"classification": MLPClassifier, "regression": MLPRegressor},
    "HGB": {
        "classification": HistGradientBoostingClassifier,
        "regression": HistGradientBoostingRegressor,
    },
    "forest": {"classification": RandomForestClassifier, "regression": RandomForestRegressor},
    HDNN: {"classification": hdnn.HDNNClassifier, "regression": hdnn.HDNNRegressor},
}


def encoder() -> Any:
    """Numbers imputed and standardized, categories one-hot."""
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    categories = make_pipeline(
        SimpleImputer(strategy="most_frequent"),
        OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    )
    return make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (categories, make_column_selector(dtype_exclude="number")),
    )


def make(name: str, task: str, seed: int, **settings: Any) -> Any:
    """A model with its defaults, but for the settings and the seed."""
    estimator = MODELS[name][task](random_state=seed, **settings)
    return estimator if name == HDNN else make_pipeline(encoder(), estimator)


def warm_up() -> None:
    """Load hdnn's kernels, so that no clock runs meanwhile."""
    X = pd.DataFrame({"a": [0.0, 1.0, 2.0, 3.0] * 4, "b": [1.0, 0.0, 2.0, 2.0] * 4})
    make(HDNN, "classification", 0, max_iter=1).fit(X, [0, 1, 1, 0] * 4)
