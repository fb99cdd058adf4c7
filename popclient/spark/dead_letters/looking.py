"""A connection that is kept between the looks of an idle stream, for opening one costs more than a look."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from popclient.spark.dead_letters.database import connected

Answer = TypeVar("Answer")


class KeptConnection:
    """Opened by the first question, kept until it is closed. Pickled, it is one that is closed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._kept: tuple[Connection, ExitStack] | None = None

    def __reduce__(self) -> tuple[type[KeptConnection], tuple[str]]:
        return KeptConnection, (self._url,)

    def ask(self, question: Callable[[Connection], Answer]) -> Answer:
        """A kept connection may have been lost, as in a restart of the database: then a new one is asked. Raises as
        `connected` does."""
        if self._kept is not None:
            with suppress(DBAPIError):
                return question(self._kept[0])
            self.close()
        with ExitStack() as stack:
            conn = stack.enter_context(connected(self._url))
            answer = question(conn)
            self._kept = conn, stack.pop_all()
        return answer

    def close(self) -> None:
        if self._kept is not None:
            kept, self._kept = self._kept, None
            kept[1].close()
