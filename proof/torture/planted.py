"""A server with a planted fault, as a process: python -m proof.torture.planted FAULT COMMAND serve …

Or a Spark query or a client program with one, where the command is the name of its module. Each fault breaks one
promise now and then. A round in its scene has to find it, by one of its invariants; else the harness proves nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from proof.history.scenes import Scene
from proof.torture import client_program, planted_beside, spark_program
from proof.torture.faults import FAULTS, fault, module

SOON_MS = 400
__all__ = ["FAULTS", "planted_beside"]


@fault("a request fails by itself", Scene.PLAIN, "error")
def _mistake() -> None:
    """For a reason that is no fault of the database; its caller learns that the outcome is unknown."""
    writer = module("popserver.engine.writer")
    execute, calls = writer._execute, itertools.count(1)

    def fails(*given: Any) -> Any:
        if next(calls) % 50 == 0:
            raise ZeroDivisionError
        return execute(*given)

    writer._execute = fails


@fault("an ack is answered and not carried out", Scene.PLAIN, "I5")
def _ack_ignored() -> None:
    ack = module("popserver.settling.ack")

    commit, calls = ack._commit, itertools.count(1)
    ack._commit = lambda *given: {} if next(calls) % 5 == 0 else commit(*given)


@fault("a transaction is answered and rolled back", Scene.PLAIN, "I1", "I5", "I7")
def _lost_commit() -> None:
    writer = module("popserver.engine.writer")

    execute, calls = writer.execute_text, itertools.count(1)

    def sometimes(conn: Any, text: str) -> Any:
        return execute(conn, "ROLLBACK" if text == "COMMIT" and next(calls) % 25 == 0 else text)

    writer.execute_text = sometimes


@fault("answers do not wait for the commit", Scene.PLAIN, "I1", "I5", "I7")
def _late_commit() -> None:
    writer = module("popserver.engine.writer")

    execute, commits = writer.execute_text, itertools.count(1)

    def rarely(conn: Any, text: str) -> Any:
        """Ten transactions are one, so a kill loses those that were answered before its commit."""
        is_open = conn.connection.dbapi_connection.in_transaction
        if (is_open and text.startswith("BEGIN")) or (text == "COMMIT" and (at := next(commits)) > 30 and at % 10):
            return None
        return execute(conn, text)

    writer.execute_text = rarely


@fault("a hold ends early", Scene.PLAIN, "I3")
def _early_end() -> None:
    rpc = module("popserver.receiving.rpc")

    asked = rpc.invisible_ms_of
    rpc.invisible_ms_of = lambda request, limits: asked(request, limits) // 10


@fault("a refused ack is answered OK", Scene.PLAIN, "I4", "I5")
def _stale_accepted() -> None:
    ack = module("popserver.settling.ack")

    ack.why_not = lambda *_given: None


@fault("a message dies after two attempts", Scene.PLAIN, "I8")
def _dies_early() -> None:
    expire = module("popserver.settling.expire")

    ends = expire.when_hold_ends
    expire.when_hold_ends = lambda holder, attempt, policy: ends(
        holder, attempt, policy._replace(max_attempts=2)
    )  # fmt: skip


@fault("each attempt is told as the first one", Scene.PLAIN, "I7")
def _first_again() -> None:
    receive = module("popserver.receiving.receive")

    _with_each_delivery(receive, attempt=lambda _attempt: 1)


@fault("a body loses its first byte", Scene.PLAIN, "I1", "I2")
def _body_changed() -> None:
    append = module("popserver.messages.stored")

    rows, calls = append._rows, itertools.count(1)

    def bitten(stored_at_ms: int, topic: Any, first_key: int, batch: Any) -> Any:
        if next(calls) % 4 == 0:
            batch = [each._replace(body=each.body[1:] or b"-") for each in batch]
        return rows(stored_at_ms, topic, first_key, batch)

    append._rows = bitten


@fault("a body in a queue loses its first byte", Scene.QUEUES, "I1")
def _queued_body_changed() -> None:
    _body_changed()


@fault("message groups are not locked", Scene.FIFO, "I6")
def _no_order() -> None:
    receive = module("popserver.receiving.receive")

    receive.SYSTEM_DERIVED = ""


@fault("a delayed message comes early", Scene.DELAY, "I10")
def _early_timer() -> None:
    pending_messages = module("popserver.messages.pending_messages")

    pending_messages._DUE = _Hasty(pending_messages._DUE)


@fault("a rollback is a commit", Scene.TRANSACTIONS, "I2")
def _rollback_commits() -> None:
    half_messages = module("popserver.producing.half_messages")
    resolution = module("popserver.producing.rules").Resolution

    decide = half_messages._decide
    half_messages._decide = lambda tx, request, rows, decided: decide(
        tx, dataclasses.replace(request, resolution=resolution.COMMIT), rows, decided
    )  # fmt: skip


@fault("progress goes back by one", Scene.QUEUES, "I12")
def _progress_back() -> None:
    commit = module("popserver.pulling.commit")

    fetch = commit.fetch
    commit.fetch = lambda *given: [each._replace(offset=max(each.offset - 1, -1)) for each in fetch(*given)]


@fault("a pull leaves out its first message", Scene.QUEUES, "I12")
def _pull_leaves_out() -> None:
    _with_pulled_keys(lambda keys: keys[1:])


@fault("a pull has a message twice", Scene.QUEUES, "I12")
def _pulled_twice() -> None:
    _with_pulled_keys(lambda keys: [keys[0], *keys])


@fault("a pull has its messages in another order", Scene.QUEUES, "I12")
def _pulled_in_another_order() -> None:
    _with_pulled_keys(lambda keys: keys[::-1])


@fault("the answer of a redrive leaves out what it has sent", Scene.REDRIVE, "I8")
def _denied_redrive() -> None:
    facts = module("popserver.dead_letters.plan_facts")

    found = facts.redrives_of
    facts.redrives_of = lambda *given: [each._replace(state="SKIPPED") for each in found(*given)]


@fault("a page of a bulk pull leaves out its first message", Scene.SPARK, "I1", "I12")
def _page_leaves_out() -> None:
    pages = module("popserver.bulk.pages")

    page, calls = pages.page, itertools.count(1)

    def without_first(conn: Any, queue_slice: Any) -> Any:
        is_long = queue_slice.end_offset > queue_slice.offset + 1
        return page(conn, queue_slice._replace(offset=queue_slice.offset + (is_long and next(calls) % 4 == 0)))

    pages.page = without_first


@fault("messages of an attempt are forgotten", Scene.SPARK, "I1", "I14", spark_mode="lease")
def _attempt_forgotten() -> None:
    attempts = module("popserver.bulk.attempts")

    attempts.held_by = lambda *_given: []


@fault("a sink does not know its batches", Scene.SPARK, "I5")
def _batches_unknown() -> None:
    module(spark_program.__name__).is_new = lambda *_given: True


@fault("a query loses its checkpoint", Scene.SPARK, "I5")
def _checkpoint_lost() -> None:
    module(spark_program.__name__).checkpoint_in = lambda folder: str(folder / f"checkpoint-{os.getpid()}")


@fault("an ack is answered and not carried out, by gRPC's library", Scene.PLAIN, "I5", engine="grpcio")
def _ack_ignored_on_grpcio() -> None:
    _ack_ignored()


class _Hasty:
    """A statement about what is due, to which it is later than it is."""

    def __init__(self, statement: Any) -> None:
        self._statement = statement

    def rows(self, conn: Any, names: dict[str, Any]) -> Any:
        return self._statement.rows(conn, names | {"now_ms": names["now_ms"] + SOON_MS})


def _with_pulled_keys(change: Callable[[Sequence[int]], Sequence[int]]) -> None:
    """Pulls of more than three messages find these keys instead."""
    read = module("popserver.pulling.read")

    pulled = read._pulled

    def changed(conn: Any, pull: Any, ends: Any, reached: Any, rows: Any) -> Any:
        if reached is not None and len(reached.keys) > 3:
            reached = reached._replace(keys=change(reached.keys))
        return pulled(conn, pull, ends, reached, rows)

    read._pulled = changed


def _with_each_delivery(module: Any, **changes: Callable[[Any], Any]) -> None:
    """`Delivery` as this module makes it, with other values."""
    kind = module.Delivery

    def made(*given: Any, **named: Any) -> Any:
        values = dict(zip(kind._fields, given, strict=False)) | named
        return kind(**values | {name: change(values[name]) for name, change in changes.items()})

    module.Delivery = made


def main() -> int:
    """Plant the fault, then run the command's own program with the rest of the words."""
    name, command, *words = sys.argv[1:]
    FAULTS[name].plant()
    sys.argv = [command, *words]
    for program in (spark_program, client_program):
        if command == program.__name__:
            program.main()
            return 0
    from popclient.cli import main as popmq

    return int(popmq() or 0)


if __name__ == "__main__":
    sys.exit(main())
