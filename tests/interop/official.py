"""Official clients as shipped, each in a process of its own, worked through a pipe.

A process is what may be killed; and it keeps the clients' threads and log files away from the tests.
"""

from __future__ import annotations

import itertools
import json
import queue
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from tests.interop.programs import program_of

PATIENCE_S = 90
EVERYTHING = "*"


class Refused(Exception):
    """What the official client raised: its class, the status code it carries, its words."""

    def __init__(self, kind: str, code: int | None, words: str) -> None:
        super().__init__(f"{kind} {code}: {words}")
        self.kind = kind
        self.code = code
        self.words = words


class NoSuchCall(Exception):
    """The client has no such call; the text names it."""


class Sent(NamedTuple):
    """A send receipt."""

    message_id: str
    offset: int
    recall_handle: str = ""
    transaction_id: str = ""


class Received(NamedTuple):
    """A message as the official client shows it."""

    token: str  # by which the client's process finds its own object again
    message_id: str
    topic: str
    body: str
    tag: str | None
    keys: list[str]
    properties: dict[str, str]
    attempt: int
    message_group: str | None
    priority: int | None
    lite_topic: str | None
    handle: str
    corrupted: bool


class Program:
    """A process that runs official clients of one language."""

    def __init__(self, language: str, endpoint: str, home: Path, environment: Mapping[str, str]) -> None:
        """home: where its clients write their logs, a new folder. Raises CannotBuild."""
        self.language = language
        self.home = home
        self._endpoint = endpoint
        with (home / "stderr").open("w") as stderr:
            self._process = subprocess.Popen(
                program_of(language, home),
                env={**environment, "HOME": str(home)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self._numbers = itertools.count()
        self._answers: dict[int, Future[dict[str, Any]]] = {}
        self._ears: dict[str, queue.SimpleQueue[Received]] = {}
        self._writing = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def producer(self, *topics: str, namespace: str = "", decides: str | None = None) -> OfficialProducer:
        """One that answers checks of half messages if it `decides`: COMMIT, ROLLBACK or UNKNOWN."""
        named = dict.fromkeys(topics, EVERYTHING)
        return OfficialProducer(self, "producer", topics=named, namespace=namespace, decides=decides)

    def simple(
        self,
        group: str,
        topic: str,
        expression: str = EVERYTHING,
        *,
        sql: bool = False,
        await_s: int = 20,
        namespace: str = "",
    ) -> OfficialSimpleConsumer:
        return OfficialSimpleConsumer(
            self, "simple", group=group, topics={topic: expression}, sql=sql, await_s=await_s, namespace=namespace
        )

    def push(
        self,
        group: str,
        topic: str,
        expression: str = EVERYTHING,
        *,
        sql: bool = False,
        fail: int = 0,
        poison: str = "",
        how: str = "return",
        waits: bool = False,
        namespace: str = "",
    ) -> OfficialPushConsumer:
        """Its listener fails a message's first `fail` attempts (`how`: return or raise); it may wait to be released.

        With `poison`, a body, only messages of that body fail.
        """
        return OfficialPushConsumer(
            self,
            "push",
            group=group,
            topics={topic: expression},
            sql=sql,
            fail=fail,
            poison=poison,
            how=how,
            waits=waits,
            suspend_s=0,
            namespace=namespace,
        )

    def lite(
        self, group: str, topic: str, *, fail: int = 0, poison: str = "", suspend_s: int = 0
    ) -> OfficialLitePushConsumer:
        """A push consumer of lite topics. With `suspend_s` its listener suspends a message where it would fail."""
        plan = {"fail": fail, "poison": poison, "how": "return", "waits": False, "suspend_s": suspend_s}
        return OfficialLitePushConsumer(self, "lite", group=group, topics={topic: EVERYTHING}, namespace="", **plan)

    def lite_simple(self, group: str, topic: str, *, await_s: int = 20) -> OfficialLiteSimpleConsumer:
        return OfficialLiteSimpleConsumer(
            self, "lite_simple", group=group, topics={topic: EVERYTHING}, await_s=await_s, namespace=""
        )

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                continue

    @property
    def log(self) -> str:
        """What its clients have written."""
        files = sorted(path for path in self.home.rglob("*") if path.is_file())
        return "".join(path.read_text(errors="replace") for path in files).replace("\\'", "'")  # as Java quotes it

    def ask(self, do: str, **what: Any) -> Future[dict[str, Any]]:
        number, answer = next(self._numbers), Future[dict[str, Any]]()
        self._answers[number] = answer
        line = json.dumps({"number": number, "do": do, "endpoint": self._endpoint, **what})
        assert self._process.stdin is not None
        with self._writing:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        return answer

    def listen(self, name: str) -> queue.SimpleQueue[Received]:
        return self._ears.setdefault(name, queue.SimpleQueue())

    def open(self, kind: str, group: str, topic: str, expression: str = EVERYTHING) -> Future[dict[str, Any]]:
        """A client of the kind (producer, simple, push or lite) is starting; anything but `*` is SQL."""
        options: dict[str, Any] = {"group": group, "topics": {topic: expression}, "sql": expression != EVERYTHING}
        options |= {"fail": 0, "poison": "", "how": "return", "waits": False, "suspend_s": 0}
        options |= {"namespace": "", "await_s": 20}
        return self.ask("open", kind=kind, client=kind, decides=None, **options)

    def next_name(self) -> str:
        return f"{self.language}-{next(self._numbers)}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if "heard" in event:
                self._ears[event["heard"]].put(Received(**event["message"]))
            else:
                self._settle(self._answers.pop(event.pop("answer")), event)
        for unanswered in self._answers.values():
            unanswered.set_exception(EOFError(f"the {self.language} process ended"))

    @staticmethod
    def _settle(answer: Future[dict[str, Any]], said: dict[str, Any]) -> None:
        if said.get("refused") == "NoSuchCall":
            answer.set_exception(NoSuchCall(said["words"]))
        elif "refused" in said:
            answer.set_exception(Refused(said["refused"], said["code"], said["words"]))
        else:
            answer.set_result(said)


class OfficialClient:
    """One client object in a program."""

    def __init__(self, program: Program, kind: str, **options: Any) -> None:
        self._program = program
        self.name = program.next_name()
        self.heard = program.listen(self.name)
        self.client_id: str = self._do("open", kind=kind, **options)["client_id"]

    def close(self) -> Future[dict[str, Any]]:
        return self._ask("close")

    def _ask(self, do: str, **what: Any) -> Future[dict[str, Any]]:
        return self._program.ask(do, client=self.name, **what)

    def _do(self, do: str, **what: Any) -> dict[str, Any]:
        return self._ask(do, **what).result(PATIENCE_S)


class OfficialProducer(OfficialClient):
    def send(
        self,
        topic: str,
        body: str,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        deliver_at_s: int | None = None,
        message_group: str | None = None,
        priority: int | None = None,
        lite_topic: str | None = None,
        half: bool = False,
    ) -> Sent:
        """With `half` in a transaction of its own, which `end` decides."""
        options = {
            "tag": tag,
            "keys": list(keys),
            "properties": dict(properties or {}),
            "deliver_at_s": deliver_at_s,
            "message_group": message_group,
            "priority": priority,
            "lite_topic": lite_topic,
        }
        return Sent(**self._do("send", topic=topic, body=body, half=half, **options))

    def end(self, sent: Sent, resolution: str) -> None:
        """COMMIT or ROLLBACK of a half message."""
        self._do("end", message_id=sent.message_id, resolution=resolution)

    def recall(self, topic: str, handle: str) -> str:
        """Take a delayed message back; its id."""
        message_id: str = self._do("recall", topic=topic, handle=handle)["message_id"]
        return message_id


class OfficialSimpleConsumer(OfficialClient):
    def receive(self, count: int = 32, invisible_s: int = 30) -> list[Received]:
        return messages_of(self.receive_later(count, invisible_s))

    def receive_later(self, count: int = 32, invisible_s: int = 30) -> Future[dict[str, Any]]:
        """The call is on its way; `messages_of` waits for its answer."""
        return self._ask("receive", count=count, invisible_s=invisible_s)

    def ack(self, message: Received, handle: str | None = None) -> None:
        self._do("ack", token=message.token, handle=handle or message.handle)

    def change_invisible(self, message: Received, invisible_s: int, handle: str | None = None) -> str:
        """The new receipt handle."""
        answer = self._do(
            "change_invisible", token=message.token, handle=handle or message.handle, invisible_s=invisible_s
        )
        new_handle: str = answer["handle"]
        return new_handle


class OfficialPushConsumer(OfficialClient):
    def hear(self, count: int = 1) -> list[Received]:
        """The next `count` messages its listener is called with."""
        return [self.heard.get(timeout=PATIENCE_S) for _ in range(count)]

    def release(self) -> None:
        """Let the listener go on, for good."""
        self._do("release")


class _OfLiteTopics(OfficialClient):
    def subscribe(self, *lite_topics: str) -> None:
        """To one after the other, if the client has no call for several."""
        self._do("subscribe_lite", lite_topics=lite_topics)

    def unsubscribe(self, lite_topic: str) -> None:
        self._do("unsubscribe_lite", lite_topic=lite_topic)

    def lite_topics(self) -> list[str] | None:
        """What it subscribes to; None if its log alone says so."""
        names: list[str] | None = self._do("lite_topics")["lite_topics"]
        return names


class OfficialLitePushConsumer(_OfLiteTopics, OfficialPushConsumer):
    """A push consumer of lite topics."""


class OfficialLiteSimpleConsumer(_OfLiteTopics, OfficialSimpleConsumer):
    """A simple consumer of lite topics."""

    def suspend(self, message: Received, for_s: int) -> None:
        """Stop the message's lite topic."""
        self._do("suspend", token=message.token, suspend_s=for_s)


def messages_of(answer: Future[dict[str, Any]]) -> list[Received]:
    return [Received(**message) for message in answer.result(PATIENCE_S)["messages"]]


# Whose clients the tests of this folder go into deeply; those of `matrix` take all.
DEEPLY = ("python", "node")


Start = Callable[..., Program]
