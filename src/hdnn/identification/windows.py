"""Adam on windows of long recordings, of which Levenberg-Marquardt sees some segments only.

Windows begin at x_0 of the model, whatever came before them; their first samples are not scored, as
that is forgotten by then.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from hdnn.data.recordings import Recordings
from hdnn.statespace import StateSpace

LENGTH, WASHOUT, BATCH = 1024, 128, 16
"""Samples of a window, of them not scored, and windows of a step."""
STEPS, EVERY = 3000, 100
"""Steps, and between two scores."""
LEARNING_RATE = 1e-2


def train(
    model: StateSpace,
    recordings: Recordings,
    score: Callable[[StateSpace], float],
    seed: int = 0,
    steps: int = STEPS,
    learning_rate: float = LEARNING_RATE,
) -> tuple[float, int]:
    """Minimize the squared error of free runs over random windows; the model is changed.

    Args:
        model: where to start; it ends with the weights of the smallest score.
        recordings: scaled; those shorter than a window are left out.
        score: what decides; less is better.
        seed: of the windows.
        steps: of Adam, with a learning rate that falls to 0 as a cosine.
        learning_rate: at the beginning.

    Returns:
        The smallest score, and after how many steps.
    """
    pairs = zip(recordings.inputs, recordings.outputs, strict=True)
    parts = [tuple(map(torch.tensor, pair)) for pair in pairs if len(pair[0]) >= LENGTH]
    u, y = (torch.cat(each) for each in zip(*parts, strict=True))
    lengths = torch.tensor([len(part[0]) for part in parts])
    ends = lengths.cumsum(0)
    spans = zip(ends - lengths, ends, strict=True)
    starts = torch.cat([torch.arange(i, j - LENGTH + 1) for i, j in spans])
    draw, within = torch.Generator().manual_seed(seed), torch.arange(LENGTH)
    parameters = [parameter for parameter in model.parameters() if parameter is not model.x0]
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    best, at = score(model), 0
    weights = nn.utils.parameters_to_vector(parameters).detach().clone()
    for k in range(1, steps + 1):
        first = starts[torch.randint(len(starts), (BATCH,), generator=draw)]
        rows = first[:, None] + within
        with torch.enable_grad():
            rest = model.x0.detach().expand(BATCH, -1)
            error = (model(u[rows], rest)[0] - y[rows])[:, WASHOUT:]
            loss = error.square().mean()
            optimizer.zero_grad()
            loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        if k % EVERY == 0:
            found = score(model)
            if found < best:
                best, at = found, k
                weights = nn.utils.parameters_to_vector(parameters).detach().clone()
    nn.utils.vector_to_parameters(weights, parameters)
    return best, at
