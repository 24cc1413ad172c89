"""`hdnn export` writes what a run predicts; `hdnn info` names what hdnn knows."""

from __future__ import annotations

from pathlib import Path

import hdnn
from commands import Trained, command, done, fails, record


def test_export_says_what_goes_in_and_comes_out(mail: Trained) -> None:
    text = done("export", mail.run, "--out", "mail.onnx", "--no-check").stdout
    assert "not compared with hdnn" in text
    assert f"{Path('mail.onnx').stat().st_size} bytes: mail.onnx" in text
    written = record("export", mail.run / "model.safetensors", "--out", "b.onnx", "--no-check")
    assert written["deviation"] is None
    assert {name: shape[-1] for name, shape in written["inputs"].items()} == {"columns": 3}
    assert {name: shape[-1] for name, shape in written["outputs"].items()} == {"probabilities": 2}
    assert all(name in text for name in (*written["inputs"], *written["outputs"]))
    assert Path("b.onnx").read_bytes() == Path("mail.onnx").read_bytes()
    done("export", mail.run, "--out", "scan.onnx", "--no-check", "--unroll", "0")
    assert [b"Scan" in Path(name).read_bytes() for name in ("b.onnx", "scan.onnx")] == [False, True]


def test_what_is_no_model_is_not_exported(roll: Path) -> None:
    Path("empty").mkdir()
    fails(2, ("export", "empty", "--out", "a.onnx"), "neither a run nor a file of hdnn.save")
    assert command("export", roll).exit_code == 2  # --out is needed
    assert not Path("a.onnx").exists()


def test_info_names_versions_kernels_and_architectures() -> None:
    facts = record("info")
    assert facts["hdnn"] == hdnn.__version__
    assert facts["architectures"] == list(hdnn.zoo.ARCHITECTURES)
    text = done("info").stdout
    assert all(name in text for name in (*facts, *facts["schemes"], facts["kernels"]))
