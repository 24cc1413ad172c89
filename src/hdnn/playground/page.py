"""The page as one file: its styles, scripts and data in one HTML text, which opens from disk.

Browsers load neither modules nor workers from files, so the modules in `static/js` become one
classic script: each a function, called in the order of the imports, that returns its exports. The
page's workers run the same script.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import NamedTuple

from hdnn.errors import HdnnError

FOLDER = Path(__file__).parent / "static"
"""The sources of the page."""

ENTRY = "main.js"

_IMPORT = re.compile(r'^import (\* as \w+|\{[\w\s,]+\}) from "\./(\w+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?:const|let|class|function|async function) (\w+)", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*|^(?!\s*(?:\*|//)).*\bimport[.(].*", re.MULTILINE)


class Page(NamedTuple):
    """The page.

    Args:
        html: all of it.
        policy: what it may do, for a Content-Security-Policy header; the page says the same.
    """

    html: str
    policy: str


def make_page() -> Page:
    """Put the page together from its sources.

    Returns:
        The page.

    Raises:
        HdnnError: a source has what the bundler does not understand.
    """
    style = "\n".join(_read(name) for name in ("theme.css", "style.css"))
    script = bundle({path.name: _read(f"js/{path.name}") for path in (FOLDER / "js").glob("*.js")})
    # Nothing but these two texts is run, and nothing is asked for: not even from where it lies.
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; worker-src blob:; connect-src 'none'; base-uri 'none'; form-action 'none'"
    )
    page = _read("index.html")
    parts = {"policy": policy, "style": style, "script": script}
    for mark, text in {**parts, "controllers": _read("controllers.json")}.items():
        if page.count(f"{{{{{mark}}}}}") != 1:
            raise HdnnError(f"index.html must have {{{{{mark}}}}} once")
        page = page.replace(f"{{{{{mark}}}}}", text)
    return Page(page, policy)


def bundle(modules: dict[str, str], entry: str = ENTRY) -> str:
    """Modules as one classic script.

    Args:
        modules: their texts by file name, formatted as Biome does.
        entry: the one that is run; those that it does not import are left out.

    Returns:
        The script.

    Raises:
        HdnnError: an import or export has another form than ``import { a, b } from "./x.js";``,
            ``import * as x from "./x.js";`` and ``export`` before a declaration, a module is
            missing, or modules import each other in a circle.
    """
    done: dict[str, str] = {}

    def add(name: str, importers: tuple[str, ...] = ()) -> None:
        if name in importers:
            raise HdnnError(f"modules import each other: {' -> '.join((*importers, name))}")
        if name in done:
            return
        if name not in modules:
            raise HdnnError(f"{importers[-1]} imports {name}, which does not exist")
        text = modules[name]
        for _, source in _IMPORT.findall(text):
            add(source, (*importers, name))
        exports = ", ".join(_EXPORT.findall(text))
        text = _IMPORT.sub(lambda match: _constant(match[1], match[2]), text)
        text = _EXPORT.sub(lambda match: match[0].removeprefix("export "), text)
        if other := _OTHER.search(text):
            raise HdnnError(f"{name}: cannot bundle {other[0]!r}")
        if "</script" in text.lower() or "<!--" in text:
            raise HdnnError(f"{name}: </script and <!-- cannot stand in a page's script")
        done[name] = f"const ${name[:-3]} = (() => {{\n{text}return {{ {exports} }};\n}})();\n"

    add(entry)
    return '"use strict";\n' + "\n".join(done.values())


def _constant(names: str, source: str) -> str:
    """An import as a constant: the exports of a module are the value of its function."""
    if names.startswith("*"):
        return f"const {names.removeprefix('* as ')} = ${source[:-3]};"
    return f"const {names} = ${source[:-3]};"


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
