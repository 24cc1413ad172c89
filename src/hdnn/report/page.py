"""The page of a report: sections in order, from Jinja2 templates.

A new section is a function of `sections` and a template of its name, listed in `SECTIONS`.
"""

from __future__ import annotations

from importlib.metadata import version

from jinja2 import Environment, PackageLoader, StrictUndefined

from hdnn.models import Model
from hdnn.plots import DARK, LIGHT
from hdnn.report import sections, words
from hdnn.report.collect import Material

SECTIONS = ("results", "learning", "flow", "gradients", "certificate", "repeat")
LEADING = ("flow", "gradients", "results", "learning", "certificate", "repeat")
"""The order of a page with a lead."""


def render(material: Material) -> str:
    """The page of what was collected."""
    environment = Environment(
        loader=PackageLoader("hdnn.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["short"] = words.shortened
    environment.filters["math"] = words.math
    environment.filters["typeset"] = words.typeset
    found = {name: getattr(sections, name)(material) for name in SECTIONS}
    title = words.title(material.model, material.name)
    return environment.get_template("report.html.j2").render(
        title=title if material.lead is None else material.lead[0],
        subtitle=None if material.lead is None else title,
        lead=None if material.lead is None else material.lead[1],
        headline=words.headline(material.metrics),
        notices=material.notices,
        facts=_facts(material),
        order=[name for name in (LEADING if material.lead else SECTIONS) if found[name]],
        themes={"light": LIGHT, "dark": DARK},
        version=version("hdnn"),
        **found,
    )


def _facts(material: Material) -> list[tuple[str, str]]:
    facts = [] if material.run is None else [("run", material.run)]
    if material.model is not None:
        facts += _facts_of_model(material.model)
    if material.history:
        last = material.history[-1]
        done = "1 epoch" if last["epoch"] == 1 else f"{last['epoch']} epochs"
        if "seconds" in last:
            done += f", {words.number(last['seconds'])} s"
        facts.append(("training", done))
    return facts


def _facts_of_model(model: Model) -> list[tuple[str, str]]:
    shape, names = model.stem.shape, model.feature_names
    kind = "image" if len(shape) > 1 else "features"
    facts = [("input", f"{'×'.join(map(str, shape))} {kind}")]
    facts += [("network", net.extra_repr()) for net in model.networks[:4]]
    facts.append(("parameters", f"{sum(p.numel() for p in model.parameters()):,}"))
    if names:
        shown = ", ".join(words.shortened(name, 24) for name in names[:8])
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        facts.append(("columns", shown + more))
    return facts
