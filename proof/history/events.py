"""Calls of a history beyond those of a plain topic. Times are ms of the machine's monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.checker import Call, Receive, Send


@dataclass(frozen=True, slots=True)
class OrderedSend(Send):
    """A message of a message group. One producer sends all of a group, one call after the other."""

    message_group: str


@dataclass(frozen=True, slots=True)
class DelayedSend(Send):
    """A message that is due at a time of the wall clock, told in ms of the monotonic one."""

    due_ms: float


@dataclass(frozen=True, slots=True)
class HalfSend(Call):
    """A half message: nobody gets it before its transaction is committed. No `transaction_id` without an answer."""

    message_id: str
    digest: str
    transaction_id: str = ""


@dataclass(frozen=True, slots=True)
class EndTransaction(Call):
    """What a producer decided, as a call or as the answer to a check (then UNKNOWN, because nobody confirms it)."""

    message_id: str
    commits: bool


@dataclass(frozen=True, slots=True)
class Forward(Call):
    """A message that its consumer gave up: it becomes a dead letter."""

    group: str
    message_id: str
    handle: str


@dataclass(frozen=True, slots=True)
class Redrive(Call):
    """Dead letters that a plan sends back to their group. Repeated calls of a plan send none twice."""

    group: str
    plan_id: str
    message_ids: tuple[str, ...]  # those that were named
    sent_ids: tuple[str, ...] = ()  # those that were sent, by the answer; empty without one


@dataclass(frozen=True, slots=True)
class Pulled:
    """A message at its place in a queue."""

    offset: int
    message_id: str
    digest: str


@dataclass(frozen=True, slots=True)
class Pull(Call):
    """A read of a queue from `offset`; the next one begins at `next_offset`."""

    group: str
    queue: int
    offset: int
    next_offset: int = -1
    messages: tuple[Pulled, ...] = ()


@dataclass(frozen=True, slots=True)
class Sunk(Call):
    """What a reader of whole ranges has written to its sink: all of a queue from `offset` up to before `end_offset`."""

    group: str
    queue: int
    offset: int
    end_offset: int
    messages: tuple[Pulled, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitOffset(Call):
    """The progress of a group in a queue; one member at a time commits."""

    group: str
    queue: int
    offset: int


@dataclass(frozen=True, slots=True)
class ReadOffset(Call):
    """The progress as the server told it; -1: none yet."""

    group: str
    queue: int
    offset: int = -1


@dataclass(frozen=True, slots=True)
class SinkRow:
    """A message as a Spark query gave it to its sink."""

    queue: int
    offset: int
    message_id: str
    digest: str


@dataclass(frozen=True, slots=True)
class SparkBatch(Call):
    """A batch that a Spark query began to store; UNKNOWN if its driver was killed meanwhile. A restarted query repeats
    its last batch under the same number."""

    mode: str  # of the source: queue, lease, journal
    query: str
    number: int
    rows: tuple[SinkRow, ...]


@dataclass(frozen=True, slots=True)
class SunkBatch(SparkBatch):
    """A batch as the sink has it in the end; the call is the look at the sink."""


@dataclass(frozen=True, slots=True)
class SparkEnded(Call):
    """A Spark query's process that ended without a kill; `why` is the end of what it said."""

    why: str


@dataclass(frozen=True, slots=True)
class ProgramEnded(Call):
    """A program beside the load that ended without a kill; `why` is the end of what it said."""

    kind: str
    why: str


@dataclass(frozen=True, slots=True)
class Accident(Call):
    """Something was killed, stopped or cut off, and is back."""

    name: str


@dataclass(frozen=True, slots=True)
class Quiet(Call):
    """From now on nothing fails, consumers poll, and there is nothing to receive but what is sent from now on."""


@dataclass(frozen=True, slots=True)
class PushReceive(Receive):
    """A receive of a push consumer: what it gets is held as long as the client shows life. `invisible_ms` is 0."""

    client: str = ""


@dataclass(frozen=True, slots=True)
class LiteReceive(Receive):
    """A receive of a client that has subscribed to lite topics; its sends are `OrderedSend`, by lite topic."""

    client: str = ""


@dataclass(frozen=True, slots=True)
class LiteSync(Call):
    """A client subscribes to lite topics, or unsubscribes. `takes`: and the other clients of its group lose them."""

    group: str
    client: str
    names: tuple[str, ...]
    adds: bool
    takes: bool = False


@dataclass(frozen=True, slots=True)
class Consume(Call):
    """A client's listener works on a message."""

    group: str
    message_id: str
    client: str


@dataclass(frozen=True, slots=True)
class QueueBatch(Call):
    """What the listener of a group's member gets of a queue; OK if it has ended."""

    group: str
    queue: int
    client: str
    messages: tuple[Pulled, ...]


@dataclass(frozen=True, slots=True)
class TakenOver(Call):
    """A wait for members that live to work on all queues, after the last accident; REFUSED if it was in vain."""

    group: str
    missing: tuple[int, ...]  # queues


@dataclass(frozen=True, slots=True)
class SignOfLife(Call):
    """The server has heard of the client."""

    client: str


@dataclass(frozen=True, slots=True)
class Gone(Call):
    """The client said goodbye, or its stream broke."""

    client: str


@dataclass(frozen=True, slots=True)
class ClockStep(Call):
    """The system clock was set; the server's time, which the other times of a history are in, was not."""

    by_ms: float
