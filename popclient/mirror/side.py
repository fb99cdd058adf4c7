"""One side of a mirror: a PopMQ server or a RocketMQ cluster, with what both can be asked and given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from popclient._session import convert
from popclient._session.convert import Outbound
from popclient._session.transport import Transport
from popclient._version import new_client_id
from popclient.admin.facts import ScheduledMessage
from popclient.aio.producer import Producer
from popclient.config import ClientConfig
from popclient.errors import NotFound, PopError, ServerError, ServerTimeout, Unreachable, check
from popclient.listening import TransactionResolution
from popclient.message import MessageView
from popclient.mirror.outgoing import later, to_topic
from popclient.mirror.routes import GroupFacts, Handover, Kind, TopicFacts, Way
from popclient.receipts import SendReceipt
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc


class DeadMessage(NamedTuple):
    """A dead letter on its way: its message, the topic in which it died (empty: unknown), and the facts of its death.

    `place`: where the source continues behind it.
    """

    message: MessageView
    topic: str
    delivery_attempt: int
    reason: str
    dead_at_ms: int
    place: int


class Side(ABC):
    """A server at an endpoint. Belongs to one event loop."""

    kind: Kind
    stores_once: bool  # whether it finds a message by its id that it has already
    holds_whole_groups: bool  # whether `hold_back` holds a group back in all topics
    poll_s: float  # how long a receive waits here for messages: a mirror that runs until all is done waits as long

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self._producer = Producer(config)
        self._transport = Transport(config, new_client_id())

    @property
    def where(self) -> str:
        return f"{self.kind} at {self.config.endpoints}"

    async def close(self) -> None:
        await self._producer.close()
        await self._transport.close()

    async def route(self, name: str) -> TopicFacts | None:
        """A topic as producers see it; None if it does not exist."""
        request = rpc.QueryRouteRequest(
            topic=convert.resource(name, self.config.namespace), endpoints=convert.endpoints(self._transport.endpoints)
        )
        answer = await self._transport.unary(
            lambda link: link.messaging.QueryRoute, request, self.config.request_timeout
        )
        try:
            check(answer.status)
        except NotFound:
            return None
        types = {each for queue in answer.message_queues for each in queue.accept_message_types}
        return TopicFacts(name, tuple(pb.MessageType.Name(each) for each in sorted(types)), len(answer.message_queues))

    # What it has.

    @abstractmethod
    async def topic(self, name: str) -> TopicFacts | None: ...

    @abstractmethod
    async def group(self, name: str) -> GroupFacts | None:
        """None if it does not exist, or if this side cannot say."""

    @abstractmethod
    async def make_topic(self, topic: TopicFacts) -> None: ...

    @abstractmethod
    async def make_group(self, group: GroupFacts, topics: Sequence[str]) -> None:
        """And what its messages need to come here for this group alone."""

    @abstractmethod
    async def make_reader(self, group: str, topics: Sequence[str]) -> None:
        """A group of the mirror's own, which reads these topics from their beginning."""

    @property
    @abstractmethod
    def can_make(self) -> bool:
        """Whether topics and groups can be made here."""

    @abstractmethod
    def how_to_make(self, facts: TopicFacts | GroupFacts) -> str:
        """The command of an operator that makes it."""

    @abstractmethod
    async def begin_at_first(self, group: str, topic: str) -> None:
        """Lets a group that has not read the topic begin with its first message."""

    # Who may use it: for a move.

    async def brokers(self) -> list[str]:
        """The names of the brokers that it consists of now; none if it has no brokers, or does not say."""
        return []

    @abstractmethod
    async def close_topic(self, name: str, because: str) -> None:
        """Refuses producers; when it returns, no message of a producer comes in. It may be repeated."""

    @abstractmethod
    async def open_topic(self, name: str) -> None: ...

    @abstractmethod
    async def hold_back(self, group: str, topic: str) -> None:
        """Delivers nothing of the topic to the group until `let_go`. It may be repeated."""

    @abstractmethod
    async def let_go(self, group: str, topic: str) -> None: ...

    @abstractmethod
    async def stored(self, topic: str) -> int | None:
        """How many messages the topic ever stored; 0 if it does not exist, None if this side does not say."""

    @abstractmethod
    async def waits(self, topic: str) -> bool:
        """Whether messages of the topic will come in later: delayed ones, and half ones if this side tells them."""

    @abstractmethod
    def topics_of_imports(self, group: str, topics: Sequence[str]) -> list[str]:
        """Where messages of these topics are stored that `write_to_group` brings."""

    @abstractmethod
    async def consumers(self, group: str) -> int | None:
        """How many consumers of the group are connected; None if this side does not say."""

    # What is left in it.

    @abstractmethod
    async def lag(self, handover: Handover, group: str) -> int | None:
        """How many messages of the topic the group has not done; None if this side does not say."""

    @abstractmethod
    async def is_done(self, handover: Handover, group: str) -> bool:
        """Whether the group has nothing left in the topic, held messages included, as far as this side says."""

    @abstractmethod
    def scheduled(self, topic: str) -> AsyncIterator[ScheduledMessage]:
        """The delayed messages that are not due; none if this side does not list them."""

    @abstractmethod
    async def unschedule(self, topic: str, message_ids: Sequence[str]) -> set[str]:
        """Removes delayed messages; returns those that were there."""

    @abstractmethod
    def dead_letters(self, group: str, after: int) -> AsyncIterator[DeadMessage]:
        """The dead letters of a group behind a place, oldest first."""

    # What is written into it.

    async def write(self, handover: Handover, topic: TopicFacts, views: Sequence[MessageView]) -> list[bool | PopError]:
        """Stores messages, and returns for each: whether it was there before, as far as this side knows, or why it is
        not stored. Raises a PopError if nothing is known about any. No message passes one of its message group."""
        if handover.way is Way.GROUP:
            return await self.write_to_group(handover, views)
        if handover.way is Way.TOPIC:
            return await self._write_to_topic(topic, views)
        ordered = [view for view in views if view.message_group is not None]
        others = [view for view in views if view.message_group is None]
        of_ordered = iter(await self._write_to_topic(topic, ordered) if ordered else ())
        of_others = iter(await self.write_to_group(handover, others) if others else ())
        return [next(of_others if view.message_group is None else of_ordered) for view in views]

    async def _write_to_topic(self, topic: TopicFacts, views: Sequence[MessageView]) -> list[bool | PopError]:
        return await self.send([_or_refusal(view, topic, self.config.namespace) for view in views])

    @abstractmethod
    async def write_to_group(self, handover: Handover, views: Sequence[MessageView]) -> list[bool | PopError]: ...

    async def write_later(self, topic: TopicFacts, views: Sequence[MessageView]) -> list[bool | PopError]:
        """The same for delayed messages that are not due."""
        return await self.send([later(view, topic, self.config.namespace) for view in views])

    @abstractmethod
    async def write_dead(self, group: str, letters: Sequence[DeadMessage]) -> list[bool | PopError]: ...

    async def send(self, given: Sequence[Outbound | PopError]) -> list[bool | PopError]:
        """Sends messages in rounds, each with at most one of a message group; a refusal in `given` is its own outcome.

        A message behind one that was not stored has the outcome of that one.
        """
        outcomes: list[bool | PopError] = [each if isinstance(each, PopError) else False for each in given]
        for numbers in in_rounds(["" if isinstance(each, PopError) else each.message_group for each in given]):
            ready = [
                (number, each)
                for number in numbers
                if not isinstance(each := given[number], PopError) and not isinstance(outcomes[number], PopError)
            ]
            sent = await self._send_at_once([each for _, each in ready])
            for (number, each), outcome in zip(ready, sent, strict=True):
                outcomes[number] = outcome
                if isinstance(outcome, PopError) and each.message_group:
                    _stop_group(given, outcomes, number, each.message_group, outcome)
        return outcomes

    def perhaps_stored(self, outcomes: Sequence[bool | PopError]) -> int:
        """How many of these messages may be stored although the side has not said so, and would be twice after another
        try."""
        if self.stores_once:
            return 0
        return sum(isinstance(each, Unreachable | ServerError | ServerTimeout) for each in outcomes)

    async def _send_at_once(self, ready: Sequence[Outbound]) -> list[bool | PopError]:
        core, bridge = self._producer._core, self._producer._bridge
        results = await bridge.ask(lambda reply: core.submit_all(ready, reply)) if ready else []
        return [
            result if isinstance(result, PopError) else await self._committed(each, result)
            for each, result in zip(ready, results, strict=True)
        ]

    async def _committed(self, sent: Outbound, receipt: SendReceipt) -> bool | PopError:
        """Commits the message if its topic takes only transactions."""
        if sent.kind == pb.TRANSACTION:
            half = sent.topic, receipt.message_id, receipt.transaction_id
            try:
                end = self._producer._core._end_transaction
                await end(*half, TransactionResolution.COMMIT, pb.SOURCE_CLIENT)
            except PopError as failure:
                return failure
        return False


def in_rounds(message_groups: Sequence[str]) -> list[list[int]]:
    """The numbers of messages in rounds: the n-th message of each message group is in the n-th round.

    Messages without a group ("") are in the first one.
    """
    rounds: list[list[int]] = []
    seen: dict[str, int] = {}
    for number, group in enumerate(message_groups):
        turn = seen.get(group, 0) if group else 0
        seen[group] = turn + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(number)
    return rounds


def _stop_group(
    given: Sequence[Outbound | PopError], outcomes: list[bool | PopError], after: int, group: str, failure: PopError
) -> None:
    for number in range(after + 1, len(given)):
        each = given[number]
        if not isinstance(each, PopError) and each.message_group == group:
            outcomes[number] = failure


def _or_refusal(view: MessageView, topic: TopicFacts, namespace: str) -> Outbound | PopError:
    try:
        return to_topic(view, topic, namespace)
    except PopError as refusal:
        return refusal
