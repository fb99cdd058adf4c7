"""Programs of popclient and of the official client beside the load: killed, stopped, and what they said."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any

from proof.history.events import (
    CommitOffset,
    DelayedSend,
    EndTransaction,
    HalfSend,
    OrderedSend,
    Pull,
    Pulled,
    ReadOffset,
)
from proof.history.scenes import Scene
from proof.torture.program_clients import RECEIVE_MAX
from tests.support.checker import Ack, Call, Delivered, Final, History, Outcome, Receive, Send
from tests.support.server_process import clean_environment
from tests.support.workload import now_ms

GROUP = "programs"
KINDS = ("popclient", "official")
# Where programs work beside the load: not where dead letters are sent back, and not beside Spark.
SCENES = (Scene.PLAIN, Scene.FIFO, Scene.DELAY, Scene.TRANSACTIONS, Scene.QUEUES)
LINE_BYTES_MAX = 1 << 20

Times = tuple[Outcome, float, float]


class ClientProcess:
    """One program after the other: `start` after `kill` begins a new one of the other kind."""

    def __init__(
        self, history: History, scene: Scene, endpoint: str, topic: str, kinds: tuple[str, ...] = KINDS
    ) -> None:
        self._history = history
        self._scene = scene
        self._endpoint = endpoint
        self._topic = topic
        self._kinds = kinds
        self._starts = 0
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._received = False  # since the last start

    async def start(self) -> None:
        kind = self._kinds[self._starts % len(self._kinds)]
        self._starts += 1
        self._received = False
        words = (kind, self._scene, self._endpoint, self._topic, GROUP, f"{kind}-{self._starts}")
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "proof.torture.client_program", *words,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, limit=LINE_BYTES_MAX,
            env=clean_environment() | {"HOME": os.environ.get("HOME", "/tmp")},
        )  # fmt: skip
        assert self._process.stdout is not None
        self._reading = asyncio.create_task(self._read(self._process.stdout))

    async def kill(self) -> None:
        """`kill -9`; what has begun is in the history afterwards."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        assert self._reading is not None
        await self._process.wait()
        await self._reading

    async def has_received(self) -> bool:
        """Whether the running program has received a message."""
        return self._received

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _read(self, lines: asyncio.StreamReader) -> None:
        begun: dict[int, dict[str, Any]] = {}
        async for line in lines:
            try:
                said = json.loads(line)
            except ValueError:  # the client's own words, or the half line of a killed one
                continue
            if "call" in said:
                begun[said["number"]] = said
            else:
                self._add({**begun.pop(said["number"]), **said})
        for said in begun.values():
            self._add({**said, "completed_ms": now_ms(), "error": "killed"})

    def _add(self, said: dict[str, Any]) -> None:
        outcome = Outcome.UNKNOWN if "error" in said else Outcome.OK
        for call in calls_of(said, outcome):
            self._history.add(call)
        if said.get("deliveries") or any(each["messages"] for each in said.get("pulls", ())):
            self._received = True


def calls_of(said: dict[str, Any], outcome: Outcome) -> list[Call]:
    """A client that receives ahead may have begun another receive after a full one. Nobody has seen its messages."""
    times = (outcome, said["invoked_ms"], said["completed_ms"])
    match said["call"]:
        case "Send":
            return [_send(said, times)]
        case "HalfSend":
            return [HalfSend(*times, said.get("message_id", ""), said["digest"])]
        case "EndTransaction":
            return [EndTransaction(*times, said["message_id"], said["commits"])]
        case "Ack":
            return [Ack(*times, GROUP, said["message_id"], said["handle"])]
        case "ReadOffset":
            return [ReadOffset(*times, GROUP, said["queue"], said.get("offset", -1))]
        case "CommitOffset":
            return [CommitOffset(*times, GROUP, said["queue"], said["offset"])]
        case "Poll":
            return [_pull(each, times) for each in said.get("pulls", ())]
        case _:
            deliveries = tuple(Delivered(**each) for each in said.get("deliveries", ()))
            received = Receive(*times, GROUP, said["held_ms"], deliveries)
            if not said["may_hide"] or 0 < len(deliveries) < RECEIVE_MAX:
                return [received]
            return [received, Receive(Outcome.UNKNOWN, *times[1:], GROUP, 0.0)]


def _send(said: dict[str, Any], times: Times) -> Send:
    sent = (*times, said.get("message_id", ""), said["digest"])
    if "message_group" in said:
        return OrderedSend(*sent, said["message_group"])
    return DelayedSend(*sent, said["due_ms"]) if "due_ms" in said else Send(*sent)


def _pull(said: dict[str, Any], times: Times) -> Pull:
    messages = tuple(Pulled(*each) for each in said["messages"])
    return Pull(*times, GROUP, said["queue"], said["offset"], said["next_offset"], messages)


def with_ids(history: History, final: Final) -> History:
    """The history with the ids of messages whose senders were killed before they knew them: no two have one content."""
    ids = {row.digest: row.message_id for row in final.stored}
    for call in history.calls:
        if isinstance(call, Receive):
            ids |= {each.digest: each.message_id for each in call.deliveries}
    calls: list[Call] = []
    for call in history.calls:
        if isinstance(call, Send | HalfSend) and not call.message_id:
            if call.digest in ids:  # else nobody has seen it: it was never stored
                calls.append(dataclasses.replace(call, message_id=ids[call.digest]))
        else:
            calls.append(call)
    return History(calls)
