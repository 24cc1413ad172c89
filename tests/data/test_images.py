"""Data sets of images: what is loaded is what was published, wherever it came from."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from commands import done, record
from hdnn.data import images, readers
from hdnn.data.images import read_idx
from hdnn.errors import FetchError, FileFormatError, HdnnError


def idx(array: Any) -> bytes:
    array = np.asarray(array)
    sizes = np.array(array.shape, dtype=">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


PIXELS = np.random.default_rng(0).integers(0, 256, (9, 2, 3))
CONTENTS = map(idx, (PIXELS[:6], range(6), PIXELS[6:], [9, 0, 4]))
FILES = dict(zip(images.IDX_FILES, CONTENTS, strict=True))


@pytest.fixture(autouse=True)
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MNIST is six and three images of 2 x 3, and the user's cache is empty."""
    sums = tuple(hashlib.sha256(content).hexdigest() for content in FILES.values())
    small = replace(images.IMAGE_SETS["mnist"], sha256=sums)
    monkeypatch.setitem(images.IMAGE_SETS, "mnist", small)
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / "cache" / name)
    monkeypatch.delenv("HDNN_DATA", raising=False)


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses requested; the first of two mirrors is down, and the second without files."""
    requests: list[str] = []

    def retrieve(url: str, known_hash: None, fname: str, path: Path) -> str:
        requests.append(url)
        if "ossci" in url or not FILES:
            raise OSError("no route to host")
        path.mkdir(parents=True, exist_ok=True)
        (path / fname).write_bytes(gzip.compress(FILES[fname.removesuffix(".gz")]))
        return str(path / fname)

    monkeypatch.setattr("pooch.retrieve", retrieve)
    return requests


def is_small_mnist(data: Any) -> bool:
    pixels = torch.cat([data.X, data.X_test]).squeeze(1).numpy()
    return np.array_equal(pixels, PIXELS) and data.y_test.tolist() == [9, 0, 4]


def test_mnist_is_downloaded_once_from_the_mirror_that_answers(web: list[str]) -> None:
    for _ in range(2):
        assert is_small_mnist(images.load("MNIST"))
        assert len(web) == 2 * 4


@pytest.mark.parametrize("below", ["mnist", ""])
def test_a_folder_named_by_the_environment_replaces_the_download(
    below: str, web: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HDNN_DATA", str(tmp_path / "data"))
    with pytest.raises(FetchError, match=r"HDNN_DATA is .* holds no mnist/train-images"):
        images.load("mnist")
    folder = tmp_path / "data" / below
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    assert is_small_mnist(images.load("mnist"))
    (folder / images.IDX_FILES[2]).write_bytes(idx(PIXELS[:3]))
    with pytest.raises(FetchError, match=r"t10k-images-idx3-ubyte is damaged.*remove it"):
        images.load("mnist")
    assert not web


@pytest.mark.usefixtures("web")
def test_the_error_of_a_download_says_what_was_tried_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "FILES", {})
    with pytest.raises(FetchError, match=r"ossci.*no route(.|\n)*googleapis(.|\n)*HDNN_DATA"):
        images.load("mnist")


@pytest.mark.usefixtures("web")
def test_hdnn_data_fetches_and_says_so() -> None:
    def state() -> str:
        return {entry["name"]: entry["state"] for entry in record("data", "list")}["mnist"]

    assert state() == "to fetch"
    assert len(record("data", "fetch", "MNIST")["files"]) == 4
    assert state() == "ready"
    assert "checksum is right" in done("data", "fetch", "mnist").stdout


def test_digits_need_nothing_and_are_always_split_alike() -> None:
    one = images.load("digits")
    assert torch.equal(one.X_test, images.load().X_test)
    assert (len(one.X), len(one.X_test), *one.X.shape[1:]) == (1438, 359, 1, 8, 8)
    assert (one.X.dtype, int(one.X.min()), int(one.X.max())) == (torch.uint8, 0, 255)
    both = torch.cat([one.X, one.X_test]).flatten(1)
    assert len(both.unique(dim=0)) == 1797  # no image is in both parts, none is lost


def test_malformed_idx_files_raise(tmp_path: Path) -> None:
    damaged = r"truncated or damaged: its header says shape \(3,\)"
    for content, message in ((b"\0\0\x0d\x01", "does not begin"), (idx([1, 2, 3])[:-1], damaged)):
        for name, data in (("x", content), ("x.gz", gzip.compress(content))):
            (tmp_path / name).write_bytes(data)
            with pytest.raises(FileFormatError, match=message):
                read_idx(tmp_path / name)


def test_files_that_would_fill_the_memory_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx(np.zeros(readers.FREE, np.uint8))))
    with pytest.raises(FileFormatError, match="more than 16 MB, 100 times its size"):
        read_idx(tmp_path / "x.gz")
    paint(tmp_path / "x.png", 0, (20, 10))
    for most, message in ((199, "exceeds limit of 199"), (99, "exceeds limit of 198")):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        with pytest.raises(FileFormatError, match=message):
            images.read_images([tmp_path / "x.png"])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200)
    images.read_images([tmp_path / "x.png"])


# --- folders --------------------------------------------------------------------------------------


def paint(path: Path, value: Any, size: tuple[int, int] = (3, 2), mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def test_a_folder_by_class_is_read_and_a_fifth_held_out(tmp_path: Path) -> None:
    for name, base in (("9", 0), ("10", 100)):
        for k in range(10):
            paint(tmp_path / name / f"{k}.png", base + k)
    (tmp_path / "10" / "notes.txt").write_text("not an image")
    one = images.load(tmp_path)
    assert one.classes == ("9", "10")
    assert one.X.shape == (16, 1, 2, 3)
    assert one.y_test.tolist() == [0, 0, 1, 1]
    assert torch.equal(one.X[:, 0, 0, 0] >= 100, one.y == 1)
    values = torch.cat([one.X, one.X_test])[:, 0, 1, 2].sort().values.tolist()
    assert values == [*range(10), *range(100, 110)]
    assert torch.equal(images.load(tmp_path).X_test, one.X_test)
    assert not torch.equal(images.load(tmp_path, seed=1).X_test, one.X_test)


def test_a_folder_with_its_own_test_part_in_color(tmp_path: Path) -> None:
    paint(tmp_path / "train" / "cat" / "a.PNG", (10, 20, 30), mode="RGB")
    paint(tmp_path / "train" / "dog" / "b.png", 7)
    paint(tmp_path / "test" / "cat" / "c.png", 9)
    paint(tmp_path / "test" / "dog" / "d.jpg", 5)
    data = images.load(tmp_path)
    assert data.X[:, :, 0, 0].tolist() == [[10, 20, 30], [7, 7, 7]]
    assert data.X_test[:, :, 0, 0].tolist() == [[9, 9, 9], [5, 5, 5]]
    paint(tmp_path / "test" / "bird" / "e.png", 5)
    with pytest.raises(HdnnError, match="class 'bird', of which there are no training"):
        images.load(tmp_path)


def test_folders_that_are_no_data_set_raise(tmp_path: Path) -> None:
    (tmp_path / "two" / "cat").mkdir(parents=True)
    (tmp_path / "two" / "dog").mkdir()
    wrong: list[tuple[Any, str]] = [
        ("minst", "did you mean 'mnist'"),
        (tmp_path / "absent", "no folder"),
        (tmp_path, "has 1 subfolders"),
        (tmp_path / "two", "cat holds no images"),
    ]
    for source, message in wrong:
        with pytest.raises(HdnnError, match=message):
            images.load(source)
    with pytest.raises(HdnnError, match="those of digits have one size"):
        images.load("digits", size=(4, 4))


def test_mixed_sizes_raise_unless_a_size_is_passed(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6  # the pixels lie on their side, and show 4 x 5
    for name in ("cat", "dog"):
        paint(tmp_path / name / "a.png", 1, size=(5, 4))  # width, height
        Image.new("L", (4, 5), 1).save(tmp_path / name / "b.jpg", exif=turned)
    assert images.load(tmp_path).X.shape[1:] == (1, 4, 5)
    paint(tmp_path / "dog" / "c.png", 1, size=(3, 2))
    with pytest.raises(HdnnError, match=r"c.png has 2 x 3 pixels, others have 4 x 5.*--pixels 64"):
        images.load(tmp_path)
    assert images.load(tmp_path, size=4).X.shape[1:] == (1, 4, 4)
    assert images.load(tmp_path, size=(2, 6)).X.shape[1:] == (1, 2, 6)


def test_unreadable_images_raise_and_are_listed(tmp_path: Path) -> None:
    for k in range(14):
        paint(tmp_path / "cat" / f"{k:02}.png", 10, mode="I;16" if k == 3 else "L")
        paint(tmp_path / "dog" / f"{k:02}.png", 10)
        if k < 12:
            (tmp_path / "dog" / f"{k:02}.png").write_bytes(b"not an image")
    with pytest.raises(FileFormatError, match=r"^13 of 28 .*: cat/03.png, dog/00.*and 3 more; rem"):
        images.load(tmp_path)
