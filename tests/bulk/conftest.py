"""A store on each database, brokers and doors, as elsewhere."""

from __future__ import annotations

from tests.broker.conftest import broker, either_broker, strict_broker
from tests.pull.conftest import either_door
from tests.rpc.conftest import door, strict_door
from tests.support.stores import postgres_database, store

__all__ = [
    "broker",
    "door",
    "either_broker",
    "either_door",
    "postgres_database",
    "store",
    "strict_broker",
    "strict_door",
]
