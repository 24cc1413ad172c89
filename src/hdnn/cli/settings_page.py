"""The tables of docs/settings.md: ``python -m hdnn.cli.settings_page docs/settings.md``."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from hdnn.estimators import HDNNClassifier
from hdnn.estimators.settings import PARAMETERS
from hdnn.training.run_config import PRESET, TABLES
from hdnn.training.schema import Setting, settings_of
from hdnn.training.settings import ImageModelConfig

RECORDS = {**TABLES, "images": ImageModelConfig}


def fill(page: str) -> str:
    """Put the tables between the markers ``<!-- settings: NAME -->`` and ``<!-- end -->``.

    Args:
        page: Markdown.

    Returns:
        The page with the tables as the settings are defined now.
    """
    return re.sub(
        r"(<!-- settings: (\w+) -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}{_table(match[2])}{match[3]}",
        page,
        flags=re.DOTALL,
    )


def _table(name: str) -> str:
    if name == "estimators":
        return _estimators()
    settings = settings_of(RECORDS[name])
    return _settings((PRESET, *settings) if name == "images" else settings)


def _settings(settings: tuple[Setting, ...]) -> str:
    rows = [("Setting", "Flag", "Default", "Allowed", "Meaning")]
    for s in settings:
        flags = ", ".join(f"`{flag}`" for flag in s.flags)
        rows.append((f"`{s.name}`", flags, s.default_text, s.allowed, s.help))
    return _markdown(rows)


def _estimators() -> str:
    rows = [("Parameter", "Setting", "Default", "Why it is not the setting's")]
    signature = inspect.signature(HDNNClassifier).parameters
    for name, parameter in PARAMETERS.items():
        default = signature[name].default
        rows.append((f"`{name}`", f"`{parameter.setting}`", f"{default}", parameter.why))
    return _markdown(rows)


def _markdown(rows: Sequence[tuple[str, ...]]) -> str:
    head, *rest = ("| " + " | ".join(cells) + " |\n" for cells in rows)
    return head + "|" + " --- |" * len(rows[0]) + "\n" + "".join(rest)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(fill(path.read_text(encoding="utf-8")), encoding="utf-8")
