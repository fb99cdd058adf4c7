"""Reads inside the writer's transaction: for a database in memory, which has no second connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from sqlalchemy import Connection

from popserver.domain.errors import PopError
from popserver.store.transaction import Phase, Request, Transaction, carries_out

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Read(Request[T]):
    """A query to be run on the writer's connection."""

    phase: ClassVar = Phase.READ
    query: Callable[[Connection], T]


@carries_out(Read)
def read(tx: Transaction, requests: Sequence[Read[T]]) -> list[T | PopError]:
    """What each query finds; a query that raises a `PopError` is the only one to fail."""
    return [_read(tx.conn, request.query) for request in requests]


def _read(conn: Connection, query: Callable[[Connection], T]) -> T | PopError:
    try:
        return query(conn)
    except PopError as error:
        return error
