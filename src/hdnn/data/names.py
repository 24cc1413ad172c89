"""Columns are found by name: what happens when a name is absent, or there twice."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence

from hdnn.data.reading import cut, short
from hdnn.errors import HdnnError, unknown_name

MOST_SHOWN, MOST_COLUMNS = 30, 100_000


def find(names: Sequence[str], name: str, where: str) -> int:
    """The position of a column, or an error that names the nearest one."""
    count = names.count(name) if isinstance(name, str) else 0
    if count == 1:
        return names.index(name)
    if count:
        raise _repeated(where, name, count)
    kind, known = f"column of {where}", list(names)
    if len(known) > MOST_SHOWN:
        kind = f"{kind} ({len(known)} columns, of which the nearest are shown)"
        known = difflib.get_close_matches(str(name), names, n=MOST_SHOWN, cutoff=0.0)
    raise unknown_name(kind, name, map(cut, known))


def _repeated(where: str, name: str, count: int) -> HdnnError:
    return HdnnError(f"{where}: {count} columns are named {short(name)}; rename all but one")


def refuse_many(where: str, count: int) -> None:
    """Raise an error where there are more columns than any network could read."""
    if count > MOST_COLUMNS:
        raise HdnnError(
            f"{where} has {count} columns, and at most {MOST_COLUMNS} are read; remove some, or, "
            "if its columns are samples, transpose it"
        )


def refuse_duplicates(where: str, names: Sequence[str]) -> None:
    """Raise an error where a column has no name or the name of another."""
    for position, name in enumerate(names):
        if not name:
            raise HdnnError(
                f"{where}: column {position + 1} has no name; name it or remove it (pandas writes "
                "such a column unless told to_csv(..., index=False))"
            )
    for name, count in Counter(names).items():
        if count > 1:
            raise _repeated(where, name, count)
