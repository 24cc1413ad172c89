"""How the site is built: `make docs`."""

import importlib
import os
import re
import subprocess
import sys
import tomllib
import types
import typing
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import api_pages
from docutils import nodes
from sphinx.addnodes import download_reference

ROOT = Path(__file__).parents[1]
api_pages.write(ROOT / "docs" / "api")

project = "hdnn"
author = "the hdnn contributors"
copyright = "2026, the hdnn contributors"
version = release = installed_version("hdnn")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
html_static_path = ["_static"]
templates_path = ["_templates"]  # classes list their own methods, not those of nn.Module
html_theme = "furo"
html_title = f"hdnn {version}"
html_css_files = ["site.css"]
html_show_sphinx = False
smartquotes = False  # a prime of an equation stays a prime
html_search_scorer = str(ROOT / "docs" / "search.js")
mathjax_path = "mathjax/tex-svg.js"
html_favicon = "_static/favicon.svg"
with (ROOT / "pyproject.toml").open("rb") as _file:
    REPOSITORY = tomllib.load(_file)["project"]["urls"]["Repository"]
html_theme_options = {"top_of_page_buttons": []}
if "OWNER" not in REPOSITORY:  # until somebody hosts it, no link leads there
    html_theme_options = {
        "source_repository": REPOSITORY,
        "source_branch": "main",
        "source_directory": "docs/",
        "footer_icons": [
            {"name": "Repository", "url": REPOSITORY, "html": "repository", "class": ""}
        ],
    }

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

# Tutorials run when the site is built; what has not changed comes from the cache.
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build" / "jupyter_cache")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
suppress_warnings = ["ref.ref"]  # labels of scikit-learn, in docstrings that are inherited

# Named, since a build that adds a page would not find it among the pages of the last build.
autosummary_generate = [f"api/{page}.rst" for page in api_pages.PAGES]
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # attributes of a docstring are not described twice

# Links into the documentation of other projects need the network when the site is built.
if os.environ.get("DOCS_ONLINE"):
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "sklearn": ("https://scikit-learn.org/stable", None),
    }
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


KEYWORDS = {
    "choosing": ["activation", "depth", "number of layers"],
    "control": ["controller", "passivity", "robots"],
    "devices": ["CUDA", "GPU", "threads"],
    "export": ["C code", "deploy", "microcontroller", "ONNX"],
    "extending": ["custom architecture", "energy", "scheme"],
    "faq": ["diverged", "NaN", "overfitting"],
    "gradients": ["exploding gradients", "vanishing gradients"],
    "identify": ["recording", "system identification", "time series"],
    "images": ["convolution", "MNIST"],
    "look": ["plots", "playground", "report"],
    "performance": ["memory", "mixed precision", "speed"],
    "pytorch": ["batch norm", "dropout", "optimizer", "training loop"],
    "reliability": ["checkpoint", "resume"],
    "settings": ["batch size", "early stopping", "epochs", "learning rate", "weight decay"],
    "tables": ["categories", "class weights", "CSV", "dates", "missing values", "scikit-learn"],
    "teach": ["exercises", "lesson"],
    "testing": ["reversible", "symplectic"],
}
"""What people search for, by the page that answers it."""

NO_TYPE = "\\ "
"""Shows nothing; without it, Napoleon takes the text before a colon for a type."""


def _as_rst(app, what, name, obj, options, lines):
    """Show indented equations as they stand, |x| as a norm and name_ as a name, not as markup."""
    written, literal, example = [], False, False
    for line in lines:
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        indented = line.startswith("    ")
        begins = (
            indented and len(written) > 1 and not written[-1] and written[-2][:1] not in ("", " ")
        )
        if begins:
            written += [".. code-block:: text", ""]
        literal = begins or (literal and (indented or not line))
        if not literal and not example:
            line = re.sub(r"^(    \w+)_:", r"\1\_:", line.replace("|", r"\|"))
        if ":" in line and written[-1:] in (["Returns:"], ["Yields:"]):
            written.append(f"    {NO_TYPE}")
        written.append(line)
    if what in ("attribute", "data", "property") and lines and ":" in lines[0]:
        written.insert(0, NO_TYPE)
    lines[:] = written


def _settings(app, what, name, obj, options, lines):
    """The arguments of a settings record are described where they are defined."""
    if what != "class" or not hasattr(obj, "__pydantic_fields__"):
        return
    lines += [
        "",
        "Args:",
        *(
            f"    {k} ({_type(s.annotation)}): {s.description}"
            for k, s in obj.__pydantic_fields__.items()
        ),
        "",
    ]


def _type(annotation):
    """The name of a type without its range: int, float | None."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return " | ".join(map(_type, typing.get_args(annotation)))
    if typing.get_origin(annotation) is typing.Annotated:
        return _type(typing.get_args(annotation)[0])
    return "None" if annotation is types.NoneType else annotation.__name__


def _adapt(app, page, source):
    """Change a page for the site; on a code host it stays as it is.

    A page of results/ is a page of the site, too. The empty line at the end of an example, which
    doctest needs there, is not shown. Below the title come the words by which the search finds a
    page first.
    """
    if page in KEYWORDS:
        entries = ", ".join(f"! {words}" for words in KEYWORDS[page])
        index = f"\n```{{index}} {entries}\n```\n"
        source[0] = re.sub(r"^# .*\n", lambda m: m[0] + index, source[0], count=1, flags=re.M)
    source[0] = re.sub(r"(^```python\n>>>.*?)\n+```$", r"\1\n```", source[0], flags=re.M | re.S)
    source[0] = re.sub(
        r"\]\(\.\./results/(\w+)(?:/README\.md|/figure2\.md)?(#[\w-]+)?\)",
        lambda m: f"](results/{m[1]}.md{m[2] or ''})",
        source[0],
    )


def _notebook(app, doctree):
    """Below the title of a tutorial, a link to the notebook that myst_nb makes of it."""
    page = app.env.docname
    if page.startswith("tutorials/") and page != "tutorials/index":
        file = Path(app.env.mystnb_config.output_folder) / f"{page}.ipynb"
        target = "/" + os.path.relpath(file, app.srcdir)
        words = "Download this page as a notebook"
        link = download_reference("", words, reftarget=target, refdoc=page)
        title = next(iter(doctree.findall(nodes.title)))
        title.parent.insert(1, nodes.paragraph("", "", link))


def _samples(app, error):
    """What the landing page shows besides pages: the playground, and a report made by the demo."""
    if error or app.builder.name != "html":
        return
    from hdnn.playground import make_page

    folder = Path(app.outdir)
    (folder / "play").mkdir(exist_ok=True)
    (folder / "play" / "index.html").write_text(make_page().html, encoding="utf-8")
    sample = folder / "samples" / "demo.png"
    if not sample.exists():
        sample.parent.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "hdnn", "demo", "--epochs", "25", "--out", str(sample)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _mathjax(app, error):
    """The one file that renders equations, without a network and also from disk."""
    if error or app.builder.name != "html":
        return
    package = Path(importlib.import_module("sphinx-mathjax-offline").__file__).parent
    target = Path(app.outdir) / "_static" / mathjax_path
    target.parent.mkdir(exist_ok=True)
    target.write_bytes((package / "static" / mathjax_path).read_bytes())


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _settings, priority=90)
    app.connect("autodoc-process-docstring", _as_rst, priority=100)  # before Napoleon
    app.connect("source-read", _adapt)
    app.connect("build-finished", _samples)
    app.connect("build-finished", _mathjax)
    app.connect("doctree-read", _notebook, priority=400)  # before Sphinx collects downloads
