"""How threads share the pieces of one kernel call, in compiled code only.

A *team* is one small array of integers for one call. Every kernel that threads share is written as

    piece = first_piece(team, caller)
    while piece >= 0:
        ...                                # one piece of the work
        piece = next_piece(team, caller)

The thread that made the call passes ``caller=True``, its helpers ``False``. The caller opens a gate
when it enters, closes it when no piece is left, and then waits until the last helper has left. All
of that happens inside one call of compiled code, which an exception of a signal handler (Ctrl-C, a
timeout) or of `PyThreadState_SetAsyncExc` cannot cut short: Python raises these between its own
instructions. So an exception comes before the gate is open, and no helper begins, or after the
last one has left. Nobody writes to memory that the caller has given away.

    NEXT     the next piece that nobody has taken
    COUNT    how many pieces there are
    ACTIVE   who is at work: the caller from the start, and the helpers that have joined
    GATE     whether helpers may begin
    LATCH    the address of a lock of CPython's, which the last helper opens; 0 without helpers
    JOINED   how many helpers have taken part
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hdnn.kernels.cache import cached

NEXT, COUNT, ACTIVE, GATE, LATCH, JOINED = range(6)
NOT_YET, OPEN, CLOSED = range(3)
PATIENCE = 500  # polls of the gate before a helper goes away: the caller may need its core
SPINS = 5_000  # polls of the last helpers, about 5 us, before the caller goes to sleep

Team = np.ndarray

# CPython's own lock works without the interpreter's lock, on every system, and waits through
# signals.
_acquire = types.ExternalFunction("PyThread_acquire_lock", types.int32(types.uintp, types.int32))
_release = types.ExternalFunction("PyThread_release_lock", types.void(types.uintp))


def new_team(pieces: int, latch: int = 0) -> Team:
    """The team of a call with so many pieces; ``latch`` is the address of a locked lock."""
    return np.array((0, pieces, 1, NOT_YET, latch, 0), np.int64)


def _address(context, builder, kind, args):
    """Where the entry args[1] of the team args[0] is."""
    data = context.make_array(kind)(context, builder, args[0]).data
    return builder.gep(data, [args[1]])


@intrinsic
def _load(typing, team, k):
    """team[k], as all threads see it."""

    def codegen(context, builder, signature, args):
        return builder.load_atomic(_address(context, builder, team, args), "seq_cst", 8)

    return types.int64(team, types.intp), codegen


@intrinsic
def _add(typing, team, k, value):
    """team[k] += value in one step; returns what was there before."""

    def codegen(context, builder, signature, args):
        address = _address(context, builder, team, args)
        return builder.atomic_rmw("add", address, args[2], "seq_cst")

    return types.int64(team, types.intp, types.int64), codegen


@intrinsic
def _swap(typing, team, k, value):
    """team[k] = value in one step; returns what was there before."""

    def codegen(context, builder, signature, args):
        address = _address(context, builder, team, args)
        return builder.atomic_rmw("xchg", address, args[2], "seq_cst")

    return types.int64(team, types.intp, types.int64), codegen


@intrinsic
def _replace(typing, team, k, old, new):
    """team[k] = new in one step if it is ``old``; whether it was."""

    def codegen(context, builder, signature, args):
        address = _address(context, builder, team, args)
        pair = builder.cmpxchg(address, args[2], args[3], "seq_cst")
        return builder.zext(builder.extract_value(pair, 1), ir.IntType(8))

    return types.uint8(team, types.intp, types.int64, types.int64), codegen


@cached(nogil=True)
def enter(team: Team, caller: bool) -> bool:
    """Enter a call; False for a helper that is too early or too late, which then has left."""
    if caller:
        if team[LATCH] == 0:  # without helpers, an array may serve again
            team[NEXT], team[ACTIVE] = 0, 1
        _swap(team, GATE, OPEN)
        return True
    active = _load(team, ACTIVE)
    while active > 0 and not _replace(team, ACTIVE, active, active + 1):
        active = _load(team, ACTIVE)
    if active == 0:  # the call is over
        return False
    spins = 0
    while _load(team, GATE) == NOT_YET and spins < PATIENCE:
        spins += 1
    if _load(team, GATE) != OPEN:
        leave(team, caller)
        return False
    _add(team, JOINED, 1)
    return True


@cached(nogil=True)
def first_piece(team: Team, caller: bool) -> int:
    """Enter a call: a piece of its work, or -1 where there is nothing to do."""
    return next_piece(team, caller) if enter(team, caller) else -1


@cached(nogil=True)
def next_piece(team: Team, caller: bool) -> int:
    """Another piece of the work; -1, after leaving the call, where none is left."""
    piece = _add(team, NEXT, 1)
    if piece < team[COUNT]:
        return piece
    leave(team, caller)
    return -1


@cached(nogil=True)
def leave(team: Team, caller: bool) -> None:
    """Leave a call; the caller, when the last helper has left.

    ACTIVE falls to 0 once: nobody joins from there. Whoever brings it there is the last; where
    that is a helper, the caller is waiting for the latch.
    """
    if caller:
        if _swap(team, GATE, CLOSED) != OPEN:  # it never entered
            return
        _swap(team, NEXT, team[COUNT])
    if _add(team, ACTIVE, -1) == 1:
        if not caller:
            _release(team[LATCH])
    elif caller:
        spins = 0
        while _load(team, ACTIVE) > 0 and spins < SPINS:
            spins += 1
        _acquire(team[LATCH], 1)
