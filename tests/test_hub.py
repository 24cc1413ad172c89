"""Models as folders of the Hub: weights that load again, a card that says what they are."""

from __future__ import annotations

import inspect
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import hdnn
from hdnn.errors import HdnnError

FACTS: dict[str, Any] = {
    "metrics": {"accuracy": 0.975},
    "data": 'measurements of "flowers": 150 rows',
    "license": "mit",
}


def table_model() -> hdnn.Model:
    net = hdnn.network("H1", features=4, layers=3, T=1.0)
    names = ["length", "width"]
    model = hdnn.Model(
        net, 3, hdnn.Augmentation(2, 4), classes=["a", "b", "c"], feature_names=names
    )
    torch.nn.init.normal_(model.head.weight)
    return model.eval()


def image_model() -> hdnn.Model:
    return hdnn.ImageClassifier(hdnn.ImageConfig(size=(6, 6), layers=2)).eval()


@pytest.mark.parametrize("make", [table_model, image_model])
def test_a_folder_gives_the_model_back(make: Any, tmp_path: Path) -> None:
    model = make()
    folder = model.save_pretrained(tmp_path / "flowers", **FACTS)
    assert sorted(file.name for file in folder.iterdir()) == ["README.md", "model.safetensors"]
    again = hdnn.Model.from_pretrained(folder)
    assert not again.training
    x = torch.randn(5, 2) if make is table_model else torch.rand(5, 1, 6, 6)
    assert torch.equal(again.probabilities(x), model.probabilities(x))


def test_the_card_says_what_the_model_is(tmp_path: Path) -> None:
    model = table_model()
    certificate = hdnn.analysis.certify(model.network, torch.randn(5, 4))
    folder = model.save_pretrained(tmp_path / "flowers", certificate=certificate, **FACTS)
    card = (folder / "README.md").read_text("utf-8")
    for words in ("`length` (number)", "`c`", "| accuracy | 0.975 |", "150 rows", str(certificate)):
        assert words in card, words
    bare = (model.save_pretrained(tmp_path / "bare") / "README.md").read_text("utf-8")
    assert "license" not in bare
    assert "## Metrics" not in bare


def test_the_usage_of_the_card_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas as pd

    model = table_model()
    card = (model.save_pretrained(tmp_path / "flowers") / "README.md").read_text("utf-8")
    code = card.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    given = {"frame": pd.DataFrame({"width": [1.0, 2.0], "length": [0.5, 0.1]})}
    *lines, last = code.strip().splitlines()
    exec("\n".join([*lines, f"found = {last}"]), given)
    expected = model.probabilities(torch.tensor([[0.5, 1.0], [0.1, 2.0]]))
    torch.testing.assert_close(given["found"], expected)


def test_the_hub_reads_the_header(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="the Hub's own reader of cards")
    folder = table_model().save_pretrained(tmp_path / "flowers", **FACTS)
    data = hub.ModelCard.load(folder / "README.md").data
    assert (data.library_name, data.license) == ("hdnn", "mit")
    assert data.pipeline_tag == "tabular-classification"
    (result,) = data.eval_results
    assert (result.metric_type, result.metric_value) == ("accuracy", 0.975)


class FakeHub(types.ModuleType):
    """A hub of one repository, in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__("huggingface_hub")
        self.folder, self.calls = folder, []
        self.__spec__ = types.SimpleNamespace(name="huggingface_hub")  # type: ignore[assignment]

    def HfApi(self, **options: Any) -> FakeHub:  # noqa: N802 (the Hub's name)
        self.calls.append(options)
        return self

    def create_repo(self, name: str, **options: Any) -> Any:
        self.calls.append({"name": name, **options})
        return types.SimpleNamespace(repo_id=f"me/{name}")

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> Any:
        self.calls.append({"repo": repo_id, "message": commit_message})
        folder_path.rename(self.folder)
        return types.SimpleNamespace(commit_url=f"https://hub/{repo_id}")

    def hf_hub_download(self, repo: str, file: str, revision: str | None) -> str:
        self.calls.append({"repo": repo, "file": file, "revision": revision})
        return str(self.folder / file)


def test_a_model_goes_to_the_hub_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub, model = FakeHub(tmp_path / "remote"), table_model()
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert model.push_to_hub("flowers", private=True, **FACTS) == "https://hub/me/flowers"
    again = hdnn.Model.from_pretrained("me/flowers", revision="v1")
    x = torch.randn(5, 2)
    assert torch.equal(again(x), model(x))
    assert hub.calls == [
        {"token": None, "library_name": "hdnn"},
        {"name": "flowers", "private": True, "exist_ok": True},
        {"repo": "me/flowers", "message": "Upload a model of hdnn"},
        {"repo": "me/flowers", "file": "model.safetensors", "revision": "v1"},
    ]
    card = (tmp_path / "remote" / "README.md").read_text("utf-8")
    assert "# flowers" in card
    assert 'from_pretrained("me/flowers")' in card


def test_the_real_hub_takes_such_calls() -> None:
    """The stand-in above is called as the package's own functions may be called."""
    hub = pytest.importorskip("huggingface_hub", reason="the Hub's own functions")
    api = hub.HfApi

    def bind(function: Any, *args: Any, **options: Any) -> None:
        inspect.signature(function).bind(*args, **options)  # raises where they do not fit

    bind(api, token=None, library_name="hdnn")
    bind(api.create_repo, None, "flowers", private=True, exist_ok=True)
    bind(api.upload_folder, None, repo_id="me/flowers", folder_path=".", commit_message="text")
    bind(hub.hf_hub_download, "me/flowers", "model.safetensors", revision=None)
    assert hub.RepoUrl("https://huggingface.co/me/flowers").repo_id == "me/flowers"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for call in (
        lambda: hdnn.Model.from_pretrained("me/flowers"),
        lambda: table_model().push_to_hub("me/flowers"),
    ):
        with pytest.raises(HdnnError, match=r"hdnn\[hub\]"):
            call()


@pytest.mark.parametrize("source", ["nowhere", "./me/flowers", "/me/flowers", "a/b/c"])
def test_what_is_neither_folder_nor_repository_raises(source: str) -> None:
    with pytest.raises(HdnnError, match="there is no folder"):
        hdnn.Model.from_pretrained(source)


def test_a_network_is_no_model(tmp_path: Path) -> None:
    hdnn.save(hdnn.network("H1", features=4, layers=3, T=1.0), tmp_path / "model.safetensors")
    with pytest.raises(HdnnError, match=r"hdnn\.load"):
        hdnn.Model.from_pretrained(tmp_path)
