"""Every call of the server: requests of any shape, and bytes that are none, at the handlers of a server that runs.

Inputs meet the server in the state that the inputs before them have left; after 1,000 inputs there is a new one. So a
finding that a file of one input does not repeat is repeated from the thousand before it.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

from google.protobuf.descriptor import Descriptor, MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from popproto.v2 import definition_pb2 as pb
from popserver.services.administration import ADMIN, ROCKETMQ_ADMIN
from popserver.services.clients import BULK, LEGACY, MESSAGING, RECEIVING
from popserver.transport.call import EndCode, EndStatus
from proof.fuzz.served import prepared
from proof.fuzz.served.requests import MESSAGE_ID, PLAN, RECALL, RECEIPT, TRANSACTION, RequestGrammar, with_given
from proof.fuzz.served.server import START_MS, ServedStore
from proof.fuzz.target import FuzzTarget, a_text, must, mutated

SERVICES = (
    MESSAGING,
    ROCKETMQ_ADMIN,
    ADMIN,
    LEGACY,
    RECEIVING,
    BULK,
)
METHODS: Mapping[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods
}
_NO_PROTOBUF = frozenset({"PullBulk", "ReceiveBulk", "ReceiveBatch"})
RENEWED_AFTER = 1_000
CHECKED_AFTER = 250
_MESSAGING = [path for path in METHODS if "MessagingService" in path]
_ALL = list(METHODS)
_CLOCK = "clock"
_CLOCK_MS = (1, 1_000, 30_000, 600_000, 7_200_000)
_SENTENCE_MAX = 2_100
_NO_SENTENCE = ("Traceback", "object at 0x", "sqlite3", "sqlalchemy", "KeyError", "ValueError", "TypeError")
_GIVEN_BY = {
    "receipt_handle": RECEIPT,
    "recall_handle": RECALL,
    "transaction_id": TRANSACTION,
    "message_id": MESSAGE_ID,
    "plan_id": PLAN,
}
# They answer that nothing is there, and have noted by then who asks.
_NOTED = frozenset({pb.MESSAGE_NOT_FOUND, pb.OFFSET_NOT_FOUND})
_ILLEGAL_NAMES = frozenset({pb.ILLEGAL_TOPIC, pb.ILLEGAL_CONSUMER_GROUP})
# A pull that is refused has committed the offset that it carries.
_RIDES_ALONG = {"PullBatch": {"progress", "consumer_group"}}
_CREATED_ON_USE = ("consumer_group", "topic", "queue")
_UNCLEAR = frozenset({pb.CODE_UNSPECIFIED, pb.INTERNAL_ERROR, pb.INTERNAL_SERVER_ERROR, pb.HA_NOT_AVAILABLE})


class CallsTarget(FuzzTarget):
    """Input: the method's path, a line break, its headers as JSON, a line break, and frames with their lengths."""

    name: ClassVar[str] = "calls"
    short: ClassVar[int] = 1_000
    tries: ClassVar[int] = 60
    bar_s: ClassVar[float] = 0.5  # a clock that jumps brings work for all that is due
    leaked: ClassVar[int] = 60  # fewer than a server judges
    leak_bytes_max: ClassVar[int] = 512
    leak_rounds: ClassVar[int] = 12  # what a server holds for work that goes on comes and goes
    has_state: ClassVar[bool] = True

    def __init__(self) -> None:
        self._served: ServedStore | None = None
        self._loop = asyncio.new_event_loop()  # of one server after the other: gRPC's library forgets no loop
        self._given: dict[str, str] = {}

    def draw(self, dice: random.Random) -> bytes:
        if dice.random() < 0.02:
            return f"{_CLOCK}\n{dice.choice(_CLOCK_MS)}\n".encode()
        path = dice.choice(_MESSAGING if dice.random() < 0.6 else _ALL)
        grammar = RequestGrammar(dice, START_MS // 1_000)
        method = METHODS[path]
        frames = [
            grammar.draw(method.input_type).SerializeToString()
            for _ in range(dice.choice((1, 1, 2, 4)) if method.client_streaming else 1)
        ]
        if dice.random() < 0.15:
            frames[-1] = mutated(frames[-1], dice)
        headers = {"x-mq-client-id": dice.choice(("c1", "c1", "c2"))}
        if dice.random() < 0.05:
            headers = {"x-mq-client-id": a_text(dice), "x-mq-namespace": a_text(dice), "x-mq-client-version": "5.0.1"}
        return f"{path}\n{json.dumps(headers)}\n".encode() + b"".join(map(framed, frames))

    def judge(self, data: bytes) -> int:
        served = self._ready()
        self.age += 1
        path, headers, frames = read_input(data)
        if path == _CLOCK:
            served.advance(min(7_200_000, int(headers) if isinstance(headers, int) and headers > 0 else 1))
            self._must_be_sound()
            return 1
        method = METHODS.get(path)
        if method is None or not isinstance(headers, dict):
            return 0
        served.remember()
        try:
            return self._judge_call(served, method, path, headers, frames)
        finally:
            served.forget()

    def close(self) -> None:
        self._end_server()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _end_server(self) -> None:
        if self._served is not None:
            self._served.close()
            self._served = None

    def _ready(self) -> ServedStore:
        """The server; a new one after so many inputs."""
        if self.age >= RENEWED_AFTER:
            self._end_server()
        if self._served is None:
            self._served, self.age, self._given = ServedStore(self._loop), 0, {}
            for path, request in prepared.requests():
                self._take(self._served.call(path, prepared.HEADERS, [request.SerializeToString()])[0], METHODS[path])
        return self._served

    def _judge_call(
        self,
        served: ServedStore,
        method: MethodDescriptor,
        path: str,
        headers: Mapping[str, str],
        frames: Sequence[bytes],
    ) -> int:
        answers, ending = served.call(path, headers, [self._filled(each, method) for each in frames])
        read = self._take(answers, method)
        statuses = [status for answer in read for status in statuses_of(answer)]
        self.reached = f"{path} {sorted({each.code for each in statuses})} {len(answers)} {ending and ending.code}"
        self._must_be_sound()
        must(bool(answers) or ending is not None or method.server_streaming, f"{method.name} has no answer")
        must(ending is None or _is_precise_end(ending), f"{method.name} ends with {ending}")
        for status in statuses:
            must(_is_precise(status), f"{method.name} answers {status}")
        if not _is_refused(read, ending):
            return 1
        # First use creates a topic or a group with a legal name, also if the store then refuses the request.
        unharmed = () if {each.code for each in statuses} & _ILLEGAL_NAMES else _CREATED_ON_USE
        changed = set(served.changes(only_grown=unharmed)) - _RIDES_ALONG.get(method.name, set())
        must(not changed, f"{method.name} is refused ({statuses or ending}), but it has changed {sorted(changed)}")
        return 2

    def _must_be_sound(self) -> None:
        served = cast("ServedStore", self._served)
        errors, served.errors[:] = list(served.errors), []
        must(not errors, f"the server logs an error: {errors[:1]}")
        if self.age % CHECKED_AFTER == 0:
            served.check()

    def _filled(self, frame: bytes, method: MethodDescriptor) -> bytes:
        """The frame with what the server has given last; as it is if it is no request."""
        if b"@" not in frame:
            return frame
        try:
            request = GetMessageClass(method.input_type).FromString(frame)
        except DecodeError:
            return frame
        with_given(request, self._given)
        return request.SerializeToString()

    def _take(self, answers: Sequence[bytes], method: MethodDescriptor) -> list[Message]:
        """The answers, decoded; handles and ids in them are for later requests."""
        if method.name in _NO_PROTOBUF:
            return []  # frames that are no protobuf
        read = [GetMessageClass(method.output_type).FromString(each) for each in answers]
        for answer in read:
            for name, value in _texts_of(answer):
                if value and name in _GIVEN_BY:
                    self._given[_GIVEN_BY[name]] = value
        return read


def framed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def read_input(data: bytes) -> tuple[str, Any, list[bytes]]:
    """The path, the headers, the frames, of any bytes."""
    path, _, rest = data.partition(b"\n")
    line, _, rest = rest.partition(b"\n")
    try:
        headers = json.loads(line)
    except (ValueError, RecursionError):
        headers = None
    if isinstance(headers, dict):
        headers = {name: each for name, each in headers.items() if isinstance(each, str)}
    frames = []
    while rest:
        size = int.from_bytes(rest[:4], "big")
        frames.append(rest[4 : 4 + size])
        rest = rest[4 + size :]
    return path.decode(errors="replace"), headers, frames or [b""]


def statuses_of(message: Message) -> Iterator[pb.Status]:
    """Every status in an answer."""
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for part in value if field.is_repeated else (value,):
            if cast("Descriptor", part.DESCRIPTOR).full_name == "apache.rocketmq.v2.Status":
                yield part
            else:
                yield from statuses_of(part)


def _texts_of(message: Message) -> Iterator[tuple[str, str]]:
    for field, value in message.ListFields():
        if isinstance(value, str):
            yield field.name, value
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for part in value if field.is_repeated else (value,):
                yield from _texts_of(part)


def _is_precise(status: pb.Status) -> bool:
    if status.code not in pb.Code.values() or status.code in _UNCLEAR:
        return False
    return 0 < len(status.message) <= _SENTENCE_MAX and not any(each in status.message for each in _NO_SENTENCE)


def _is_precise_end(ending: EndStatus) -> bool:
    return ending.code is not EndCode.INTERNAL and not any(each in ending.sentence for each in _NO_SENTENCE)


def _is_refused(answers: Sequence[Message], ending: EndStatus | None) -> bool:
    """Whether nothing of the call was done: no status of an answer says otherwise."""
    if ending is not None and not answers:
        return True
    own = [cast("Any", each).status for each in answers if "status" in each.DESCRIPTOR.fields_by_name]
    codes = {each.code for each in own}
    return bool(codes) and not codes & {pb.OK, pb.MULTIPLE_RESULTS, pb.CODE_UNSPECIFIED, *_NOTED}
