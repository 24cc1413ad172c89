"""The first start of a fresh installation: where kernels are kept, what is said, no home at all."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hdnn
from hdnn import progress
from hdnn.kernels import background, build, cache, catalogue, output_layer

PACKAGE = Path(hdnn.__file__).parent
USER = os.getuid() if hasattr(os, "getuid") else 0
KERNEL = (
    "import logging, numpy; logging.basicConfig(level=logging.INFO);"
    "from hdnn.kernels.svd import extremes; print(extremes(2 * numpy.eye(2)))"
)


@pytest.fixture
def container(tmp_path: Path) -> dict[str, str]:
    """The environment of a copy of hdnn beside which nothing can be kept, of a user without home.

    Permissions do not bind root, but nobody can make a folder below a file.
    """
    site = tmp_path / "site"
    shutil.copytree(PACKAGE, site / "hdnn", ignore=shutil.ignore_patterns("__pycache__"))
    (site / "hdnn" / "kernels" / "__pycache__").write_text("not a folder")
    (tmp_path / "tmp").mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "XDG_"))}
    return kept | {
        "HOME": "/dev/null/home",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(site),
        "TMPDIR": str(tmp_path / "tmp"),
    }


def one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def python(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    run = subprocess.run(
        [sys.executable, *arguments],
        preexec_fn=one_core,
        check=False,
        env=environment,
        cwd=environment["TMPDIR"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert run.returncode == 0, run.stderr
    return run


def test_kernels_are_kept_in_a_private_folder_where_nothing_else_can_be_written(
    container: dict[str, str],
) -> None:
    first, second = (python(container, "-c", KERNEL) for _ in range(2))
    folder = Path(container["TMPDIR"]) / f"hdnn-kernels-{USER}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.glob("svd.jacobi*.nbi"))
    assert first.stderr.count(str(folder)) == 1
    assert "compiling 'jacobi'" in first.stderr
    assert second.stderr == ""
    assert first.stdout == second.stdout == "(array(2.), array(2.))\n"


def test_a_folder_that_others_can_write_to_is_neither_read_nor_written(
    container: dict[str, str],
) -> None:
    folder = Path(container["TMPDIR"]) / f"hdnn-kernels-{USER}"
    folder.mkdir()
    folder.chmod(0o777)
    run = python(container, "-c", KERNEL)
    assert run.stdout == "(array(2.), array(2.))\n"
    assert run.stderr.count("cannot be kept") == 1
    assert "hdnn info --warm" in run.stderr
    assert not list(folder.iterdir())


def test_a_link_is_not_a_private_folder(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    assert cache._is_private(tmp_path / "own")
    assert not cache._is_private(tmp_path / "link")
    assert not cache._is_private(tmp_path / "nothing")


def test_demo_train_and_predict_in_a_container(container: dict[str, str]) -> None:
    place = Path(container["TMPDIR"])
    folder = place / f"hdnn-kernels-{USER}"
    folder.mkdir(mode=0o700)
    used = [(name, "float32") for name in ("forward", "epoch", "jacobians")]
    for name, dtype in (*used, ("forward", "float64"), ("joint_steps", "float64")):
        catalogue.compile_one(name, dtype)
    output_layer.kernel("newton")
    for source in cache.folders():  # as after the first start there
        for path in source.glob("*.nb[ic]"):
            shutil.copy(path, folder)
    X = np.random.default_rng(0).normal(size=(60, 2))
    rows = [f"{a:.3f},{b:.3f},{'up' if a > b else 'down'}" for a, b in X]
    (place / "data.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    options = "--target", "label", "--layers", "2", "--epochs", "3", "--out", "run"
    runs = [
        python(container, "-m", "hdnn", *words)
        for words in (
            ("demo", "--epochs", "2", "--out", "demo.png"),
            ("train", "data.csv", *options),
            ("predict", "run", "data.csv", "--out", "predictions.csv"),
        )
    ]
    assert len((place / "predictions.csv").read_text().splitlines()) == 61
    assert not any("compiling" in run.stderr for run in runs)
    assert not any("\x1b" in run.stdout + run.stderr for run in runs)


def test_what_is_kept_is_read_from_a_folder_that_is_not_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [tmp_path / "image", tmp_path / "home"]
    monkeypatch.setattr(cache, "_lasting", lambda: iter(places))
    monkeypatch.setattr(cache, "_is_private", lambda path: False)
    monkeypatch.setattr(cache, "folder", lambda: places[0])
    places[0].mkdir()

    def compiled() -> int:
        dispatcher = cache.cached()(_double)
        misses: list[None] = []
        dispatcher._cache.missing = lambda: misses.append(None)
        assert dispatcher(2) == 4
        return len(misses)

    assert compiled() == 1
    monkeypatch.setattr(cache, "folder", lambda: None)
    assert compiled() == 0
    for path in places[0].glob("*.nbc"):
        path.write_bytes(b"damaged")
    assert compiled() == 1
    monkeypatch.setattr(cache, "folder", lambda: places[0])
    assert compiled() == 1
    monkeypatch.setattr(cache, "source_stamp", lambda: "another file of the kernels has changed")
    assert compiled() == 1


def _double(x: int) -> int:
    return 2 * x


def test_a_full_disk_is_told_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache, "_lasting", lambda: iter([]))
    monkeypatch.setattr(cache, "folder", lambda: tmp_path / "nowhere")
    with caplog.at_level(logging.INFO, "hdnn"):
        assert cache.cached()(_double)(3) == 6
    assert "is not kept: No such file or directory" in caplog.text


def test_a_user_without_home_has_no_cache_in_the_working_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache.platformdirs, "user_cache_path", lambda *_, **__: Path("~/.cache"))
    assert all(path.is_absolute() for path in cache._lasting())


def test_every_kernel_is_warmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever `build` compiles anywhere in the package is in the catalogue."""
    monkeypatch.setattr(background, "begin", lambda *names, dtype: False)
    compiled = []
    monkeypatch.setattr(build, "kernel", lambda f, dtype, _: compiled.append((f.__name__, dtype)))
    monkeypatch.setattr(build, "compile_now", lambda f, _: compiled.append((f.__name__, "")))
    catalogue.output_layer.kernel.cache_clear()
    catalogue.compile_all()
    catalogue.output_layer.kernel.cache_clear()
    shared = ("forward", "backward", "epoch", "joint_steps", "jacobians")
    both = [(name, dtype) for dtype in catalogue.DTYPES for name in shared]
    assert set(compiled) == {*both, ("newton", ""), ("adam", ""), ("jacobi", "float64")}
    calls = sum(
        path.read_text().count("build.kernel(") + path.read_text().count("build.compile_now(")
        for path in (PACKAGE / "kernels").glob("*.py")
    )
    assert calls == len({name for name, _ in compiled}) - 1  # newton and adam share one


class Children:
    """In place of `background._Child`: what would be compiled elsewhere."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[str, ...], str]] = []

    def __call__(self, names: tuple[str, ...], dtype: str) -> object:
        self.asked.append((names, dtype))
        return object()


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Children:
    found = Children()
    monkeypatch.setattr(background, "_children", {})
    monkeypatch.setattr(background, "_Child", found)
    monkeypatch.setattr(background, "folder", Path)
    monkeypatch.setattr(background, "_cores", lambda: 2)
    monkeypatch.setattr(catalogue, "is_missing", lambda name, dtype: name != "product")
    monkeypatch.delenv(background.JOBS, raising=False)
    return found


def test_a_child_compiles_what_is_missing_once(children: Children) -> None:
    for _ in range(2):
        background.begin("product", "forward", "advance", dtype="float32")
    background.begin("gram", dtype="float32")  # a part that nobody needs
    background.begin("forward", dtype="float64")
    assert children.asked == [(("forward", "advance"), "float32"), (("forward",), "float64")]


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setenv(background.JOBS, "1"),
        lambda patch: patch.setattr(background, "_cores", lambda: 1),
        lambda patch: patch.setattr(background, "folder", lambda: None),
        lambda patch: patch.setattr(sys, "executable", "/opt/game/game"),
        lambda patch: patch.setattr(sys, "executable", None),
        lambda patch: patch.setattr(sys, "frozen", True, raising=False),
    ],
)
def test_there_is_no_child_where_it_could_not_serve(
    change: Callable[[pytest.MonkeyPatch], None],
    children: Children,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change(monkeypatch)
    assert not background.begin("forward", dtype="float32")
    assert not children.asked


def test_a_child_tells_what_it_has_compiled_and_can_be_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = "import sys; print('a library that talks\\nforward', flush=True); sys.stdin.read()"
    monkeypatch.setattr(background, "_CODE", code)
    child = background._Child(("forward", "advance"), "float32")
    known = {("forward", "float32"): child, ("advance", "float32"): child}
    monkeypatch.setattr(background, "_children", known)
    background.wait("forward", "float32")
    assert not background.is_busy("forward", "float32")
    assert background.is_busy("advance", "float32")
    child.stop()
    background.wait("advance", "float32")
    assert not background.is_busy("advance", "float32")
    assert child.process.returncode is not None  # no zombie


def test_a_kernel_is_compiled_here_where_the_child_has_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(background, "_CODE", "raise SystemExit(1)")
    child = background._Child(("_triple",), "float64")
    monkeypatch.setattr(background, "_children", {("_triple", "float64"): child})
    monkeypatch.setattr(cache, "_lasting", lambda: iter([tmp_path]))
    cache.folder.cache_clear()
    x = np.ones(1)
    build.kernel(_triple, "float64", lambda number: (build.flat(number),))(x)
    cache.folder.cache_clear()
    assert x[0] == 3


def _triple(x: np.ndarray) -> None:
    x[0] *= 3


def test_a_child_ends_with_its_parent() -> None:
    child = background._Child((), "float32")
    assert child.process.stdin is not None
    child.process.stdin.close()  # as when the parent is killed
    child.listener.join()
    assert child.process.returncode == 1


def test_what_a_child_compiles_is_kept(
    container: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = Path(container["TMPDIR"])
    (place / "one.py").write_text(
        "from hdnn.kernels import svd\ndef compile_one(name, dtype):\n    svd.kernel()\n"
    )
    code = background._CODE.replace("from hdnn.kernels import catalogue", "import one as catalogue")
    monkeypatch.setattr(background, "_CODE", code)
    monkeypatch.setattr(sys, "path", [str(place), container["PYTHONPATH"], *sys.path])
    monkeypatch.setattr(os, "environ", container)
    child = background._Child(("jacobi",), "float64")
    child.over["jacobi"].wait()
    child.stop()
    assert list(place.glob("hdnn-kernels-*/svd.jacobi*.nbi"))


def test_announcements_go_to_the_log_before_the_step(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "hdnn"):
        with progress.announce("reading data.csv"):
            assert caplog.messages == ["reading data.csv ..."]
        assert len(caplog.messages) == 2
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.DEBUG]


def test_how_far_a_step_is_goes_to_whoever_listens_else_to_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[tuple[str, int, int]] = []
    with progress.listening(lambda *told: heard.append(told)):
        assert list(progress.track("ab", "reading")) == ["a", "b"]
    assert heard == [("reading", 0, 2), ("reading", 1, 2), ("reading", 2, 2)]
    with caplog.at_level(logging.INFO, "hdnn"):
        list(progress.track("ab", "reading"))
        assert not caplog.messages  # it was over at once
        monkeypatch.setattr(progress, "SECONDS", -1.0)
        list(progress.track("ab", "reading"))
        progress.Meter("rows")(1234, 0)
    assert caplog.messages == ["reading: 0 of 2", "reading: 1 of 2", "rows: 1,234"]
    assert len(heard) == 3


def test_a_large_table_and_many_images_are_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from PIL import Image

    from hdnn.data import csv_reader, image_files, read_table

    (tmp_path / "data.csv").write_text("a,y\n1,2\n3,4\n")
    Image.new("L", (2, 2)).save(tmp_path / "a.png")
    for module, name in ((csv_reader, "ANNOUNCED"), (image_files, "MANY")):
        monkeypatch.setattr(module, name, -1)
    with caplog.at_level(logging.INFO, "hdnn"):
        read_table(tmp_path / "data.csv", "y")
        image_files.read_images([tmp_path / "a.png"])
    assert "reading data.csv, 0 MB ..." in caplog.messages
    assert "reading 1 images ..." in caplog.messages


def test_the_bar_of_a_step_is_there_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from rich.console import Console

    from hdnn.cli import bars

    def shown(soon: float) -> str:
        monkeypatch.setattr(bars, "SOON", soon)
        screen = io.StringIO()
        with bars.step_bars(Console(file=screen, force_terminal=True, width=80)):
            list(progress.track(range(7), "predicting"))
        return screen.getvalue()

    assert "predicting" in shown(0.0)
    assert "6/7" in shown(0.0)
    assert not shown(60.0)


@pytest.mark.parametrize(("module", "told"), [("ipykernel", True), ("elsewhere", False)])
def test_a_notebook_is_told_where_nobody_has_configured_logging(
    module: str, told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setitem(sys.modules, module, progress)
    monkeypatch.setattr(progress, "logger", logging.Logger("of nobody", logging.WARNING))
    progress.note("compiling")
    assert capsys.readouterr().err == ("hdnn: compiling\n" if told else "")


def test_the_command_line_shows_announcements(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from hdnn.cli.base import app

    monkeypatch.setattr(catalogue, "compile_all", lambda: progress.note("compiling 'forward' ..."))
    result = CliRunner().invoke(app, ["info", "--json", "--warm"])
    assert "compiling 'forward' ..." in result.stderr
    assert "compiling" not in result.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="the way round is that of GNU's OpenMP")
@pytest.mark.parametrize(
    ("order", "setting", "helped"),
    [("torch, hdnn", None, True), ("hdnn, torch", None, False), ("torch, hdnn", "passive", False)],
)
def test_torch_threads_are_calmed_where_torch_came_first(
    order: str, setting: str | None, helped: bool
) -> None:
    """See benchmarks/busy_core.py for what it is worth."""
    names = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
    environment = {k: v for k, v in os.environ.items() if k not in names}
    if setting is not None:
        environment["OMP_WAIT_POLICY"] = setting
    code = f"import {order}, hdnn.backends.fused, threading; print(threading.enumerate())"
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert ("hdnn-openmp" in run.stdout) == helped


def test_a_missing_extra_is_named_before_any_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from typer.testing import CliRunner

    from hdnn.cli.base import app

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setattr("hdnn.training.prepare.PreparedRun.of", lambda config: pytest.fail("work"))
    out = str(tmp_path / "run")
    words = ["train", "swiss-roll", "--tensorboard", str(tmp_path / "board"), "--out", out]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "pip install tensorboard" in result.stderr
    assert not list(tmp_path.iterdir())
