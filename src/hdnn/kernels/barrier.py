"""How threads share steps that follow each other, such as those of an epoch, in compiled code only.

The pieces of a step may be computed by anybody, in any order; what comes between two steps (adding
up, moving the weights) by the caller alone. So a kernel is written as

    if caller:                                      else:
        enter(team, True)                               if enter(team, False):
        for every step:                                     piece = next_shared(progress)
            publish(progress, pieces)                       while piece >= 0:
            piece = take(progress)                              ...
            while piece >= 0:                                   done(progress)
                ...                                             piece = next_shared(progress)
                done(progress)                              leave(team, False)
                piece = take(progress)
            if not wait(progress): break
            ...                                     # what comes between two steps
        finish(progress)
        leave(team, True)

Nobody takes a piece before its step has begun, so the caller waits for a helper only while that
computes a piece; without helpers, or with helpers that come late, it computes all pieces itself. A
helper that finds nothing for a while goes away, since the caller may need its core. What a call
promises of exceptions holds as for all kernels that threads share: see `hdnn.kernels.team`.
"""

import numpy as np

from hdnn.kernels.cache import cached
from hdnn.kernels.team import _add, _load, _replace, _swap

# Places in `progress`, each in a cache line of its own: pieces taken, published and computed since
# the start of the call; whether it is over; whether a helper has failed.
TAKEN, PUBLISHED, COMPUTED, OVER, FAILED = 0, 8, 16, 24, 32
PATIENCE = 100_000  # looks of a helper that finds nothing, about 0.2 ms

Progress = np.ndarray


def new_progress() -> Progress:
    """That of one call."""
    return np.zeros(40, np.int64)


@cached(nogil=True)
def publish(progress: Progress, pieces: int) -> None:
    """Begin a step of so many pieces."""
    _add(progress, PUBLISHED, pieces)


@cached(nogil=True)
def take(progress: Progress) -> int:
    """A piece of the steps published that nobody has taken, counted over all steps; or -1."""
    piece = _load(progress, TAKEN)
    while piece < _load(progress, PUBLISHED):
        if _replace(progress, TAKEN, piece, piece + 1):
            return piece
        piece = _load(progress, TAKEN)
    return -1


@cached(nogil=True)
def next_shared(progress: Progress) -> int:
    """For a helper: as `take`, looking for some time; -1 where the call is over, or seems to be."""
    for _ in range(PATIENCE):
        piece = take(progress)
        if piece >= 0 or _load(progress, OVER):
            return piece
    return -1


@cached(nogil=True)
def done(progress: Progress) -> None:
    """A piece that was taken has been computed."""
    _add(progress, COMPUTED, 1)


@cached(nogil=True)
def wait(progress: Progress) -> bool:
    """For the caller: until all pieces published have been computed; False if one never will be."""
    while _load(progress, COMPUTED) < progress[PUBLISHED]:
        if _load(progress, FAILED):
            return False
    return True


@cached(nogil=True)
def fail(progress: Progress) -> None:
    """A piece that was taken will not be computed: there was no memory."""
    _swap(progress, FAILED, 1)


@cached(nogil=True)
def finish(progress: Progress) -> None:
    """There are no more steps."""
    _swap(progress, OVER, 1)
