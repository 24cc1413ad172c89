"""Flags and assignments that the definitions of the settings give."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command

import hdnn.cli.train  # noqa: F401 (registers the command)
from hdnn.cli import app
from hdnn.cli.flags import add_assignments
from hdnn.config import Config, all_settings
from hdnn.errors import HdnnError


def parameters() -> dict[str, Any]:
    command: Any = get_command(app)
    return {name: each for each in command.commands["train"].params for name in each.opts}


def test_the_flags_of_train() -> None:
    """Those people use; the rest is --set."""
    flags = {each.flag for each in all_settings() if each.flag}
    own = "--set --config --out --resume --overwrite --checkpoint-seconds --json"
    assert {name for name in parameters() if name.startswith("--")} == flags | set(own.split())
    assert {"--balanced", "--protocol", "--lr", "--seed", "--T", "--target"} <= flags


def test_assignments_reach_every_setting() -> None:
    tables: dict[str, Any] = {}
    add_assignments(tables, ["model.norm=batch", "model.layers=[1, 2]", 'data.drop=["a"]'])
    assert tables == {"model": {"norm": "batch", "layers": [1, 2]}, "data": {"drop": ["a"]}}
    for wrong in ("warmup", "warmup=2", "modell.layers=2", "=", "a.b.c=1"):
        with pytest.raises(HdnnError, match=r"--set takes TABLE\.NAME=VALUE|unknown setting"):
            Config(**add_assignments(tables := {}, [wrong]) or tables)
