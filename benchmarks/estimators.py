"""Accuracy and fit time of `HDNNClassifier` beside three of scikit-learn's classifiers.

Default parameters, 5-fold cross-validation (stratified, shuffled with seed 0). Data are
standardized for logistic regression and the perceptron; hdnn does that by itself. Prints Markdown.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/estimators.py
"""

from __future__ import annotations

import platform
import time
import warnings
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import hdnn

DATA = {
    "iris": load_iris,
    "wine": load_wine,
    "breast cancer": load_breast_cancer,
    "digits": load_digits,
}
ESTIMATORS = {
    "HDNNClassifier": hdnn.HDNNClassifier(random_state=0),
    "LogisticRegression": make_pipeline(StandardScaler(), LogisticRegression()),
    "MLPClassifier": make_pipeline(StandardScaler(), MLPClassifier(random_state=0)),
    "HistGradientBoosting": HistGradientBoostingClassifier(random_state=0),
}


def measure(estimator: Any, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Test accuracies and seconds of `fit`, one for every fold."""
    scores, seconds = [], []
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(X, y):
        fitted = clone(estimator)
        begin = time.perf_counter()
        fitted.fit(X[train], y[train])
        seconds.append(time.perf_counter() - begin)
        scores.append(fitted.score(X[test], y[test]))
    return np.array(scores), np.array(seconds)


def main() -> None:
    # That scikit-learn's perceptron has not converged in its 200 epochs is part of its defaults.
    warnings.simplefilter("ignore", ConvergenceWarning)
    for dtype in ("float32", "float64"):
        hdnn.HDNNClassifier(max_iter=1, dtype=dtype).fit(np.eye(4), [0, 1, 2, 0])
    print(
        f"Python {platform.python_version()}, scikit-learn {sklearn.__version__}, "
        f"torch {torch.__version__}, hdnn {hdnn.__version__}, {torch.get_num_threads()} thread\n"
    )
    print("| data | rows x features, classes | " + " | ".join(ESTIMATORS) + " |")
    print("| --- | --- |" + " --- |" * len(ESTIMATORS))
    for name, load in DATA.items():
        X, y = load(return_X_y=True)
        cells = []
        for estimator in ESTIMATORS.values():
            scores, seconds = measure(estimator, X, y)
            mean, spread = 100 * scores.mean(), 100 * scores.std()
            cells.append(f"{mean:.1f} +- {spread:.1f} %, {np.median(seconds):.2f} s")
        shape = f"{X.shape[0]} x {X.shape[1]}, {len(np.unique(y))}"
        print(f"| {name} | {shape} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
