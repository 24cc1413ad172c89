"""What commands accept as a model, and which data they look at it with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hdnn
from commands import Trained
from hdnn.cli.loaded import load_run
from hdnn.errors import HdnnError
from tasks import same


def test_a_run_its_model_file_and_a_saved_model_are_the_same_model(mail: Trained) -> None:
    run, file = load_run(mail.run), load_run(mail.run / "model.safetensors")
    hdnn.save(run.model, "alone.safetensors")
    alone = load_run(Path("alone.safetensors"))
    assert same(run.model, file.model)
    assert same(run.model, alone.model)
    assert run.run is not None
    assert file.run is not None
    assert alone.run is None
    with pytest.raises(HdnnError, match="does not know its data: pass --data"):
        alone.data()


def test_held_out_data_of_the_run_or_the_data_that_are_named(mail: Trained) -> None:
    run = load_run(mail.run)
    data = run.data()
    assert torch.equal(run.features(None, held_out=True).nan_to_num(), data.X_test.nan_to_num())
    assert torch.equal(run.features(None).nan_to_num(), data.X.nan_to_num())
    assert run.features(str(mail.table)).shape == (150, 3)
    whole = torch.cat([data.X, data.X_test]).nansum(0)
    torch.testing.assert_close(run.features(str(mail.table)).nansum(0), whole)


def test_what_is_no_model_raises(mail: Trained, tmp_path: Path) -> None:
    hdnn.save(load_run(mail.run).model.network, "network.safetensors")
    with pytest.raises(HdnnError, match="holds a network without a model"):
        load_run(Path("network.safetensors"))
    with pytest.raises(HdnnError, match="is neither a run nor a file"):
        load_run(tmp_path / "nothing")
