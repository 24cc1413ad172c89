"""Protocols: the numbers that several tables share are written once."""

from __future__ import annotations

import pytest

from hdnn.config import PROTOCOLS, ModelConfig, TrainingConfig
from hdnn.training.protocols import protocols


def test_every_protocol_of_the_command_line_is_there() -> None:
    assert {*protocols("images")} == {*PROTOCOLS["images"]}
    assert {*protocols("table1")} >= {*PROTOCOLS["planar"]}


@pytest.mark.parametrize("table", ["table1", "table2", "images"])
def test_settings_are_those_of_the_configuration(table: str) -> None:
    for protocol in protocols(table).values():
        ModelConfig(**protocol.model)
        TrainingConfig(**protocol.training)


def test_a_protocol_like_another_differs_in_what_it_says_only() -> None:
    table2, images = protocols("table2"), protocols("images")
    assert images["paper"].training == table2["paper"].training
    weight_decay = {"alpha_c": 0.0, "weight_decay": 2e-4}
    assert table2["as-published-code"].training == {**table2["paper"].training, **weight_decay}
    assert "weight_decay" not in table2["paper"].training
    restarts = protocols("table1")["tuned-restarts"]
    assert restarts == protocols("table1")["tuned"]._replace(summary=restarts.summary, restarts=8)


def test_the_nearest_cell_is_the_nearest_in_layers_doubled() -> None:
    tuned = protocols("table1")["tuned"]
    for layers, nearest in ((1, 4), (4, 4), (11, 8), (12, 16), (1000, 64)):
        assert (
            tuned.nearest("swiss-roll", "MS2", layers) is tuned.cells[f"swiss-roll/MS2/{nearest}"]
        )
    assert tuned.nearest("peaks", "H1", 7) == tuned.nearest("swiss-roll", "HS", 7) == {}
