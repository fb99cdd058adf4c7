"""What the mode `lease` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from popclient.config import ClientConfig
from popclient.message import FilterExpression
from popclient.spark.given import Given
from popclient.spark.message_columns import Column
from popclient.spark.message_options import columns_from, filter_of
from popclient.spark.server import SERVER_OPTIONS, server_of

_ALIASES: Final = {
    "subscribe": "topic",
    "subExpression": "filterExpression",
    "maxOffsetsPerTrigger": "maxMessagesPerTrigger",
    "minPartitions": "numPartitions",
}
_NAMES: Final = (
    "mode",
    "topic",
    "consumerGroup",
    "leaseOwner",
    "invisibleDuration",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "numPartitions",
    "failOnLeaseLoss",
    "filterExpression",
    "filterType",
    "columns",
    "includeHeaders",
    *SERVER_OPTIONS,
)
# An attempt id has 255 characters at most; the batch's number and the part's take some.
OWNER_LENGTH_MAX: Final = 200
# The server's limits for a hold.
INVISIBLE_MS: Final = 300_000
INVISIBLE_MS_MIN: Final = 10_000
INVISIBLE_MS_MAX: Final = 43_200_000
# A batch travels through the driver.
MESSAGES_PER_TRIGGER: Final = 10_000
MESSAGES_PER_TRIGGER_MAX: Final = 100_000
BYTES_PER_TRIGGER: Final = 64 * 1024 * 1024
BYTES_PER_TRIGGER_MAX: Final = 256 * 1024 * 1024
NUM_PARTITIONS: Final = 2
NUM_PARTITIONS_MAX: Final = 1_000


class LeaseOptions(NamedTuple):
    """owner: names this query's leases, over all its restarts, and nobody else's. max_bytes: of Arrow data in a batch;
    the receive that passes it is its last."""

    server: ClientConfig
    topic: str
    group: str
    owner: str
    invisible_ms: int
    max_messages: int
    max_bytes: int
    num_partitions: int
    fail_on_lease_loss: bool
    expression: FilterExpression
    columns: tuple[Column, ...]


def parse(options: Mapping[str, str]) -> LeaseOptions:
    """Raises `ValueError` naming the option, its value and what is allowed."""
    given = Given(options, _ALIASES)
    given.refuse_others(_NAMES)
    topics = given.names("topic")
    if len(topics) != 1:
        raise given.refuse("topic", "give the one topic to receive; mode='queue' and mode='journal' take several")
    return LeaseOptions(
        server=server_of(given),
        topic=topics[0],
        group=given.needed("consumerGroup", "give the group to receive as"),
        owner=_owner(given),
        invisible_ms=given.duration_ms("invisibleDuration", INVISIBLE_MS, INVISIBLE_MS_MIN, INVISIBLE_MS_MAX),
        max_messages=given.number("maxMessagesPerTrigger", MESSAGES_PER_TRIGGER, 1, MESSAGES_PER_TRIGGER_MAX),
        max_bytes=given.number("maxBytesPerTrigger", BYTES_PER_TRIGGER, 1, BYTES_PER_TRIGGER_MAX),
        num_partitions=given.number("numPartitions", NUM_PARTITIONS, 1, NUM_PARTITIONS_MAX),
        fail_on_lease_loss=given.flag("failOnLeaseLoss", default=False),
        expression=filter_of(given),
        columns=columns_from(given),
    )


def _owner(given: Given) -> str:
    owner = given.needed("leaseOwner", "give a name that this query alone has, and keeps over its restarts")
    if len(owner) > OWNER_LENGTH_MAX or not owner.isprintable():
        raise given.refuse("leaseOwner", f"give at most {OWNER_LENGTH_MAX} printable characters")
    return owner
