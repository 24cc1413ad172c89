"""Models as folders in the manner of the Hugging Face Hub: weights and a model card.

Folders need no package and no network; what the Hub holds needs `huggingface_hub`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdnn.errors import HdnnError
from hdnn.files import atomic
from hdnn.models.persistence import load, save

if TYPE_CHECKING:
    from hdnn.models.model import Model

WEIGHTS, CARD = "model.safetensors", "README.md"
"""The files of a folder."""


@dataclass(frozen=True)
class CardFacts:
    """What a model card says that the model does not know.

    Args:
        metrics: by name, such as ``{"accuracy": 0.97}``.
        data: what it was trained on, in words.
        certificate: what is known of its gradients, such as `hdnn.analysis.certify` gives it.
        license: an identifier of the Hub, such as "mit".
        name: of the model; by default that of the folder or the repository.

    >>> from hdnn.models import CardFacts
    >>> CardFacts(metrics={"accuracy": 0.97}, data="iris", license="mit").metrics
    {'accuracy': 0.97}
    """

    metrics: Mapping[str, float] | None = None
    data: str | None = None
    certificate: object = None
    license: str | None = None
    name: str | None = None


def save_pretrained(
    model: Model, folder: str | os.PathLike[str], facts: CardFacts, source: str | None = None
) -> Path:
    """Write weights and a model card, which names a source to load them from, to a folder."""
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise HdnnError(f"save_pretrained writes to a folder, and {folder} is a file")
    place.mkdir(parents=True, exist_ok=True)
    save(model, place / WEIGHTS)
    with atomic(place / CARD) as temporary:
        temporary.write_text(card(model, facts, source or place.resolve().name), "utf-8")
    return place


def from_pretrained(source: str | os.PathLike[str], revision: str | None = None) -> Any:
    """The model of a folder, or else of a repository of the Hub."""
    place = Path(source)
    if place.is_dir():
        return load(place / WEIGHTS)
    name = str(source)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise HdnnError(
            f"there is no folder {name[:100]!r}; give one that save_pretrained wrote, or a "
            "repository of the Hub as 'owner/name'"
        )
    _need_hub(f"there is no folder {name[:100]!r}, and a repository of the Hub")
    from huggingface_hub import hf_hub_download

    return load(hf_hub_download(name, WEIGHTS, revision=revision))


def push_to_hub(
    model: Model, repository: str, facts: CardFacts, private: bool, token: str | None, message: str
) -> str:
    """Write a model to a repository of the Hub, and return its address."""
    _need_hub("push_to_hub")
    from huggingface_hub import HfApi

    api = HfApi(token=token, library_name="hdnn")
    identity = str(api.create_repo(repository, private=private, exist_ok=True).repo_id)
    with tempfile.TemporaryDirectory() as temporary:
        folder = save_pretrained(model, Path(temporary) / "model", facts, identity)
        sent = api.upload_folder(repo_id=identity, folder_path=folder, commit_message=message)
    return str(getattr(sent, "commit_url", sent))


def _need_hub(what: str) -> None:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise HdnnError(f"{what} needs the package huggingface_hub: pip install 'hdnn[hub]'")


# --- the card -------------------------------------------------------------------------------------


def card(model: Model, facts: CardFacts, source: str) -> str:
    """A model card: the header that the Hub reads, then what people read."""
    name = facts.name or source.rsplit("/", maxsplit=1)[-1]
    header = {key: json.dumps(value) for key, value in _header(model, facts, name).items()}
    front = "\n".join(f"{key}: {value}" for key, value in header.items())  # JSON is YAML
    parts = [f"---\n{front}\n---\n", f"# {name}\n", _described(model)]
    if facts.data:
        parts.append(f"## Data\n\n{facts.data}\n")
    if facts.metrics:
        rows = "\n".join(f"| {key} | {value:.6g} |" for key, value in facts.metrics.items())
        parts.append(f"## Metrics\n\n| metric | value |\n| --- | --- |\n{rows}\n")
    if facts.certificate is not None:
        parts.append(f"## Gradients\n\n```text\n{facts.certificate}\n```\n")
    parts.append(_usage(model, source))
    return "\n".join(parts)


def pipeline_of(model: Model) -> str:
    """The Hub's name of what a model does."""
    return "image-classification" if model.stem.takes_images else f"tabular-{model.task}"


def _header(model: Model, facts: CardFacts, name: str) -> dict[str, Any]:
    task = pipeline_of(model)
    header: dict[str, Any] = {
        "library_name": "hdnn",
        "tags": ["hdnn", "hamiltonian-neural-network"],
        "pipeline_tag": task,
    }
    if facts.license:
        header["license"] = facts.license
    if facts.metrics:
        data = (facts.data or "unnamed").splitlines()[0][:100]
        metrics = [{"type": key, "value": float(v)} for key, v in facts.metrics.items()]
        result = {
            "task": {"type": task},
            "dataset": {"name": data, "type": data},
            "metrics": metrics,
        }
        header["model-index"] = [{"name": name, "results": [result]}]
    return header


def _described(model: Model) -> str:
    count = sum(parameter.numel() for parameter in model.parameters())
    shape = " x ".join(map(str, model.stem.shape))
    lines = [
        f"A Hamiltonian deep network for {model.task}, made with hdnn.\n",
        f"- input: {'images, ' if model.stem.takes_images else ''}{shape}",
        *(f"- block: {network.extra_repr()}" for network in model.networks),
        f"- parameters: {count}",
    ]
    if not model.stem.takes_images:
        columns = [f"`{column.name}` ({column.kind})" for column in model.columns.columns]
        lines.append(f"- columns: {_listed(columns)}")
    if model.task == "classification":
        lines.append(f"- classes: {_listed([f'`{label}`' for label in model.labels])}")
    return "\n".join(lines) + "\n"


def _listed(texts: list[str], most: int = 30) -> str:
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def _usage(model: Model, source: str) -> str:
    if model.stem.takes_images:
        lines = ["model.probabilities(images)  # (batch, C, H, W), uint8"]
    else:
        lines = [
            "columns = model.columns",
            "X = columns.transform(columns.read_frame(frame))  # a data frame with these columns",
            "states = torch.from_numpy(X).to(model.head.weight.dtype)",
            f"model.{'predict' if model.task == 'regression' else 'probabilities'}(states)",
        ]
    code = "\n".join(["import hdnn, torch", "", f'model = hdnn.Model.from_pretrained("{source}")'])
    return f"## How to use it\n\n```python\n{code}\n" + "\n".join(lines) + "\n```\n"
