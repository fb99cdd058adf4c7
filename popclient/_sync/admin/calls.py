# Made by scripts/unasync.py from popclient/aio/admin/calls.py. Do not edit.
"""How the administration calls its server: one call at a time, each with its own timeout."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container
from datetime import timedelta
from typing import Any, Self, TypeVar, overload

from popclient._arguments import as_seconds, not_copied
from popclient._loop import LoopThread
from popclient._session import convert
from popclient._session.transport import Link, Transport
from popclient._version import new_client_id
from popclient.config import ClientConfig
from popclient.errors import Answered, UnsupportedByServer, check
from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb

Answer = TypeVar("Answer", bound=Answered)
OURS = "popmq.v1.Admin"


class Calls:
    """What the calls of every subject share: the server, and the namespace of the names."""

    __reduce__ = not_copied

    def __init__(
        self,
        endpoints: str | ClientConfig | None = None,
        *,
        connect_timeout: float | timedelta = 1.0,
        transport: Transport | None = None,
    ) -> None:
        self._config = ClientConfig.of(endpoints)
        self._connect_timeout = as_seconds("connect_timeout", connect_timeout)
        self._bridge = LoopThread()
        self._transport = transport or Transport(self._config, new_client_id())

    def close(self) -> None:
        """Closing twice is fine."""
        self._bridge.close(self._transport.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @overload
    def _named(self, name: str) -> pb.Resource: ...
    @overload
    def _named(self, name: None) -> None: ...
    def _named(self, name: str | None) -> pb.Resource | None:
        return None if name is None else convert.resource(name, self._config.namespace)

    def _call(
        self,
        pick: Callable[[Link], Callable[..., Awaitable[Answer]]],
        request: Any,
        takes: float = 0.0,
        *,
        but: Container[int] = (),
    ) -> Answer:
        """takes: seconds that the server may need for the answer. but: codes that are no refusal."""
        patience = self._patience(takes)
        try:
            answer = self._bridge.run(lambda: self._transport.unary(pick, request, patience))
        except UnsupportedByServer as refusal:
            asked = request.DESCRIPTOR
            service, call = f"{asked.file.package}.Admin", asked.name.removesuffix("Request")
            missing = self._what_is_missing(service, call, patience)
            raise UnsupportedByServer(missing, name=refusal.name) from None
        if answer.status.code not in but:
            check(answer.status)
        return answer

    def _what_is_missing(self, service: str, call: str, patience: float) -> str:
        """Of a server that does not know the call: is it an older PopMQ, or none at all?"""
        where = self._transport.where
        try:
            self._bridge.run(
                lambda: self._transport.unary(lambda link: link.admin.GetStatus, wire.GetStatusRequest(), patience)
            )
        except UnsupportedByServer:
            offers = "only PopMQ offers it" if service == OURS else "PopMQ offers it"
            return (
                f"the server at {where} has no {service}; {offers}, and with it {call}; RocketMQ's servers are"
                " administered with its mqadmin"
            )
        return f"the server at {where} is an older PopMQ, which does not offer {call}; update the server"

    def _patience(self, takes: float = 0.0) -> float:
        """Seconds for the next call: a missing server is noticed early, an answer may take longer."""
        timeout, to_connect = max(self._config.request_timeout, takes), self._connect_timeout
        if self._transport.reached or self._bridge.run(lambda: self._transport.connects(to_connect)):
            return timeout
        return min(timeout, to_connect)
