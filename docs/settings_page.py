"""The tables of docs/settings.md: ``python docs/settings_page.py``."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

from hdnn.config import LARGEST_INTEGER, TABLES, Config, all_settings
from hdnn.estimators import MODEL, STOPPING, TRAINING, HDNNClassifier
from hdnn.paper.summaries import fill, markdown

PAGE = Path(__file__).with_name("settings.md")


def filled(page: str) -> str:
    """A page with the tables as the settings are defined now."""
    names = re.findall(r"<!-- settings: (\w+) -->", page)
    return fill(page, {f"settings: {name}": _table(name) for name in names})


def _table(name: str) -> str:
    if name == "estimators":
        return _estimators()
    heads, rows = ["Setting", "Flag", "Default", "Range", "Meaning"], []
    for each in all_settings():
        if each.table == ("" if name == "protocol" else name):
            default = each.depends or (
                "" if each.default in (None, ()) else json.dumps(each.default).strip('"')
            )
            flag = f"`{each.flag}`" if each.flag else ""
            rows.append((f"`{each.name}`", flag, default, _range(each.table, each.name), each.help))
    return markdown(heads, rows)


def _range(table: str, name: str) -> str:
    """The bounds of a number, also of one that may be missing or a list."""
    schema = TABLES.get(table, Config).model_json_schema()["properties"][name]
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    return ", ".join(
        f"{sign} {part[key]:g}"
        for part in schema.get("anyOf", [schema])
        for key, sign in signs.items()
        if key in part and part[key] != LARGEST_INTEGER
    )


def _estimators() -> str:
    heads, rows = ["Parameter", "Setting", "Default"], []
    defaults = inspect.signature(HDNNClassifier).parameters
    for parameter, setting in {**MODEL, **TRAINING, **STOPPING}.items():
        rows.append((f"`{parameter}`", f"`{setting}`", f"{defaults[parameter].default}"))
    return markdown(heads, rows)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
