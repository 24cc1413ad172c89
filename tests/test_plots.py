"""Figures: every one is drawn, and a file is a whole figure or the old one."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hdnn
from hdnn import plots
from hdnn.errors import HdnnError
from hdnn.training.recorder import Header

pytest.importorskip("matplotlib")
from matplotlib.image import imread


def model(outputs: int = 1, layers: int = 6) -> hdnn.Model:
    net = hdnn.network("H1", features=4, layers=layers, T=1.0)
    made = hdnn.Model(net, outputs, hdnn.Augmentation(2, 4))
    torch.nn.init.normal_(made.head.weight)
    return made


@pytest.fixture
def points() -> torch.Tensor:
    return torch.randn(40, 2)


@pytest.fixture
def labels() -> torch.Tensor:
    return torch.arange(40) % 2


def pixels(figure: Any) -> Any:
    with io.BytesIO() as file:
        figure.savefig(file, format="png", dpi=50)
        file.seek(0)
        return imread(file)


@pytest.mark.parametrize("outputs", [1, 3, 7])
def test_decision_regions_show_what_is_predicted(
    outputs: int, points: torch.Tensor, labels: torch.Tensor
) -> None:
    drawn = model(outputs)
    figure = plots.regions_and_propagation({"one": drawn}, points, labels)
    axis = figure.axes[0]
    image = axis.get_images()[0]
    left, right, bottom, top = image.get_extent()
    cells = image.get_array()
    rows, columns = cells.shape
    for i, j in ((0, 0), (0, columns - 1), (rows - 1, 0), (rows // 2, columns // 3)):
        x = left + (right - left) * j / (columns - 1)
        y = bottom + (top - bottom) * i / (rows - 1)
        assert cells[i, j] == int(drawn.predict(torch.tensor([x, y])))
    assert float(points[:, 0].min()) > left
    assert float(points[:, 1].max()) < top


def test_regions_and_propagation(points: torch.Tensor, labels: torch.Tensor) -> None:
    models = {"a: 99 %": model(), "b": model(3, layers=9)}
    figure = plots.regions_and_propagation(models, points, labels, samples=10)
    assert len(figure.axes) == 8
    assert figure.axes[0].get_title() == "a\n99 %"
    assert [axis.get_xlabel() for axis in figure.axes[2::2]] == ["layer 2", "layer 4", "layer 6"]
    for axis in figure.axes:
        assert len(axis.collections[0].get_offsets()) == 10
    assert pixels(figure).std() > 0


def test_figures_of_float32_and_many_classes(points: torch.Tensor) -> None:
    net = hdnn.network("H1", features=4, layers=2, T=1.0, dtype=torch.float32)
    small = hdnn.Model(net, 7, hdnn.Augmentation(2, 4))
    plots.regions_and_propagation({"small": small}, points.float(), torch.arange(40) % 7)


def test_a_model_of_the_plane_is_needed(labels: torch.Tensor) -> None:
    with pytest.raises(HdnnError):
        plots.regions_and_propagation({"one": model()}, torch.randn(40, 3), labels)


def test_a_record_is_drawn_by_depth_and_layer_with_its_energy() -> None:
    header = Header(every=2, depths=tuple(range(11)), samples=25)
    records: list[dict[str, Any]] = [
        {
            "iteration": 2 * k,
            "mean": [1.0 + k] * 11,
            "gradient": None if k == 1 else [0.5] * 10,
            "energy": [0.1] * 11,
        }
        for k in range(3)
    ]
    norms, gradients, energy = plots.record_figure(header, records, "run").axes
    assert [len(axis.get_lines()) for axis in (norms, gradients, energy)] == [8, 8, 8]
    labels = [line.get_label() for line in norms.get_lines()]
    assert (labels[0], labels[-1]) == ("$\\ell$ = 0", "$\\ell$ = 9")  # layer 10 is the identity
    assert norms.get_lines()[0].get_xydata().tolist() == [[0, 1], [2, 2], [4, 3]]
    assert np.isnan(gradients.get_lines()[0].get_ydata()).tolist() == [False, True, False]
    assert (norms.get_yscale(), energy.get_yscale()) == ("log", "linear")
    for record in records:
        del record["energy"]
    assert len(plots.record_figure(header, records, "run").axes) == 2


def test_a_profile_is_drawn_with_the_range_of_its_samples() -> None:
    net = hdnn.network("H1", features=4, layers=5, T=1.0)
    seen = hdnn.analysis.profile(net, torch.randn(7, 4), range(6))
    (axis,) = plots.profile_figure(seen, "run").axes
    mean, of_mean = axis.get_lines()
    np.testing.assert_array_equal(mean.get_ydata(), seen.largest.mean(-1))
    np.testing.assert_array_equal(of_mean.get_ydata(), seen.of_mean)
    assert pixels(axis.figure).std() > 0


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def figure(labels: torch.Tensor) -> Any:
    return plots.regions_and_propagation({"H1": model(layers=2)}, torch.randn(40, 2), labels)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("f.png", b"\x89PNG"),
        ("f.PNG", b"\x89PNG"),
        ("f.pdf", b"%PDF"),
        ("f.svg", b"<?xml"),
        ("f", b"\x89PNG"),
    ],
)
def test_the_ending_chooses_the_format(
    name: str, start: bytes, figure: Any, tmp_path: Path
) -> None:
    plots.save_figure(figure, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_unknown_ending_is_a_clear_error(figure: Any, tmp_path: Path) -> None:
    with pytest.raises(HdnnError, match=r"(?s)xyz.*png"):
        plots.save_figure(figure, tmp_path / "f.xyz")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_figure_leaves_the_old_file(
    figure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f.png"
    path.write_bytes(b"old")

    def fail(target: Path, **_: object) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(HdnnError, match="No space left on device"):
        plots.save_figure(figure, path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_does_not_exist_is_named(figure: Any, tmp_path: Path) -> None:
    with pytest.raises(HdnnError, match="nowhere"):
        plots.save_figure(figure, tmp_path / "nowhere" / "f.png")


def test_without_matplotlib_the_error_says_what_to_install(
    labels: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(HdnnError, match=r"pip install 'hdnn\[plots\]'"):
        plots.regions_and_propagation({"H1": model()}, torch.randn(40, 2), labels)
