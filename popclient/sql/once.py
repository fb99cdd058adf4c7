"""Does the work of each message once: the message's id is committed with the work, in the user's own database.

A broker delivers at least once. When an ack is lost, a message comes again although its work is done; the id shows it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, overload

from sqlalchemy import Connection, Insert, delete, insert, inspect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.orm import Session, sessionmaker

from popclient._arguments import is_async
from popclient.errors import UnsupportedByStore
from popclient.listening import ConsumeResult
from popclient.message import MessageView
from popclient.sql.connection import Handle, name_of, run_on, state_and_message
from popclient.sql.tables import processed

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

    from popclient.sql.connection import AsyncHandle

Handler = Callable[[MessageView, Session], object]
AsyncHandler = Callable[[MessageView, "AsyncSession"], Awaitable[object]]
_SUCCESS: Final = ConsumeResult.SUCCESS
_FAILURE: Final = ConsumeResult.FAILURE


@overload
def idempotent(
    sessions: sessionmaker[Any], *, group: str
) -> Callable[[Handler], Callable[[MessageView], ConsumeResult]]: ...
@overload
def idempotent(
    sessions: async_sessionmaker[Any], *, group: str
) -> Callable[[AsyncHandler], Callable[[MessageView], Awaitable[ConsumeResult]]]: ...
def idempotent(sessions: Any, *, group: str) -> Callable[[Any], Any]:
    """Turns a handler, which takes a message and a session, into a listener that does each message's work once.

    The message's id is committed together with the handler's writes; the handler is not called for a message whose id
    is there already. The listener returns SUCCESS for both, so ack it. When the handler returns FAILURE or raises, all
    is rolled back. `sessions` is a sessionmaker, or an async_sessionmaker with an asynchronous handler. `group` is a
    part of what is recorded: give the name of the consumer group, which nothing compares with that of the consumer.

    Needs the table `popmq_processed` (`popclient.sql.metadata.create_all(engine)`): without it each message raises
    UnsupportedByStore.

        @idempotent(Session, group="billing")
        def bill(message, session):
            session.add(Invoice(order=message.text))
    """

    def decorate(handler: Any) -> Any:
        _require_fit(sessions, handler)

        @functools.wraps(handler)
        async def listen_async(message: MessageView) -> ConsumeResult:
            return await _handle_later(sessions, group, handler, message)

        @functools.wraps(handler)
        def listen(message: MessageView) -> ConsumeResult:
            return _handle(sessions, group, handler, message)

        return listen_async if is_async(handler) else listen

    return decorate


@overload
def first_time(session: Handle, message: MessageView, /, *, group: str) -> bool: ...
@overload
def first_time(session: AsyncHandle, message: MessageView, /, *, group: str) -> Awaitable[bool]: ...
def first_time(session: Handle | AsyncHandle, message: MessageView, /, *, group: str) -> bool | Awaitable[bool]:
    """Records in the session's transaction that the group has done this message; False if that is recorded already.

    Waits for another transaction that is recording the same message. Raises UnsupportedByStore without the table
    `popmq_processed`.
    """
    row = {
        "consumer_group": group,
        "topic": message.topic,
        "message_id": message.message_id,
        "processed_at_ms": time.time_ns() // 1_000_000,
    }
    return run_on(session, lambda conn: _insert(conn, row))


@overload
def forget_processed(session: Handle, older_than: timedelta, /) -> int: ...
@overload
def forget_processed(session: AsyncHandle, older_than: timedelta, /) -> Awaitable[int]: ...
def forget_processed(session: Handle | AsyncHandle, older_than: timedelta, /) -> int | Awaitable[int]:
    """Deletes older records in the session's transaction; returns how many.

    Keep records as long as their messages may come again: for the broker's retention, 72 h by default. Raises
    UnsupportedByStore without the table `popmq_processed`.
    """
    before_ms = time.time_ns() // 1_000_000 - older_than // timedelta(milliseconds=1)
    return run_on(session, lambda conn: _delete(conn, before_ms))


def _require_fit(sessions: Any, handler: Any) -> None:
    """Raises TypeError unless handler and sessions are both synchronous or both asynchronous."""
    if not hasattr(sessions, "class_"):
        raise TypeError(f"idempotent takes a sessionmaker, not an object of type {type(sessions).__name__}")
    makes_async = hasattr(sessions.class_, "run_sync")
    if is_async(handler) and not makes_async:
        raise TypeError(
            f"handler {handler!r} is a coroutine function; give idempotent an async_sessionmaker in place of"
            f" {sessions!r}"
        )
    if makes_async and not is_async(handler):
        raise TypeError(
            f"handler {handler!r} is no coroutine function; write it with `async def`, or give idempotent a"
            f" sessionmaker in place of {sessions!r}"
        )


class _Undone(Exception):
    """The handler has returned FAILURE; raised to roll back."""


def _handle(sessions: Any, group: str, handler: Handler, message: MessageView) -> ConsumeResult:
    try:
        with sessions.begin() as session:
            if first_time(session, message, group=group) and handler(message, session) == _FAILURE:
                raise _Undone
    except _Undone:
        return _FAILURE
    return _SUCCESS


async def _handle_later(sessions: Any, group: str, handler: AsyncHandler, message: MessageView) -> ConsumeResult:
    try:
        async with sessions.begin() as session:
            if await first_time(session, message, group=group) and await handler(message, session) == _FAILURE:
                raise _Undone
    except _Undone:
        return _FAILURE
    return _SUCCESS


def _insert(conn: Connection, row: dict[str, Any]) -> bool:
    unless_there = _INSERT_UNLESS_THERE.get(conn.dialect.name)
    with _naming_the_table(conn):
        if unless_there is not None:
            # SQLAlchemy keeps the row count of an INSERT only with this option.
            return conn.execute(unless_there, row, execution_options={"preserve_rowcount": True}).rowcount == 1
        try:
            with conn.begin_nested():
                conn.execute(insert(processed), row)
        except IntegrityError:
            return False
        return True


def _delete(conn: Connection, before_ms: int) -> int:
    with _naming_the_table(conn):
        return conn.execute(delete(processed).where(processed.c.processed_at_ms < before_ms)).rowcount


@contextmanager
def _naming_the_table(conn: Connection) -> Iterator[None]:
    """Raises UnsupportedByStore if the statement fails because its table is missing."""
    try:
        yield
    except (OperationalError, ProgrammingError) as error:
        state, _ = state_and_message(error.orig)
        # SQLite's driver has no SQLSTATE. Its transaction goes on after the error, so it can be asked for the table.
        if state not in _NO_TABLE and (state or inspect(conn).has_table(processed.name)):
            raise
        raise UnsupportedByStore(
            f"{name_of(conn)} has no table {processed.name}; make it with: popclient.sql.metadata.create_all(engine)"
        ) from None


_NO_TABLE: Final = ("42P01", "42S02")  # SQLSTATEs: of Postgres, and of MySQL


_INSERT_UNLESS_THERE: Final[dict[str, Insert]] = {
    "postgresql": postgresql.insert(processed).on_conflict_do_nothing(),
    "sqlite": sqlite.insert(processed).on_conflict_do_nothing(),
    "mysql": insert(processed).prefix_with("IGNORE"),
    "mariadb": insert(processed).prefix_with("IGNORE"),
}
