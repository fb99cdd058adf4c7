"""Removes dead letters that have been archived."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from popclient.admin import DeadLetterSelection
from popclient.admin.pace import STEP_MAX
from popclient.config import ClientConfig
from popclient.spark.dlq.asking import of_group, patient, server, tried_again

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


def purge(dead: DataFrame, endpoints: str | ClientConfig, *, group: str) -> int:
    """Remove exactly these dead letters of `group`, with their copies, for ever; how many there were.

    May be run again after a failure. What was redriven and is not done yet stays. Raises `ValueError` for a dead letter
    of another group, in Spark's words.
    """
    purged: int = (
        dead.select("id", "consumer_group").rdd.mapPartitions(partial(_purge, patient(endpoints), group)).sum()
    )
    return purged


def _purge(config: ClientConfig, group: str, rows: Iterator[Row]) -> Iterator[int]:
    ids = (row.id for row in of_group(group, rows))
    with server(config) as admin:
        while step := tuple(islice(ids, STEP_MAX)):
            selection = DeadLetterSelection(group, ids=step, redriven_too=True)
            yield tried_again(partial(admin.purge_dead_letters, selection))
