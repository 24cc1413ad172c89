"""The colors of the page are those of figures and reports, as CSS variables of the same names."""

from __future__ import annotations

from hdnn.playground.page import FOLDER
from hdnn.plots.style import DARK, LIGHT, Theme


def theme_css() -> str:
    """What `theme.css` holds: light or dark as the system is, or as its visitor chose."""
    dark = _rule(':root[data-theme="dark"]', DARK, "dark")
    system = _rule(':root:not([data-theme="light"])', DARK, "dark")
    return (
        "/* Made from hdnn.plots.style: python -m hdnn.playground.theme */\n"
        f"{_rule(':root', LIGHT, 'light')}\n"
        f"@media (prefers-color-scheme: dark) {{\n{system}\n}}\n{dark}\n"
    )


def _rule(selector: str, theme: Theme, scheme: str) -> str:
    colors = "\n".join(f"  --{name}: {color};" for name, color in theme.names().items())
    return f"{selector} {{\n  color-scheme: {scheme};\n{colors}\n}}"


if __name__ == "__main__":
    (FOLDER / "theme.css").write_text(theme_css(), encoding="utf-8")
