"""How a worker asks the server: for dead letters of one group, with the patience in which a server restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from popclient.admin import Admin
from popclient.config import ClientConfig
from popclient.errors import RequestTimeout, ServerError, Unreachable

if TYPE_CHECKING:
    from pyspark.sql import Row

Answer = TypeVar("Answer")

REQUEST_TIMEOUT_S: Final = 30.0
PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.5


def patient(endpoints: str | ClientConfig) -> ClientConfig:
    """The server as it was given; one given by its address alone gets half a minute for each answer.

    Keys are looked for in the environment, here and not in the workers.
    """
    if isinstance(endpoints, ClientConfig):
        return endpoints
    return replace(ClientConfig(endpoints), request_timeout=REQUEST_TIMEOUT_S, tracing="off")


@contextmanager
def server(config: ClientConfig) -> Iterator[Admin]:
    """Made in the worker that uses it: a connection does not survive the fork of one process into another."""
    admin = Admin(config, connect_timeout=config.request_timeout)
    try:
        yield admin
    finally:
        admin.close()


def of_group(group: str, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows as they are; raises `ValueError` for one of another group, which the server would pass over."""
    for row in rows:
        if row.consumer_group != group:
            raise ValueError(
                f"dead letter {row.id} is of group '{row.consumer_group}', not of '{group}'; a plan is of one group,"
                " and so is a purge: narrow the frame to it"
            )
        yield row


def tried_again(
    call: Callable[[], Answer],
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """The answer of a call that may be repeated, over a restart of the server of up to a minute."""
    end = now() + PATIENCE_S
    while True:
        try:
            return call()
        except (Unreachable, RequestTimeout, ServerError):
            if now() >= end:
                raise
        sleep(_PAUSE_S)
