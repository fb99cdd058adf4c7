"""A history as a file: a JSON line with the scene, one per call, and one with what the database held in the end."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proof.history import events
from proof.history.scenes import Scene
from tests.support import checker
from tests.support.checker import Call, Delivered, Final, History, Lag, Outcome, StateRow, Stored

_KINDS: dict[str, type[Call]] = {
    kind.__name__: kind
    for module in (checker, events)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Call) and kind is not Call
}


def write_history(path: Path, scene: Scene, history: History, final: Final | None) -> None:
    """`final` is None where nobody could look any more."""
    with path.open("w") as lines:
        lines.write(json.dumps({"scene": scene}) + "\n")
        for call in history.calls:
            lines.write(line_of(call) + "\n")
        if final is not None:
            lines.write(json.dumps({"final": dataclasses.asdict(final)}) + "\n")


def read_history(path: Path) -> tuple[Scene, History, Final | None]:
    """Raises ValueError where a line is none of a history."""
    scene, history, final = Scene.PLAIN, History(), None
    for number, document in enumerate(_documents(path), 1):
        try:
            if "scene" in document:
                scene = Scene(document["scene"])
            elif "final" in document:
                final = _final(document["final"])
            else:
                history.add(call_of(document))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"line {number} of {path} is no line of a history: {error!r}") from error
    return scene, history, final


def line_of(call: Call) -> str:
    return json.dumps({"call": type(call).__name__, **dataclasses.asdict(call)})


def call_of(document: dict[str, Any]) -> Call:
    values = dict(document)
    kind = _KINDS[values.pop("call")]
    values["outcome"] = Outcome(values["outcome"])
    if "deliveries" in values:
        values["deliveries"] = tuple(Delivered(**each) for each in values["deliveries"])
    if "messages" in values:
        values["messages"] = tuple(events.Pulled(**each) for each in values["messages"])
    if "rows" in values:
        values["rows"] = tuple(events.SinkRow(**each) for each in values["rows"])
    for name in ("message_ids", "sent_ids", "names", "missing"):
        if name in values:
            values[name] = tuple(values[name])
    return kind(**values)


def _final(values: dict[str, Any]) -> Final:
    return Final(
        stored=[Stored(*each) for each in values["stored"]],
        states=[StateRow(*each) for each in values["states"]],
        lag=[Lag(*each) for each in values["lag"]],
        max_attempts=values["max_attempts"],
        drained=values["drained"],
    )


def _documents(path: Path) -> Iterator[dict[str, Any]]:
    with path.open() as lines:
        for line in lines:
            yield json.loads(line)
