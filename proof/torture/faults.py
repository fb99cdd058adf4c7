"""The faults that can be planted, by their names."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from popserver.transport.listen import Engine
from proof.history.scenes import Scene


class Fault(NamedTuple):
    """`found_as`: the invariants of which at least one must be reported. `spark_mode`: in the scene of Spark.
    `programs`: with these beside the load."""

    scene: Scene
    found_as: frozenset[str]
    plant: Callable[[], None]
    spark_mode: str
    programs: tuple[str, ...]
    engine: Engine


FAULTS: dict[str, Fault] = {}


def fault(
    name: str, scene: Scene, *found_as: str, spark_mode: str = "queue", program: str = "", engine: Engine = "builtin"
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def listed(plant: Callable[[], None]) -> Callable[[], None]:
        programs = (program,) if program else ()
        FAULTS[name] = Fault(scene, frozenset(found_as), plant, spark_mode, programs, engine)
        return plant

    return listed


def module(name: str) -> Any:
    """A module whose names are replaced, also those that it does not export."""
    return importlib.import_module(name)
