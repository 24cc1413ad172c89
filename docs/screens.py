"""The screens of docs/look.md, at 80 columns: ``python docs/screens.py``, or with names of screens.

Every command is executed as on a terminal, in a temporary folder, and what it shows is written as
SVG to docs/figures/screens.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

FOLDER = Path(__file__).parent / "figures" / "screens"
WIDTH = 80
SCREENS = {
    "hdnn": "hdnn",
    "train-help": "hdnn train --help",
    "train": "hdnn train iris --out run",
    "error": "hdnn train irsi",
    "predict": "hdnn predict run new.csv --out predictions.csv",
    "evaluate": "hdnn evaluate run",
    "demo": "hdnn demo",
    "identify": "hdnn identify two-tanks --states 2 --out tanks",
}
"""What is shown, by the name of its file, in the order of execution."""

MAIN = "from hdnn.cli import app; app(prog_name='hdnn')"
NEW = """\
sepal length (cm),sepal width (cm),petal length (cm),petal width (cm)
5.1,3.5,1.4,0.2
6.3,3.3,6.0,2.5
5.8,2.7,4.1,1.0
"""


def shown(command: str, folder: Path) -> str:
    """What a command shows on a terminal, with its colors."""
    terminal = {"FORCE_COLOR": "1", "TTY_INTERACTIVE": "0", "TERM": "xterm-256color"}
    size = {"COLUMNS": str(WIDTH), "TERMINAL_WIDTH": str(WIDTH), "LINES": "200"}
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *shlex.split(command)[1:]],
        cwd=folder,
        env={**os.environ, **terminal, **size, "PYTHONUTF8": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    return done.stdout.strip("\n")


def write(name: str, command: str, text: str) -> None:
    """Write a screen as SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), legacy_windows=False)
    console.print(Text(f"$ {command}", style="bold"))
    console.print(Text.from_ansi(text))
    svg = console.export_svg(title="hdnn", unique_id=f"{name}-{WIDTH}")
    svg = re.sub(r"@font-face {.*?}\s*", "", svg, flags=re.DOTALL)  # nothing is fetched
    (FOLDER / f"{name}-{WIDTH}.svg").write_text(svg, encoding="utf-8")


def main(names: list[str]) -> None:
    """Write the screens of these names, or all; those of a run need that of its training."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "new.csv").write_text(NEW)
        for name in names or SCREENS:
            write(name, SCREENS[name], shown(SCREENS[name], Path(folder)))


if __name__ == "__main__":
    main(sys.argv[1:])
