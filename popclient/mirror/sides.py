"""Finds out what answers at an endpoint: a PopMQ server, or a RocketMQ proxy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from popclient.aio.admin.admin import Admin
from popclient.config import ClientConfig
from popclient.errors import BadRequest, Forbidden, UnsupportedByServer
from popclient.mirror.popmq import PopMQSide
from popclient.mirror.rocketmq import RocketMQSide
from popclient.mirror.side import Side
from popclient.remoting import RocketMQAdmin

PATIENCE_S: Final = 30.0
CONNECT_S: Final = 5.0


class OtherPorts(NamedTuple):
    """host:port of PopMQ's administration, if it is not that for clients, and of RocketMQ's name server; or empty.

    brokers: the names of those that RocketMQ must have, if they are known.
    """

    admin: str
    name_server: str
    brokers: Sequence[str] = ()


class Address(NamedTuple):
    """A side as an operator names it. secret_variable: the environment variable with the secret of its user."""

    endpoint: str
    ports: OtherPorts
    access_key: str = ""
    secret_variable: str = ""


async def open_side(config: ClientConfig, ports: OtherPorts, reader: str) -> Side:
    """The side at an endpoint. reader: begins the names of groups by which the mirror reads for itself.

    Raises a PopError: Unreachable, Unauthorized, and so on.
    """
    # Another try is counted where it may store a message twice, so none is made unseen.
    config = replace(config, request_timeout=max(PATIENCE_S, config.request_timeout), max_attempts=1)
    admin = Admin(replace(config, endpoints=ports.admin or config.endpoints), connect_timeout=CONNECT_S)
    try:
        await admin.health()
    except UnsupportedByServer:
        await admin.close()
        names = None
        if ports.name_server:
            names = RocketMQAdmin(
                ports.name_server,
                access_key=config.access_key,
                access_secret=config.access_secret,
                brokers=ports.brokers,
            )
        side = RocketMQSide(config, names, reader)
        try:
            with suppress(BadRequest, Forbidden):  # about the topic, which is only a question
                await side.route(reader)  # a wrong user or secret is refused now
        except BaseException:
            await side.close()
            raise
        return side
    except BaseException:
        await admin.close()
        raise
    return PopMQSide(config, admin)
