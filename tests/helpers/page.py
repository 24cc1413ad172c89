"""A page as a browser reads it: elements, tables, and the words of a report."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder

VOID = ("meta", "link", "input", "img", "br")


class _Reader(HTMLParser):
    """Builds a tree; every element must be closed by its own tag."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = TreeBuilder()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tree.start(tag, {name: value or "" for name, value in attrs})
        if tag in VOID:
            self.tree.end(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.tree.end(tag).tag == tag

    def handle_data(self, data: str) -> None:
        self.tree.data(data)


def text_of(element: Element) -> str:
    """All text inside an element, with single spaces."""
    return " ".join("".join(element.itertext()).split())


class Page:
    """A report.

    Args:
        html: the page.
    """

    def __init__(self, html: str) -> None:
        reader = _Reader()
        reader.feed(html)
        reader.close()
        self.root: Element = reader.tree.close()
        kinds = ("script", "style")
        self.words = " ".join(
            " ".join(t.split())
            for element in self.root.iter()
            for t in (element.tag not in kinds and element.text, element.tail)
            if t and t.strip()
        )

    def all(self, path: str) -> list[Element]:
        """Elements by a path such as ``table[@class='confusion']``, wherever they are."""
        return self.root.findall(f".//{path}")

    def texts(self, path: str) -> list[str]:
        """What `all` elements say."""
        return [text_of(element) for element in self.all(path)]

    def table(self, path: str) -> list[list[str]]:
        """The cells of the only table at a path, row by row."""
        (table,) = self.all(path)
        return [[text_of(cell) for cell in row if cell.tag != "i"] for row in table.iter("tr")]

    @property
    def sections(self) -> list[str]:
        return [section.attrib["id"] for section in self.all("section")]

    @property
    def scene(self) -> dict[str, Any]:
        """The numbers of the slider."""
        (script,) = self.all("script[@id='scene']")
        scene: dict[str, Any] = json.loads(script.text or "")
        return scene
