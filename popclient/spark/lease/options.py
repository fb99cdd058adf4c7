"""The options of mode `lease`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from popclient.config import ClientConfig
from popclient.message import FilterExpression
from popclient.spark.columns import Column, schema_of
from popclient.spark.message_columns import ALIASES, COLUMNS, FILTER
from popclient.spark.options import SERVER, OptionReader, OptionTable, duration_ms, flag, needed, number, special

# An attempt id has at most 255 characters, the numbers of batch and part among them.
OWNER_LENGTH_MAX: Final = 200
MIB: Final = 1024 * 1024


class LeaseOptions(NamedTuple):
    """owner: the name of this query's leases, unique, and the same after a restart. max_bytes: of Arrow data in a
    batch; the receive that exceeds it is the batch's last."""

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

    @property
    def schema(self) -> str:
        """As Spark's DDL."""
        return schema_of(self.columns)


def _topic(given: OptionReader) -> str:
    topics = given.names("topic")
    if len(topics) != 1:
        raise given.refuse("topic", "give the one topic to receive; mode='queue' and mode='journal' take several")
    return topics[0]


def _owner(given: OptionReader) -> str:
    owner = given.needed("leaseOwner", "give a name that no other query has, and that stays the same after a restart")
    if len(owner) > OWNER_LENGTH_MAX or not owner.isprintable():
        raise given.refuse("leaseOwner", f"give at most {OWNER_LENGTH_MAX} printable characters")
    return owner


TABLE: Final = OptionTable(
    {
        "topic": special(_topic, "topic"),
        "group": needed("consumerGroup", "give the group to receive as"),
        "owner": special(_owner, "leaseOwner"),
        # Limits of the server for a hold.
        "invisible_ms": duration_ms("invisibleDuration", 300_000, 10_000, 43_200_000),
        # The driver has a whole batch in memory.
        "max_messages": number("maxMessagesPerTrigger", 10_000, 1, 100_000),
        "max_bytes": number("maxBytesPerTrigger", 64 * MIB, 1, 256 * MIB),
        "num_partitions": number("numPartitions", 2, 1, 1_000),
        "fail_on_lease_loss": flag("failOnLeaseLoss", default=False),
        "expression": FILTER,
        "columns": COLUMNS,
        "server": SERVER,
    },
    ALIASES,
)


def parse(options: Mapping[str, str]) -> LeaseOptions:
    """Raises `ValueError` naming the option, its value and what is allowed."""
    return LeaseOptions(**TABLE.read(options))
