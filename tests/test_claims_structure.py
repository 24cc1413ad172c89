"""The pages of "Why not a ResNet?" say what the records say, and the theorem holds."""

from __future__ import annotations

import pytest
import structure_page
import torch

import hdnn

CASES = {"H1": False, "H2": False, "MS2": False, "MS1": True, "MS3": True, "HS": True}
"""Networks whose layers have a determinant of at least 1; of exactly 1, where True."""


def test_tables_of_the_pages_come_from_the_records() -> None:
    texts = [page.read_text() for page in structure_page.PAGES]
    counts = {key: sum(f"<!-- {key} -->" in t for t in texts) for key in structure_page.TABLES}
    assert counts == dict.fromkeys(structure_page.TABLES, 1)
    assert [structure_page.filled(text) for text in texts] == texts


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("time_invariant", [False, True])
@pytest.mark.parametrize("scale", [0.3, 5.0])
def test_no_layer_shrinks_volume_so_no_norm_falls_below_1(
    name: str, time_invariant: bool, scale: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    options = {"time_invariant": time_invariant, "scale": scale, "dtype": torch.float64}
    net = hdnn.network(name, features=6, layers=20, T=5.0, generator=generator, **options)
    y = torch.randn(30, 6, dtype=torch.float64, generator=generator)
    determinants = torch.linalg.det(hdnn.analysis.layer_factors(net, y))
    assert (determinants > 1 - 1e-9).all()
    if CASES[name]:
        torch.testing.assert_close(determinants, torch.ones_like(determinants), atol=1e-8, rtol=0)
    norms = torch.linalg.matrix_norm(hdnn.analysis.sensitivities(net, y), 2)
    assert (norms > 1 - 1e-12).all()
