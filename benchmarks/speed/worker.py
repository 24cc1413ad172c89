"""Works in processes with interpreters of their own, which take turns with those of this process.

A worker reads JSON lines: first the description of a work, which it prepares, then numbers of
calls, which it answers with the seconds that they take. This file needs the standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from speed.timing import Work

Record = dict[str, Any]


class Worker:
    """A process that runs ``python -m module``, whose main function calls `serve`.

    Args:
        python: the interpreter.
        module: below `benchmarks`.
        environment: variables to set.
    """

    def __init__(self, python: str, module: str, **environment: str) -> None:
        self.python = python
        # PYTHONPATH would give another interpreter the packages of this one.
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [os.path.abspath(python), "-m", module],
            cwd=Path(__file__).parent.parent,
            env=inherited | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, request: Any) -> Any:
        """One line there, one line back.

        Raises:
            EOFError: the worker failed; its traceback is on stderr.
        """
        print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise EOFError(f"{self.python} ended with exit code {self._process.wait()}")
        return json.loads(line)

    def work(self, calls: int) -> float:
        """A `Work`: what was asked for first."""
        return self.ask(calls)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()  # closes its input, which ends it


def serve(prepare: Callable[[Record], tuple[Work, Record]]) -> None:
    """Answer until the input ends; `prepare` gives a work and what to answer first."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    work, answer = prepare(json.loads(sys.stdin.readline()))
    print(json.dumps(answer), file=answers, flush=True)
    for calls in sys.stdin:
        print(work(int(calls)), file=answers, flush=True)
