"""Readers and writers on their way to executors, which may lack PopMQ: they arrive through `arriving.arrive`."""

from __future__ import annotations

import copyreg
from typing import Any, TypeVar

from popclient._version import VERSION
from popclient.spark.cluster import arriving
from popclient.spark.cluster.fitness import WAY_OUT
from popclient.spark.cluster.garbage import keep_out_modules

Sent = TypeVar("Sent")


def guarded(made: Sent) -> Sent:
    """The reader or writer; from now on its kind is pickled so that an executor without PopMQ says what it lacks."""
    keep_out_modules()  # a worker plans many queries
    send_by_value()
    copyreg.pickle(type(made), _reduced)
    return made


def send_by_value() -> None:
    """From now on `arriving` travels with what uses it; for good, because other threads may be sending."""
    from pyspark.cloudpickle import register_pickle_by_value

    register_pickle_by_value(arriving)  # type: ignore[no-untyped-call]


def _reduced(made: object) -> tuple[Any, ...]:
    from pyspark.cloudpickle import dumps

    pickled = dumps((type(made), vars(made)))  # type: ignore[no-untyped-call]
    return arriving.arrive, (pickled, VERSION, WAY_OUT)
