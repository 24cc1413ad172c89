"""Columns are found by name: what happens when a name is absent, or there twice."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from hdnn.errors import HdnnError, unknown_name

MOST_SHOWN = 30


def find(names: Sequence[str], name: str, where: str) -> int:
    """The position of a column, or an error that names the nearest one."""
    count = names.count(name) if isinstance(name, str) else 0
    if count == 1:
        return names.index(name)
    if count:
        raise HdnnError(f"{where}: {count} columns are named {name!r}; rename all but one")
    kind, known = f"column of {where}", list(names)
    if len(known) > MOST_SHOWN:
        kind = f"{kind} ({len(known)} columns, of which the nearest are shown)"
        known = difflib.get_close_matches(str(name), names, n=MOST_SHOWN, cutoff=0.0)
    raise unknown_name(kind, name, known)


def refuse_duplicates(where: str, names: Sequence[str]) -> None:
    """Raise an error where a column has no name or the name of another."""
    for position, name in enumerate(names):
        if not name:
            raise HdnnError(
                f"{where}: column {position + 1} has no name; name it or remove it (pandas writes "
                "such a column unless told to_csv(..., index=False))"
            )
    if len(set(names)) < len(names):
        for name in names:
            find(names, name, where)
