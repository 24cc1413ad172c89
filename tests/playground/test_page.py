"""The playground as one file: modules become one script, which Node runs as a worker does."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess

import pytest

from hdnn.errors import HdnnError
from hdnn.playground import make_page
from hdnn.playground.page import bundle
from javascript import NODE, needs_node, run


def node(script: str) -> str:
    """What a classic script prints."""
    assert NODE is not None
    done = subprocess.run([NODE, "-"], input=script, capture_output=True, text=True, check=True)
    return done.stdout


def script_of(html: str) -> str:
    found = re.search(r'<script id="script">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return found[1]


@needs_node
def test_modules_run_once_in_the_order_of_their_imports_with_names_of_their_own() -> None:
    modules = {
        "main.js": 'import { b } from "./b.js";\nimport * as c from "./c.js";\n'
        'import {\n  d,\n  E,\n} from "./d.js";\nconsole.log(b, c.c(), d, new E().x);\n',
        "b.js": 'import { d } from "./d.js";\nconst own = "b";\nexport const b = own + d;\n',
        "c.js": 'import { d } from "./d.js";\nconst own = "c";\n'
        "export function c() {\n  return own + d;\n}\n",
        "d.js": 'console.log("once");\nexport const d = "d";\nexport class E {\n  x = 1;\n}\n',
        "unused.js": "throw new Error();\n",
    }
    assert node(bundle(modules)).split() == ["once", "bd", "cd", "d", "1"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('import d from "./d.js";', "cannot bundle 'import d"),
        ('import "./d.js";', "cannot bundle"),
        ('import { a as b } from "elsewhere";', "cannot bundle"),
        ("export default 1;", "cannot bundle 'export default 1;'"),
        ("export { a };", "cannot bundle"),
        ("export const { a } = b;", "cannot bundle"),
        ("const a = import.meta.url;", "cannot bundle"),
        ('  import("./d.js");', "cannot bundle"),
        ('const a = "</SCRIPT>";', "</script"),
        ('import { a } from "./missing.js";', "main.js imports missing.js"),
        ('import { a } from "./loop.js";', "main.js -> loop.js -> main.js"),
    ],
)
def test_what_the_bundler_does_not_understand_raises(text: str, words: str) -> None:
    loop = 'import { a } from "./main.js";\n'
    with pytest.raises(HdnnError, match=re.escape(words)):
        bundle({"main.js": f"{text}\n", "loop.js": loop, "d.js": ""})


def test_the_page_needs_nothing_else_and_runs_nothing_else() -> None:
    html, policy = make_page()
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', html) == []
    assert f'http-equiv="Content-Security-Policy" content="{policy}"' in html
    for kind in ("script", "style"):
        # Data is a script of another type, which is not run.
        (text,) = re.findall(rf'<{kind}(?: id="script")?>(.*?)</{kind}>', html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


@needs_node
def test_the_script_of_the_page_trains_as_its_modules_do() -> None:
    points = [0.0, 0.1, 1.0, 0.9, 0.2, 0.0, 0.7, 1.0]
    data = {"points": points, "labels": [0, 1, 0, 1], "classes": 2}
    given = {"architecture": "H1", "width": 4, "layers": 8, "T": 1.0, "seed": 3}
    config = {"learningRate": 0.02, "decay": 300, "batch": 4, "alpha": 0, "alphaC": 0.01}
    config |= {"method": "joint", "seed": 0}
    start = {"type": "start", "number": 1, "network": given, "config": config}
    start |= {"train": data, "test": data, "bounds": {"x": 0, "y": 0, "side": 1}}
    printed = node(
        "const sent = []; globalThis.postMessage = (message) => sent.push(message);\n"
        f"{script_of(make_page().html)}\n"
        f"const start = {json.dumps(start)};"
        "for (const part of [start.train, start.test]) Object.assign(part,"
        "{ points: Float32Array.from(part.points), labels: Int32Array.from(part.labels) });"
        "onmessage({ data: start });"
        'for (let i = 0; i < 3; i++) onmessage({ data: { type: "step" } });'
        "console.log(JSON.stringify(sent.map((s) => [s.iteration, s.loss]))); process.exit();"
    )
    batches = [[0, 1, 2, 3]] * 3
    case = {"task": "training", "network": given, "config": config, "batches": batches, **data}
    (modules,) = run([case])
    iterations, losses = zip(*json.loads(printed), strict=True)
    assert iterations == (0, 1, 2, 3)
    assert losses[1:] == pytest.approx(modules["loss"], rel=1e-9)
