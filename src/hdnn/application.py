"""The packages of the extra `app`. Whatever is not the core imports this module first.

So a missing package is named together with its remedy, wherever a user comes in.
"""

from __future__ import annotations

from importlib.util import find_spec

from hdnn.errors import MissingPackageError

PACKAGES = {
    "PIL": "pillow",
    "filelock": "filelock",
    "jinja2": "jinja2",
    "joblib": "joblib",
    "matplotlib": "matplotlib",
    "pandas": "pandas",
    "pooch": "pooch",
    "pydantic": "pydantic",
    "rich": "rich",
    "sklearn": "scikit-learn",
    "typer": "typer",
}
"""What they are called in Python, and where they are installed from."""

_missing = [name for module, name in PACKAGES.items() if find_spec(module) is None]
if _missing:
    raise MissingPackageError(
        "the command line, estimators, data, training, figures and reports need "
        f"{', '.join(_missing)}: pip install 'hdnn[app]'"
    )
