"""What inputs leave in memory: the same inputs are judged again and again, and the memory must not grow any more.

A cache that is full, or has these inputs, does not grow. Python's own memory is known to the byte (`tracemalloc`); that
of libraries in C by glibc, where it is the C library.
"""

from __future__ import annotations

import ctypes
import gc
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from proof.fuzz.target import FuzzTarget

LEFT = "in memory each time"
_WARM_UPS = 3  # passes over the inputs before memory is measured
_PASSES = 4  # between two measurements
_ALONE = 200  # times that an input is judged to know whether it leaks alone


def leak_of(target: FuzzTarget, inputs: Sequence[bytes]) -> tuple[bytes, str] | None:
    """An input that leaks, or none in particular (empty), and what is wrong; None if nothing is."""
    inputs = [*inputs] * max(1, target.leaked // len(inputs))  # few ones would measure what a pass leaves
    with _traced():
        grown = _growth(target, inputs)
        if grown <= target.leak_bytes_max:
            return None
        for each in () if target.has_state else dict.fromkeys(inputs):
            if (alone := _growth(target, [each] * _ALONE)) > target.leak_bytes_max:
                return each, _sentence(target, alone)
    return b"", _sentence(target, grown)


def _sentence(target: FuzzTarget, grown: float) -> str:
    return f"an input leaves {grown:.0f} bytes {LEFT}; it may leave {target.leak_bytes_max}"


def _growth(target: FuzzTarget, inputs: Sequence[bytes]) -> float:
    """Bytes per input: the smallest growth of the rounds. As soon as one is small enough, no more are needed."""
    _judge_all(target, inputs, _WARM_UPS)
    grown = float("inf")
    for _ in range(target.leak_rounds):
        before = _held()
        _judge_all(target, inputs, _PASSES)
        more = max(after - old for after, old in zip(_held(), before, strict=True))
        grown = min(grown, more / (_PASSES * len(inputs)))
        if grown <= target.leak_bytes_max:
            break
    return grown


def _judge_all(target: FuzzTarget, inputs: Sequence[bytes], times: int) -> None:
    for _ in range(times):
        for each in inputs:
            target.judge(each)


@contextmanager
def _traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


_MALLINFO = getattr(ctypes.CDLL(None), "mallinfo2", None)
if _MALLINFO is not None:
    _MALLINFO.restype = _Mallinfo


def _held() -> tuple[int, int]:
    """Bytes that Python holds, and those that `malloc` has given; these have the large ones of Python, too."""
    gc.collect()
    info = _MALLINFO() if _MALLINFO is not None else _Mallinfo()
    return tracemalloc.get_traced_memory()[0], info.uordblks + info.hblkhd
