"""Programs of popclient and of official clients beside the load: killed, stopped, and what they said."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from proof.history.events import (
    CommitOffset,
    Consume,
    DelayedSend,
    EndTransaction,
    HalfSend,
    LiteReceive,
    LiteSync,
    OrderedSend,
    ProgramEnded,
    Pull,
    Pulled,
    QueueBatch,
    ReadOffset,
)
from proof.history.scenes import Scene
from proof.torture import client_program
from proof.torture.lite import some_lite_topics
from proof.torture.program_clients import RECEIVE_MAX
from tests.interop.programs import program_of
from tests.support.built_programs import CannotBuild
from tests.support.checker import Ack, Call, Delivered, Final, History, Outcome, Receive, Send
from tests.support.server_process import clean_environment
from tests.support.workload import now_ms

GROUP = "programs"
BUILT = ("java", "go")  # once on a machine; the other programs are in Python
SIMPLE = ("popclient", "official", "java", "go")
PUSH = ("push", "java push", "go push")
LITE = ("lite push", "java lite", "go lite")
# Which programs work beside the load of a scene: not where dead letters are sent back, and not beside Spark. The
# official clients of Java and Go cannot read whole queues, and of lite topics they have push consumers alone. No push
# consumer is where time or transactions are judged, because they do the same as elsewhere.
KINDS = {
    Scene.PLAIN: (*SIMPLE, *PUSH),
    Scene.FIFO: (*SIMPLE, *PUSH),
    Scene.DELAY: SIMPLE,
    Scene.TRANSACTIONS: SIMPLE,
    Scene.QUEUES: ("pull", "member"),
    Scene.LITE: ("lite", *LITE),
}
# Two work at once where only these do: one takes over what belonged to the one that is killed. A JVM is too heavy.
TOGETHER = {"push", "go push", "member"}
LINE_BYTES_MAX = 1 << 20
WHY_CHARACTERS = 600

Times = tuple[Outcome, float, float]


@cache
def is_there(kind: str) -> bool:
    """Whether this machine can run the program. It may be built first, which takes minutes."""
    try:
        return bool(command_of(kind, Path()))
    except CannotBuild:
        return False


def kinds_there() -> set[str]:
    return {kind for kinds in KINDS.values() for kind in kinds if is_there(kind)}


def command_of(kind: str, folder: Path, under: Sequence[str] = ()) -> list[str]:
    """The command without the words behind the kind, with its log in the folder. Raises CannotBuild."""
    language = kind.partition(" ")[0]
    if language in BUILT:
        return [*program_of(language, folder), kind]
    return [*(under or (sys.executable, "-m")), client_program.__name__, kind]


class ClientProcess:
    """One program after the other: `start` after `kill` begins a new one, of the next kind.

    folder: of the logs of clients. under: a command that runs those that are in Python, see `ServerProcess`.
    """

    def __init__(
        self,
        history: History,
        scene: Scene,
        endpoint: str,
        topic: str,
        kinds: Sequence[str],
        folder: Path,
        *,
        number: int = 0,
        under: Sequence[str] = (),
    ) -> None:
        self._history = history
        self._scene = scene
        self._endpoint = endpoint
        self._topic = topic
        self._kinds = kinds
        self._folder = folder
        self._number = number
        self._under = under
        self._starts = 0
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_killed = False
        self.kind = ""  # of the one that runs
        self.has_worked = False  # has it received a message, or committed progress as a member?

    async def start(self) -> None:
        self.kind = self._kinds[self._starts % len(self._kinds)]
        self._starts += 1
        self.has_worked = self._is_killed = False
        name = f"{self.kind}-{self._number}-{self._starts}"
        words = [self._scene, self._endpoint, self._topic, GROUP, name]
        if self._scene is Scene.LITE:
            words += some_lite_topics(random.Random(name))
        self._folder.mkdir(exist_ok=True)
        command = await asyncio.to_thread(command_of, self.kind, self._folder, self._under)
        with (self._folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, *words, stdout=asyncio.subprocess.PIPE, stderr=log, limit=LINE_BYTES_MAX,
                env=clean_environment() | {"HOME": str(self._folder)},
            )  # fmt: skip
        assert self._process.stdout is not None
        self._reading = asyncio.create_task(self._read(self._process.stdout))

    async def kill(self) -> None:
        """`kill -9`, if it runs; what has begun is in the history afterwards."""
        if self._process is None or self._reading is None:
            return
        self._is_killed = True
        self._signal(signal.SIGKILL)
        await self._process.wait()
        await self._reading

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
        if not self._is_killed:
            why = (self._folder / "log").read_text(errors="replace")[-WHY_CHARACTERS:]
            self._history.add(ProgramEnded(Outcome.REFUSED, now_ms(), now_ms(), self.kind, why))

    def _add(self, said: dict[str, Any]) -> None:
        outcome = Outcome.UNKNOWN if "error" in said else Outcome.OK
        for call in calls_of(said, outcome):
            self._history.add(call)
        got = said.get("deliveries") or any(each["messages"] for each in said.get("pulls", ()))
        # A member that is killed before it commits leaves nothing to be judged.
        self.has_worked |= said["call"] == "CommitOffset" if self.kind == "member" else bool(got)


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
        case "Batch":
            return [QueueBatch(*times, GROUP, said["queue"], said["client"], _pulled(said))]
        case "Consume":
            return [Consume(*times, GROUP, said["message_id"], said["client"])]
        case "LiteSync":
            return [LiteSync(*times, GROUP, said["client"], tuple(said["names"]), said["adds"])]
        case _:
            deliveries = tuple(Delivered(**each) for each in said.get("deliveries", ()))
            kind = partial(LiteReceive, client=said["client"]) if "client" in said else Receive
            received = kind(*times, GROUP, said["held_ms"], deliveries)
            if not said["may_hide"] or 0 < len(deliveries) < RECEIVE_MAX:
                return [received]
            return [received, Receive(Outcome.UNKNOWN, *times[1:], GROUP, 0.0)]


def _send(said: dict[str, Any], times: Times) -> Send:
    sent = (*times, said.get("message_id", ""), said["digest"])
    if "message_group" in said:
        return OrderedSend(*sent, said["message_group"])
    return DelayedSend(*sent, said["due_ms"]) if "due_ms" in said else Send(*sent)


def _pull(said: dict[str, Any], times: Times) -> Pull:
    return Pull(*times, GROUP, said["queue"], said["offset"], said["next_offset"], _pulled(said))


def _pulled(said: dict[str, Any]) -> tuple[Pulled, ...]:
    return tuple(Pulled(*each) for each in said["messages"])


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
