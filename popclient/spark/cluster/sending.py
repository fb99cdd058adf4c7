"""Readers and writers on their way to executors, which may lack PopMQ: they arrive through `arriving.arrive`."""

from __future__ import annotations

import copyreg
import gc
import sys
from itertools import count
from typing import Any, Final, TypeVar

from popclient._version import VERSION
from popclient.spark.cluster import arriving
from popclient.spark.cluster.fitness import WAY_OUT

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


# ---- Garbage collection in a worker ----

# PySpark's daemon collects all garbage after each task. With the modules of a reader, a collection takes 30 to 50 ms,
# which is more than a small task itself. Modules live as long as their process, so the collector need not scan them.

_USES: Final = count()
_SECOND: Final = 1


def keep_out_modules() -> None:
    """Takes what is alive out of garbage collection, at the second use in a process: then all modules are imported.

    Once only: what a later task leaves behind is collected. Elsewhere than in PySpark's daemon nothing changes.
    """
    if next(_USES) == _SECOND and _is_worker():
        gc.freeze()


def _is_worker() -> bool:
    spec = sys.modules["__main__"].__spec__
    return spec is not None and spec.name == "pyspark.daemon"
