"""Permuted digits: the pages say what the records say, and the cells are their equations."""

from __future__ import annotations

import permuted
import torch
from pages import fill


def test_tables_of_the_pages_come_from_the_records() -> None:
    for page in permuted.PAGES:
        text = page.read_text()
        assert text.count("<!-- permuted -->") == 1
        assert fill(text, {"permuted": permuted.table()}) == text


def test_cells_are_of_one_size() -> None:
    sizes = [permuted.parameters(name) for name in permuted.CELLS]
    assert all(1300 < size < 1600 for size in sizes[:-1])  # the last one is no cell


def test_damping_stays_as_it_is_in_training() -> None:
    cell = permuted.HamiltonianCell(6, structured=True, damping=0.1, seed=0)
    optimizer = torch.optim.Adam(cell.parameters(), lr=0.1)
    before = cell.net.K[0].detach()
    for _ in range(3):
        optimizer.zero_grad()
        cell(torch.randn(2, 5, 1)).square().sum().backward()
        optimizer.step()
    K = cell.net.K[0].detach()
    torch.testing.assert_close(K + K.mT, -0.2 * torch.eye(6))
    assert float((K - before).abs().max()) > 0.1


def test_the_linear_cell_is_its_recurrence() -> None:
    cell, u = permuted.LinearCell(3, 2), torch.randn(4, 7, 1)
    size = torch.exp(-cell.nu.exp())
    turn, x = torch.polar(size, cell.angle.exp()), torch.zeros(4, 3, dtype=torch.complex128)
    for v in u.unbind(1):
        x = turn * x + (1 - size**2).sqrt() * torch.complex(*cell.B) * v
    expected = torch.nn.functional.gelu(cell.read(torch.cat([x.real, x.imag], -1)))
    torch.testing.assert_close(cell(u), expected)
