"""Administration of users without a server: the same commands, directly on the database.

This is for creating the first admin, and for replacing the last admin's lost secret. It replaces the client's
transport: it gets requests of popmq.v1.Admin and returns their answers with a status.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb
from popserver.access import users
from popserver.access.flow import Access
from popserver.access.rpc import UserMethods
from popserver.broker.broker import Broker
from popserver.database import migrate
from popserver.database.database import Database
from popserver.engine.clock import SystemClock
from popserver.model.errors import PopError
from popserver.model.names import Resource
from popserver.transport import convert, status

Answer = Callable[..., Awaitable[Any]]


class Offline:
    """Replaces the client's transport. Refuses a SQLite file that a running server uses."""

    reached = True

    def __init__(self, database_url: str, namespace: str) -> None:
        self._database_url = database_url
        self.namespace = namespace
        self.where = "the database"

    async def unary(self, pick: Callable[[Any], Answer], request: Any, _timeout: float) -> Any:
        return await pick(self)(request)

    async def close(self) -> None:
        """Does nothing: each call opens and closes the database."""

    def resource(self, named: pb.Resource) -> Resource:
        return convert.resource(named, self.namespace)

    @property
    def admin(self) -> Offline:
        return self

    def __getattr__(self, method: str) -> Answer:
        async def call(request: Any) -> Any:
            try:
                return await self._call(method, request)
            except PopError as refusal:
                return getattr(wire, f"{method}Response")(status=status.of(refusal))

        if f"{method}Request" not in dir(wire):
            raise AttributeError(method)
        return call

    async def _call(self, method: str, request: Any) -> Any:
        database = Database(self._database_url)
        try:
            migrate.upgrade(database)
            # Only the writer is started, so nothing happens to messages.
            broker = Broker(database, SystemClock(), auto_create=False)
            broker.engine.writer.start()
            try:
                access = Access(broker.engine.reader, broker.engine.clock)
                methods = UserMethods(users.Users(broker.engine.writer, broker.engine.reader, access)).methods
                caller: Any = self
                return await methods[method].answer(request, caller)
            finally:
                await broker.engine.writer.close()
                await broker.engine.reader.close()
        finally:
            database.close()
