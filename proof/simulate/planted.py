"""Planted faults: those of `make torture` that a simulation can meet, and its own. A run has to find each of them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

from sqlalchemy import insert

from popserver.bulk import pages
from popserver.bulk.rules import QueuePage
from popserver.clients.clients import Clients
from popserver.cluster import sql
from popserver.cluster.servers import Servers
from popserver.database.schema import keyed_message
from popserver.engine import writer
from popserver.engine.clock import Times
from popserver.engine.timers import DueTimer
from popserver.engine.transaction import Transaction
from popserver.engine.wakeups import Wakeups
from popserver.engine.writer import Writer
from popserver.messages.columns import Columns
from popserver.model.states import Event
from popserver.producing.scheduled import Pending
from popserver.receiving import receive
from popserver.settling import change, expire
from popserver.settling.hold_release import HoldRelease
from proof.history.scenes import Scene
from proof.simulate.machine import SimulatedClock
from proof.simulate.run import SCENES
from proof.torture import planted as torture


class Planted(NamedTuple):
    """`found_as`: the invariants of which at least one must be reported. `plant` returns what undoes it.

    `servers`: so many on one database are needed to meet it.
    """

    scene: Scene
    found_as: frozenset[str]
    plant: Callable[[], Any]
    servers: int = 1


# What is judged before the calls that a simulation makes.
_NOT_MET = {"a hold ends early", "answers do not wait for the commit"}


def _replaced(where: object, name: str, instead: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: patch.object(where, name, instead(getattr(where, name)))


def _now_and_then(right: Any) -> Any:
    calls = itertools.count(1)
    return lambda tx, batch, grants: right(tx, batch, grants[:-1] if next(calls) % 5 == 0 else grants)


def _attempts(change: Callable[[int], int]) -> Callable[[Any], Any]:
    def made(right: Any) -> Any:
        def deliveries(*given: Any) -> Any:
            return [each._replace(attempt=change(each.attempt)) for each in right(*given)]

        return deliveries

    return made


def _told_as_done(right: Any) -> Any:
    return lambda self, error, result: right(self, error, result) if result is None else result


async def _nothing(*_given: object) -> None: ...


async def _nowhere_else(*_given: object, **_named: object) -> bool:
    return True


def _now_and_then_shorter(cut: Callable[[QueuePage, Columns], QueuePage]) -> Callable[[Any], Any]:
    """A page of a range, changed each third time if it has messages."""

    def made(right: Any) -> Any:
        calls = itertools.count(1)

        def page(*given: Any) -> QueuePage:
            found: QueuePage = right(*given)
            if found.columns is None or not found.columns.keys or next(calls) % 3:
                return found
            return cut(found, found.columns)

        return page

    return made


def _without_first(page: QueuePage, columns: Columns) -> QueuePage:
    values = {name: each[1:] for name, each in columns.values.items()}
    size = columns.body_sizes[0]
    cut = Columns(columns.keys[1:], values, columns.bodies[size:], columns.body_sizes[1:])
    return page._replace(columns=cut)


def _of_system(clock: SimulatedClock) -> Times:
    return Times(clock.calendar_ms(), clock.calendar_ms(), clock.aged_ms())


def _unsound(right: Any) -> Any:
    """An index entry that nobody removes; no client notices it."""
    calls = itertools.count(1)

    def execute(tx: Transaction, batch: Any) -> Any:
        if (at := next(calls)) % 100 == 0:
            tx.conn.execute(insert(keyed_message).values(block=1, key_hash=1, slot=at))
        return right(tx, batch)

    return execute


@contextmanager
def _undone(plant: Callable[[], None]) -> Iterator[None]:
    """A fault that replaces names of modules for good, until the end of the block."""
    before = {name: dict(vars(module)) for name, module in sys.modules.items() if name.startswith("popserver.")}
    plant()
    try:
        yield
    finally:
        for name, names in before.items():
            vars(sys.modules[name]).update(names)


_OWN: dict[str, Planted] = {
    "an attempt too many": Planted(
        Scene.PLAIN, frozenset({"I8"}), _replaced(expire, "when_hold_ends", lambda _: lambda *_: Event.RELEASE)
    ),
    "each attempt counts twice": Planted(
        Scene.PLAIN, frozenset({"I7"}), _replaced(receive, "_deliveries", _attempts(lambda attempt: 2 * attempt))
    ),
    "a delivery is told and not written": Planted(
        Scene.PLAIN, frozenset({"I1", "I3", "I4"}), _replaced(receive, "write_grants", _now_and_then)
    ),
    "an unknown commit is answered OK": Planted(
        Scene.PLAIN,
        frozenset({"I1", "I4", "I5", "I7"}),
        _replaced(Writer, "_unknown", _told_as_done),
    ),
    "holds do not end": Planted(
        Scene.PLAIN, frozenset({"I1", "I14"}), _replaced(DueTimer, "_set_alarm", lambda _: lambda _self: None)
    ),
    "a message that is given up comes again": Planted(
        Scene.REDRIVE, frozenset({"I8"}), _replaced(change, "move_to_dead_letters", lambda _: lambda *_: None)
    ),
    "a push consumer that is there loses its holds": Planted(
        Scene.PLAIN,
        frozenset({"I3"}),
        _replaced(Clients, "_ends_at_ms", lambda _: lambda _self, client: client.last_seen_ms + 2_000),
    ),
    "a push consumer that went to another server loses its holds": Planted(
        Scene.PLAIN, frozenset({"I3"}), _replaced(Servers, "detach", lambda _: _nowhere_else), servers=2
    ),
    "the push consumers of a killed server keep their holds": Planted(
        Scene.PLAIN, frozenset({"I1", "I14"}), _replaced(sql, "_left_behind", lambda _: lambda _tx: ()), servers=2
    ),
    "the holds of a push consumer that left do not end": Planted(
        Scene.PLAIN, frozenset({"I1", "I14"}), _replaced(HoldRelease, "abandon_client", lambda _: _nothing)
    ),
    "what is handed back comes again at once": Planted(
        Scene.PLAIN, frozenset({"I3"}), _replaced(change, "_wait_ms", lambda _: lambda *_: 0)
    ),
    "a range is read without a message": Planted(
        Scene.QUEUES, frozenset({"I12"}), _replaced(pages, "page", _now_and_then_shorter(_without_first))
    ),
    "a range is read twice in part": Planted(
        Scene.QUEUES,
        frozenset({"I12"}),
        _replaced(
            pages,
            "page",
            _now_and_then_shorter(lambda page, _: page._replace(next_offset=page.next_offset - 1)),
        ),
    ),
    "new messages wake no poll": Planted(
        Scene.PLAIN, frozenset({"I14"}), _replaced(Wakeups, "wake", lambda _: lambda *_given, **_named: None)
    ),
    "holds follow the system clock": Planted(
        Scene.PLAIN, frozenset({"I3"}), _replaced(SimulatedClock, "times", lambda _: _of_system)
    ),
    "the store is not sound": Planted(Scene.DELAY, frozenset({"I13"}), _replaced(writer, "_execute", _unsound)),
    "delayed messages are forgotten at a restart": Planted(
        Scene.DELAY, frozenset({"I1", "I14"}), _replaced(Pending, "start", lambda _: _nothing)
    ),
}
_OF_TORTURE = {
    name: Planted(fault.scene, fault.found_as, partial(_undone, fault.plant))
    for name, fault in torture.FAULTS.items()
    if fault.scene in SCENES and not fault.programs and name not in _NOT_MET
}
PLANTED: dict[str, Planted] = _OF_TORTURE | _OWN


@contextmanager
def planted(fault: Planted) -> Iterator[None]:
    """The fault, until the end of the block."""
    with fault.plant():
        yield
