"""What the acts of a tour are made with; a later act may go on with what an earlier one has left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from popserver.database.database import Database
from popserver.engine.transaction import RepeatedId, Transaction
from popserver.messages.stored import Append, append
from popserver.model.message import Message, SendResult
from popserver.model.topic import Topic
from tests.frozen.catching import NOT_CAUGHT
from tests.frozen.seed import World
from tests.support.open_store import START_MS, OpenStore

R = TypeVar("R")
S = TypeVar("S")


class TouredStore(OpenStore):
    """A store that remembers which operations it has carried out."""

    def __init__(self, database: Database, now_ms: int = START_MS) -> None:
        super().__init__(database)
        self.now_ms = now_ms
        self.reached: set[Any] = set()

    def do(
        self, verb: Callable[[Transaction, Sequence[R]], Sequence[S]], *requests: R, careful: bool = False
    ) -> Sequence[S]:
        self.reached.add(verb)
        return super().do(verb, *requests, careful=careful)

    # Looks of the test itself are no part of the tour.

    def rows(self, query: str, **parameters: Any) -> list[Any]:
        return list(self.conn.execute(text(query), parameters, execution_options={NOT_CAUGHT: True}).all())

    def one_value(self, query: str, **parameters: Any) -> Any:
        return self.conn.execute(text(query), parameters, execution_options={NOT_CAUGHT: True}).scalar()

    def sent(self, topic: Topic, *batch: Message) -> list[SendResult]:
        """As the writer sends: first without a look, and carefully when that meets something."""
        try:
            return self.one(append, Append(topic, batch))
        except (RepeatedId, IntegrityError):
            (results,) = self.do(append, Append(topic, batch), careful=True)
            assert isinstance(results, list)
            return results


Act = Callable[[TouredStore, World], object]
ACTS: list[Act] = []


def act(function: Act) -> Act:
    """Make the function the next act of its module."""
    ACTS.append(function)
    return function
