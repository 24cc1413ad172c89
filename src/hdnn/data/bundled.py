"""The small data sets that come with scikit-learn, as tables."""

from __future__ import annotations

import numpy as np

from hdnn.data.tables import Table, read_table
from hdnn.errors import optional, unknown_name

BUNDLED: dict[str, str] = {
    "iris": "load_iris",
    "wine": "load_wine",
    "breast-cancer": "load_breast_cancer",
    "digits": "load_digits",
    "diabetes": "load_diabetes",
}
"""The names of the data sets, and scikit-learn's functions."""


def bundled(name: str) -> Table:
    """A data set of scikit-learn, with its names of features and classes; needs no network.

    Args:
        name: "iris", "wine", "breast-cancer", "digits" or "diabetes", in any case, with - or _.

    Returns:
        Features, target and class names.

    Raises:
        HdnnError: no data set has this name.

    >>> bundled("iris")
    Table(150 rows, 4 features, 3 classes in 'target')
    >>> bundled("iris").classes
    ('setosa', 'versicolor', 'virginica')
    """
    key = str(name).lower().replace("_", "-")
    if key not in BUNDLED:
        raise unknown_name("bundled data set", name, BUNDLED)
    data = getattr(optional("sklearn.datasets", "app"), BUNDLED[key])()
    columns = dict(zip(map(str, data.feature_names), data.data.T, strict=True))
    if "target_names" not in data:
        return read_table({**columns, "target": data.target}, "target", task="regression")
    labels = np.asarray(data.target_names)[data.target]
    return read_table({**columns, "target": labels}, "target", task="classification")
