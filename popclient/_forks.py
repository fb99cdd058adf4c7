"""gRPC after a fork.

A child process has no thread but the one that forked. gRPC's threads are gone in it, and its locks stay as they were
at that moment: a call would wait without end, or end the process by SIGSEGV. grpc.aio does not support forks, but it
ends its threads with the last channel. So a child may use gRPC if no channel was open when it was forked. Otherwise
all use of it is refused there, and what the child has inherited is neither touched nor freed: freeing it would call
gRPC.

Newer versions of gRPC start their threads again in every child, also one that uses no client. Beside an open channel of
grpc.aio that ends 4 of 10 children by SIGSEGV (grpcio 1.85), so it is off, unless the environment asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from popclient.errors import Forked

_SUPPORT: Final = "GRPC_ENABLE_FORK_SUPPORT"
_IS_ASKED_FOR: Final = os.environ.get(_SUPPORT, "").lower() in ("1", "t", "true", "y", "yes")
_THREADS_OF_GRPC: Final = ("event_engine", "grpc_", "lifeguard")  # how the names of gRPC's own threads begin
_MOMENT_MS: Final = 1_000
_COLLECT_EVERY: Final = 50
_QUIET_MS: Final = 5  # without a thread that comes or goes, before gRPC counts as ended
_IN_USE: Final = (
    "gRPC was in use when this process was forked, and it does not work after that: close every client before the fork,"
    " and make new ones after it; or start processes without a fork, for example with multiprocessing's 'spawn' or"
    " 'forkserver' (docs/processes.md)"
)
USED_BEFORE: Final = "this client was used before the process was forked; make a new one in the child"


def load_grpc() -> None:
    """Loads gRPC without its support of forks, unless the environment says something of that."""
    if _SUPPORT in os.environ:
        return
    os.environ[_SUPPORT] = "0"  # read once, when gRPC is loaded
    import grpc  # noqa: F401

    del os.environ[_SUPPORT]


class UsesGrpc(Protocol):
    """What has open channels."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None: ...


class _Forks:
    def __init__(self) -> None:
        self.open: weakref.WeakSet[UsesGrpc] = weakref.WeakSet()
        self.lost = False  # this process, or one above it, was forked while gRPC was in use
        self.was_closed = False  # since the last fork
        self._in_use = False

    def before(self) -> None:
        if self.was_closed and not self.open:
            self.was_closed = False
            _wait_for_the_end()
        self._in_use = self.lost or bool(self.open) or _is_running()

    def in_child(self) -> None:
        if self._in_use and not self.lost:
            self.lost = True
            for each in list(self.open):
                _keep(each)
                for task in asyncio.all_tasks(each.loop) if each.loop is not None else ():
                    _keep(task)


def _wait_for_the_end() -> None:
    """gRPC's threads take a moment to end, on a busy machine. The last one, which has a lock that every new channel
    needs, is started by another and has no name at first: so no thread may have come or gone for a while."""
    before, quiet = frozenset[str](), 0
    for turn in range(_MOMENT_MS):
        if turn % _COLLECT_EVERY == 0:
            # Calls of a closed client may be in a circle, and keep its channel. Their event loop may be in them still.
            gc.collect()
        threads = _other_threads()
        quiet = 0 if _is_running() or threads != before else quiet + 1
        if quiet == _QUIET_MS:
            return
        before = threads
        time.sleep(0.001)


def _other_threads() -> frozenset[str]:
    """The ids of the threads that Python has not started; empty where only Python knows its threads."""
    own = {str(each.native_id) for each in threading.enumerate()}
    with contextlib.suppress(OSError):
        return frozenset(each.name for each in Path("/proc/self/task").iterdir()) - own
    return frozenset()


def _is_running() -> bool:
    """Does gRPC run in this process? Perhaps for another library. Of channels without asyncio Linux alone can tell, and
    gRPC's own support of forks is for those."""
    if any(each.name.endswith("(_poll_wrapper)") for each in threading.enumerate()):  # grpc.aio's thread
        return True
    return not _IS_ASKED_FOR and any(name.startswith(_THREADS_OF_GRPC) for name in _names_of_threads())


def _names_of_threads() -> Iterator[str]:
    with contextlib.suppress(OSError):
        for each in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):
                yield (each / "comm").read_text().rstrip()


def _keep(inherited: object) -> None:
    """It is never freed, not even when the process ends."""
    import ctypes  # not before it is needed: some builds of Python have none

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


_forks = _Forks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_forks.before, after_in_child=_forks.in_child)


def opens(user: UsesGrpc) -> None:
    """Call it before the user's first channel."""
    _forks.open.add(user)


def has_closed(user: UsesGrpc) -> None:
    """Call it when the user has no channel any more."""
    _forks.open.discard(user)
    _forks.was_closed = True


def is_lost() -> bool:
    """Was this process forked while gRPC was in use?"""
    return _forks.lost


def require_grpc() -> None:
    """Raises Forked where gRPC is lost."""
    if _forks.lost:
        raise Forked(_IN_USE)
