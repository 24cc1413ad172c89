"""What a recording costs, in training steps: CPU time of trainings with and without a recorder.

python benchmarks/recorder.py        best of three, one thread; every iteration is recorded
"""

from __future__ import annotations

import json
import time

import torch

import hdnn
from hdnn.config import DataConfig
from hdnn.data import load
from hdnn.training import Trainer, TrainingConfig
from hdnn.training.recorder import Recorder

DATA = load(DataConfig("double-moons"))
LOOPS = (("compiled", "coordinate", 30), ("autograd", "coordinate", 3), ("auto", "joint", 3))


def seconds(name: str, layers: int, config: TrainingConfig, recorder: Recorder | None) -> float:
    """CPU time of a training."""
    step = {} if name == "FCNN" else {"T": 1.2}
    generator = torch.Generator().manual_seed(0)
    net = hdnn.network(
        name, features=4, layers=layers, dtype=torch.float32, generator=generator, **step
    )
    model = hdnn.Model(net, 1, hdnn.Augmentation(2, 4))
    trainer = Trainer(model, config, recorder=recorder)
    begin = time.process_time()
    trainer.fit(DATA)
    if recorder is not None:
        _ = [json.dumps(recording.to_dict()) for recording in recorder.recordings]
    return time.process_time() - begin


def main() -> None:
    torch.set_num_threads(1)
    print("network  layers  loop                 step, us  recording, us  in steps")
    for name, layers in (("H1", 64), ("MS3", 64), ("FCNN", 32), ("H1", 4), ("H1", 256)):
        for loop, method, epochs in LOOPS:
            config = TrainingConfig(epochs=epochs, loop=loop, method=method)
            seconds(name, layers, TrainingConfig(epochs=1, loop=loop, method=method), Recorder(1))
            plain = min(seconds(name, layers, config, None) for _ in range(3))
            watched = min(seconds(name, layers, config, Recorder(1)) for _ in range(3))
            steps = 40 * epochs
            one, extra = plain / steps * 1e6, (watched - plain) / steps * 1e6
            print(
                f"{name:7}  {layers:6}  {loop + ', ' + method:20} {one:8.0f}  {extra:13.0f}  "
                f"{extra / one:8.2f}"
            )


if __name__ == "__main__":
    main()
