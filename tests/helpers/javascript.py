"""The playground's modules, run by Node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hdnn.playground import FOLDER

RUNNER = Path(__file__).parents[1] / "playground" / "engine.mjs"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(
    NODE is None and "HDNN_CI" not in os.environ, reason="Node 20 or later runs the engine"
)


def run(cases: list[dict[str, Any]]) -> list[Any]:
    """The results of tasks of `engine.mjs`."""
    assert NODE is not None
    done = subprocess.run(
        [NODE, str(RUNNER), str(FOLDER)],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=True,
    )
    results: list[Any] = json.loads(done.stdout)
    return results
