"""The works of `compare.py`: a worker for an environment with one version of hdnn.

It uses what versions share: the public interface, and for whole trainings `training.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import hdnn
import training
from speed.cases import Case
from speed.peers import PEERS
from speed.timing import Work, repeat
from speed.worker import Record, serve

Function = Callable[[], Any]


def step(request: Record) -> Function:
    """Forward and backward by a peer."""
    return PEERS[request["peer"]](Case(**request["case"]))


def forward(request: Record) -> Function:
    """y_N without gradients."""
    case = Case(**request["case"])
    net, y = case.network(), case.state()
    return torch.no_grad()(lambda: net(y))


def sensitivities(request: Record) -> Function:
    """d y_N / d y_l of all layers."""
    case = Case(**request["case"])
    net, y = case.network(), case.state()
    return lambda: hdnn.analysis.sensitivities(net, y)


def predict(request: Record) -> Function:
    """Probabilities of a model of tables, from raw columns."""
    columns, width, samples = (request[key] for key in ("columns", "width", "samples"))
    net = hdnn.network("H1", features=width, layers=16, T=1.2, scale=0.3, dtype=torch.float32)
    scaler = hdnn.Scaler.fit(torch.randn(100, columns))
    model = hdnn.Model(net, 1, hdnn.Augmentation(columns, width), scaler).eval()
    x = torch.randn(samples, columns)
    return torch.inference_mode()(lambda: model.probabilities(x))


def train(request: Record) -> Function:
    """A whole training on the Swiss roll."""
    data, epochs = training.split("swiss-roll"), request["epochs"]
    if request["members"] > 1:
        return lambda: training.train_ensemble(data, epochs, request["members"])
    return lambda: training.train_one(data, epochs, method=request["method"])


WORKS = {work.__name__: work for work in (step, forward, sensitivities, predict, train)}


def prepare(request: Record) -> tuple[Work, Record]:
    """The work of that name; the answer says which version does it."""
    torch.manual_seed(0)
    work = repeat(WORKS[request["work"]](request))
    work(1)
    return work, {"version": hdnn.__version__, "threads": torch.get_num_threads()}


if __name__ == "__main__":
    serve(prepare)
