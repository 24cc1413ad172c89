"""The pages: links lead somewhere, and every page can be reached."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import hdnn

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(p for p in DOCS.rglob("*.md") if "api" not in p.relative_to(DOCS).parts)
TEXTS = [*sorted(ROOT.glob("*.md")), *PAGES, *sorted((ROOT / "results").glob("*/*.md"))]
LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```+|~~~+).*?^\1", re.MULTILINE | re.DOTALL)


def _prose(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def _links(path: Path) -> list[tuple[Path, str]]:
    """Files that a page links to, each with the anchor, which may be empty."""
    links = (link.partition("#") for link in LINK.findall(_prose(path)) if "://" not in link)
    return [((path.parent / file).resolve() if file else path, part) for file, _, part in links]


def _anchors(path: Path) -> set[str]:
    """The anchors of headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", _prose(path), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = [
        f"{target.name}#{anchor}"
        for target, anchor in _links(page)
        if not target.exists() or (anchor and anchor not in _anchors(target))
    ]
    assert not broken


def test_tests_that_pages_name_exist() -> None:
    names = {
        name for page in TEXTS for name in re.findall(r"`(tests/[\w/]+\.py)", page.read_text())
    }
    assert names
    assert [name for name in sorted(names) if not (ROOT / name).exists()] == []


def test_the_repository_has_one_address() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project["urls"]["Repository"]
    for page in ("README.md", "CITATION.cff"):
        assert address in (ROOT / page).read_text(encoding="utf-8"), page


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == hdnn.__version__
    assert f"\nversion: {hdnn.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_workflow_runs_what_must_pass_before_a_merge() -> None:
    targets = re.findall(r"^make ([\w-]+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    runs = " ".join(re.findall(r"run: (.+)", workflow)).replace("pytest", "make test-all")
    assert targets
    assert [target for target in targets if not re.search(rf"make [\w -]*\b{target}\b", runs)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_line_is_a_comment_by_accident(page: Path) -> None:
    # MyST drops lines that begin with a percent sign, as after a number at the end of a line.
    assert not re.findall(r"^\s*% .*", _prose(page), re.MULTILINE)
