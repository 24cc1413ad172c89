"""Something to look at: a report of a run, an animation of depth, charts for the terminal.

`hdnn.report(model, X, y)` is the report of a model; the package itself is callable, so that the
room and the function share their name whichever is imported first.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from hdnn.report.build import Report, report, report_of_run

__all__ = ["Report", "report", "report_of_run"]


class _Callable(types.ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Report:
        return report(*args, **options)


sys.modules[__name__].__class__ = _Callable
