"""A store on each database, brokers and doors, as elsewhere."""

from __future__ import annotations

from tests.admin.conftest import desk
from tests.broker.conftest import broker, either_broker
from tests.rpc.conftest import door
from tests.servers.conftest import servers
from tests.support.stores import postgres_database, store

__all__ = ["broker", "desk", "door", "either_broker", "postgres_database", "servers", "store"]
