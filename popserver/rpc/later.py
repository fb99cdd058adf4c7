"""Methods of the protocol that this version does not offer, each with what to do instead."""

from __future__ import annotations

from typing import Never

from popproto.v2 import service_pb2 as wire
from popserver.domain.errors import NotBuilt
from popserver.rpc.calls import Caller


async def sync_lite_subscription(_request: wire.SyncLiteSubscriptionRequest, _caller: Caller) -> Never:
    raise NotBuilt("lite topics are not offered by this version; subscribe to an ordinary topic")
