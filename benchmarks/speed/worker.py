"""Works in processes with interpreters of their own, which take turns with those of this process.

A worker reads JSON lines: a description of a work, which it prepares, or ``{"calls": 3}``, which it
answers with the seconds that so many calls take. This file needs the standard library only.
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
HERE = Path(__file__).parent.parent


def own_environment() -> dict[str, str]:
    """For another interpreter: PYTHONPATH would give it the packages of this one."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


class WorkerError(RuntimeError):
    """What a worker could not do."""


class Worker:
    """A process that runs ``python -m module``, whose main function calls `serve`.

    Args:
        python: the interpreter.
        module: below `benchmarks`.
        environment: variables to set.
    """

    def __init__(self, python: str, module: str, **environment: str) -> None:
        self.python = python
        self._process = subprocess.Popen(
            [os.path.abspath(python), "-m", module],
            cwd=HERE,
            env=own_environment() | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, request: Record) -> Record:
        """One line there, one line back."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(request), file=process.stdin, flush=True)
        line = process.stdout.readline()
        if not line:
            raise WorkerError(f"{self.python} ended with exit code {process.wait()}")
        answer: Record = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def work(self, calls: int) -> float:
        """A `Work`: what was asked for last."""
        return float(self.ask({"calls": calls})["seconds"])

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def serve(prepare: Callable[[Record], tuple[Work, Record]]) -> None:
    """Answer requests until the input ends; `prepare` gives a work and what to answer."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    work: Work | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "calls" in request:
                assert work is not None
                answer = {"seconds": work(request["calls"])}
            else:
                work, answer = prepare(request)
        except Exception as error:  # the parent decides what it means
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
