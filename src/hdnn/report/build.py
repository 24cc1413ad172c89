"""From a run or a model to a report: one self-contained HTML page."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdnn.errors import HdnnError
from hdnn.files import atomic
from hdnn.models import Model
from hdnn.report import collect
from hdnn.report.page import render


@dataclass(frozen=True)
class Report:
    """A page that opens from disk, without a network or a server.

    Args:
        html: the page.

    >>> import tempfile, pathlib, hdnn
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "report.html"
    >>> _ = hdnn.report.Report("<!doctype html><title>a report</title>").save(path)
    >>> path.read_text().startswith("<!doctype html>")
    True
    """

    html: str

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, atomically.

        Args:
            path: the file to write.

        Returns:
            The path.
        """
        check_page_path(path)
        with atomic(path) as temporary:
            temporary.write_text(self.html, encoding="utf-8")
        return Path(path)

    def _repr_html_(self) -> str:
        page = html.escape(self.html, quote=True)
        return (
            f'<iframe srcdoc="{page}" title="hdnn report" '
            'style="width:100%;height:720px;border:1px solid #8884"></iframe>'
        )


def check_page_path(path: str | os.PathLike[str]) -> None:
    """Raise `HdnnError` where no page can be written."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise HdnnError(f"{str(path)[-200:]!r} is no page: its name must end in .html")
    if not Path(path).absolute().parent.is_dir():
        raise HdnnError(f"there is no folder {Path(path).parent} to write {Path(path).name} to")


def report(
    model: Model,
    X: Any,
    y: Any,
    *,
    plain: Model | None = None,
    name: str = "",
    lead: tuple[str, str] | None = None,
) -> Report:
    """A report of a model on data, for a notebook or a file.

    Args:
        model: the trained model.
        X, y: data to show it on, arrays or tensors; ``y`` holds labels, or values.
        plain: a trained plain network to show beside it.
        name: of the data, for the title.
        lead: a title and a sentence of your own; the page then begins with the slider.

    Returns:
        The page; a notebook shows it, ``.save(path)`` writes it.

    Raises:
        HdnnError: the data do not fit the model.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=8, T=1.0)
    >>> model = hdnn.Model(net, 1, hdnn.Augmentation(2, 4))
    >>> page = report(model, torch.randn(20, 2), torch.arange(20) % 2)
    >>> page.html.startswith("<!doctype html>")
    True
    """
    return Report(render(collect.of_model(model, X, y, name, plain, lead)))


def report_of_run(folder: str | os.PathLike[str]) -> Report:
    """A report of a run folder, finished or not.

    Args:
        folder: with a run of `hdnn train`.

    Returns:
        The report; `Report.save` writes it.

    Raises:
        HdnnError: the folder is not a run, or its data are missing.

    >>> import hdnn
    >>> try:
    ...     hdnn.report.report_of_run("no-such-folder")
    ... except hdnn.HdnnError:
    ...     print("there is no run")
    there is no run
    """
    return Report(render(collect.of_run(Path(folder))))
