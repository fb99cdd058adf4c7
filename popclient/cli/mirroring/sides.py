"""Opens the two servers that options name."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from popclient.cli.arguments import UsageError, client_config
from popclient.config import ClientConfig
from popclient.errors import PopError, Unauthorized
from popclient.mirror.side import Side
from popclient.mirror.sides import Address, OtherPorts, open_side


def address(arguments: Namespace, side: str) -> Address:
    """side: `from` or `to`."""
    given = {each: getattr(arguments, f"{side}_{each}") for each in ("endpoint", "admin", "name_server", "access_key")}
    ports = OtherPorts(given["admin"], given["name_server"])
    return Address(given["endpoint"], ports, given["access_key"], f"POPMQ_{side.upper()}_ACCESS_SECRET")


@asynccontextmanager
async def open_sides(arguments: Namespace, source: Address, target: Address) -> AsyncIterator[tuple[Side, Side]]:
    first = await _open(arguments, source)
    try:
        second = await _open(arguments, target)
        try:
            yield first, second
        finally:
            await second.close()
    finally:
        await first.close()


async def _open(arguments: Namespace, of: Address) -> Side:
    try:
        return await open_side(_config(arguments, of), of.ports, arguments.reader)
    except Unauthorized as refusal:
        way_out = (
            f"the secret of access key {of.access_key} is read from {of.secret_variable}"
            if of.access_key
            else "name a user with --from-access-key or --to-access-key"
        )
        raise PopError(f"{of.endpoint}: {refusal.sentence.rstrip('.')}; {way_out}") from None


def _config(arguments: Namespace, of: Address) -> ClientConfig:
    """Its endpoint and user, and the namespace and CA of the global options."""
    general = client_config(Namespace(**{**vars(arguments), "endpoint": of.endpoint}))
    if not of.access_key:
        return general
    secret = os.environ.get(of.secret_variable, "")
    if not secret:
        raise UsageError(f"access key {of.access_key} needs the secret of this user in {of.secret_variable}")
    return replace(general, access_key=of.access_key, access_secret=secret)
