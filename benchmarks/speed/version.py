"""The works of `compare.py`: a worker for an environment with one version of hdnn."""

from __future__ import annotations

import torch

import hdnn
from hdnn.data import split
from speed.cases import Case
from speed.peers import PEERS
from speed.timing import Work, repeat
from speed.training import train_one
from speed.worker import Record, serve


def prepare(request: Record) -> tuple[Work, Record]:
    """A step of a case, or a whole training; the answer says which version does it."""
    torch.manual_seed(0)
    if "case" in request:
        work = repeat(PEERS["auto"](Case(**request["case"])))
    else:
        data = split("swiss-roll")
        work = repeat(lambda: train_one(data))
    work(1)
    return work, {"version": hdnn.__version__, "threads": torch.get_num_threads()}


if __name__ == "__main__":
    serve(prepare)
