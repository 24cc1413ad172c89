"""Recordings of files: by line, what is missing or uneven; data sets by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hdnn.data import Recordings, load_recordings, read_recordings
from hdnn.data.recordings import SOURCES
from hdnn.errors import HdnnError


def lines(count: int = 30, first: float = 0.0) -> list[str]:
    return [f"{first + k / 10:.1f},{k % 7},{k % 5},{k % 3}" for k in range(count)]


def write(path: Path, rows: list[str], header: str = "t,u,v,y") -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_files_are_read_in_their_columns(tmp_path: Path) -> None:
    a = write(tmp_path / "a.csv", lines())
    b = tmp_path / "b.tsv"
    b.write_text(write(tmp_path / "c.csv", lines(25, 100.0)).read_text().replace(",", "\t"))
    found = read_recordings([a, b], ["v", "u"], "y", time="t")
    assert [part.shape for part in found.inputs] == [(30, 2), (25, 2)]
    assert found.inputs[0][:6].tolist() == [[k % 5, k] for k in range(6)]
    assert found.sampling_time == pytest.approx(0.1)
    assert (found.input_names, found.output_names) == (("v", "u"), ("y",))
    assert read_recordings(a, "u", "y").sampling_time == 1.0
    assert read_recordings(a, "u", "y", sampling_time=0.5).sampling_time == 0.5


def test_a_parquet_file_is_the_same(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    csv = write(tmp_path / "a.csv", lines())
    pd.read_csv(csv).to_parquet(tmp_path / "a.parquet")
    first, second = (
        read_recordings(tmp_path / f"a.{e}", "u", "y", time="t") for e in ("csv", "parquet")
    )
    assert np.array_equal(first.inputs[0], second.inputs[0])
    assert first.sampling_time == second.sampling_time


def test_a_column_numbers_the_experiments(tmp_path: Path) -> None:
    rows = [f"{row},{name}" for name in "ba" for row in lines(25)]
    path = write(tmp_path / "a.csv", rows, "t,u,v,y,run")
    found = read_recordings(path, "u", "y", time="t", experiment="run")
    assert [len(part) for part in found.inputs] == [25, 25]
    with pytest.raises(HdnnError, match="time does not increase at line 27"):
        read_recordings(path, "u", "y", time="t")


def test_dates_are_times_in_seconds(tmp_path: Path) -> None:
    rows = [f"2024-01-01 00:{k:02d}:00,{k % 7},{k % 5}" for k in range(40)]
    path = write(tmp_path / "a.csv", rows, "t,u,y")
    assert read_recordings(path, "u", "y", time="t").sampling_time == 60.0


def with_row(row: int, text: str) -> list[str]:
    rows = lines()
    rows[row] = text
    return rows


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (lines()[:9] + lines()[12:], {"time": "t"}, r"a gap at line 11: 0.4 after .* time is 0.1"),
        (with_row(5, "0.55,1,1,1"), {"time": "t"}, "uneven sampling at line 7: 0.15 .* in 2 of 29"),
        (with_row(5, "0.4,1,1,1"), {"time": "t"}, "time does not increase at line 7"),
        (with_row(5, "0.5,,1,1"), {}, "'u' has no value in line 7; interpolate"),
        (with_row(5, "0.5,x,1,1"), {}, "line 7 holds 'x'"),
        (with_row(5, "0.5,inf,1,1"), {}, "line 7"),
        (lines(), {"time": "t", "sampling_time": 1.0}, "not both"),
        (lines(), {"time": "z"}, "unknown column 'z'"),
        (lines(), {"inputs": ["y"]}, "'y' is an input and an output"),
        (lines(), {"inputs": []}, "at least one"),
        (lines(), {"sampling_time": -1.0}, "sampling_time must be positive"),
        (lines(10), {}, "has 10 rows; a recording has at least 20"),
        ([f"{k / 10},1,2,{k}" for k in range(30)], {}, "'u' is constant"),
    ],
)
def test_what_is_wrong_is_named_by_line(
    tmp_path: Path, rows: list[str], options: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "a.csv", rows)
    with pytest.raises(HdnnError, match=message):
        read_recordings(path, **{"inputs": "u", "outputs": "y", **options})


def test_files_have_one_sampling_time(tmp_path: Path) -> None:
    a = write(tmp_path / "a.csv", lines())
    b = write(tmp_path / "b.csv", [f"{k},{k % 7},0,{k % 3}" for k in range(30)])
    with pytest.raises(HdnnError, match=r"b.csv has the sampling time 1, .*a.csv has 0.1"):
        read_recordings([a, b], "u", "y", time="t")


def test_scaling_gives_mean_0_and_deviation_1() -> None:
    draw = np.random.default_rng(0)
    u, y = (tuple(5 + 3 * draw.standard_normal((k, 2)) for k in (30, 50)) for _ in range(2))
    data = Recordings(u, y)
    scaled = data.scaled(data.scaling).scaling
    assert np.allclose([scaled.mean_u, scaled.mean_y], 0)
    assert np.allclose([scaled.std_u, scaled.std_y], 1)


def test_split_holds_out_the_last_part_of_every_recording() -> None:
    u = (np.arange(100.0)[:, None], np.arange(40.0)[:, None])
    first, last = Recordings(u, u).split(0.25)
    assert [len(part) for part in first.inputs] == [75, 30]
    assert last.skip == (75, 30)
    assert last.inputs is u
    with pytest.raises(HdnnError, match="40 samples is too short"):
        Recordings(u, u).split(0.6)


@pytest.mark.parametrize("name", ["two-tanks", "damped-pendulum"])
def test_simulated_recordings_are_the_same_each_time(name: str) -> None:
    first, second = load_recordings(name), load_recordings(name.replace("-", "_").upper())
    for a, b in zip(first, second, strict=True):
        assert np.array_equal(a.outputs[0], b.outputs[0])
    assert not np.array_equal(first.estimation.inputs[0], first.test.inputs[0])
    assert first.test.skip == (50,)


def test_tanks_overflow_and_the_pendulum_stays_below_a_right_angle() -> None:
    tanks = np.concatenate([part.outputs[0] for part in load_recordings("two-tanks")])
    assert 9.9 < tanks.max() < 10.2
    assert tanks.min() > 0
    pendulum = np.concatenate([part.outputs[0] for part in load_recordings("damped-pendulum")])
    assert 0.7 < np.abs(pendulum).max() < np.pi / 2


@pytest.mark.parametrize("name", SOURCES)
def test_a_published_recording_says_where_it_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HDNN_DATA", raising=False)
    with pytest.raises(HdnnError, match=r"https://.*HDNN_DATA is not set") as error:
        load_recordings(name)
    assert all(column in str(error.value) for column in SOURCES[name].columns)
    monkeypatch.setenv("HDNN_DATA", str(tmp_path))
    with pytest.raises(HdnnError, match="where it is not"):
        load_recordings(name)
    (tmp_path / "identification").mkdir()
    (tmp_path / "identification" / f"{name}.csv").write_text("u,y\n1,2\n")
    with pytest.raises(HdnnError, match="SHA-256 is another"):
        load_recordings(name)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(HdnnError, match="did you mean 'two-tanks'"):
        load_recordings("two tanks")
