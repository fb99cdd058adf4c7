# Made by scripts/unasync.py from popclient/aio/admin/catalog.py. Do not edit.
"""Topics, consumer groups and clients."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from popclient._sync.admin.calls import Calls
from popclient.admin.answers import OUTCOMES, client_facts_of, facts_of, group_of, topic_of, trial_of
from popclient.admin.facts import (
    ClientFacts,
    ExponentialBackoff,
    Group,
    LiteTopic,
    LiteTopicFacts,
    LiteTopicGroup,
    Topic,
    Trial,
)
from popclient.admin.requests import message_types, set_expiry, set_interval, set_intervals
from popclient.errors import UnsupportedByServer
from popproto.v1 import admin_pb2 as wire
from popproto.v2 import admin_pb2 as rocketmq


class Topics(Calls):
    """The calls about topics."""

    def create_topic(
        self,
        name: str,
        *,
        queue_count: int = 0,
        accept_message_types: str | Iterable[str] = (),
        lite_expiry: float | timedelta | None = None,
    ) -> Topic:
        """Creates a topic. 0 queues and no types: the server's defaults.

        Types are one or several of NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, or LITE alone. lite_expiry: how long
        (seconds or a timedelta) a lite topic lives after its last message; None: for ever.
        """
        request = wire.CreateTopicRequest(
            topic=self._named(name), queue_count=queue_count, accept_message_types=message_types(accept_message_types)
        )
        set_expiry(request, lite_expiry)
        answer = self._call(lambda link: link.admin.CreateTopic, request)
        return topic_of(answer.topic)

    def update_topic(
        self,
        name: str,
        *,
        queue_count: int | None = None,
        accept_message_types: str | Iterable[str] = (),
        lite_expiry: float | timedelta | None = None,
    ) -> Topic:
        """Changes a topic; what is not given stays as it is. The number of queues can only grow.

        lite_expiry: as in `create_topic`; 0: lite topics do not expire any more.
        """
        request = wire.UpdateTopicRequest(
            topic=self._named(name), queue_count=queue_count, accept_message_types=message_types(accept_message_types)
        )
        set_expiry(request, lite_expiry)
        answer = self._call(lambda link: link.admin.UpdateTopic, request)
        return topic_of(answer.topic)

    def close_topic(self, name: str, because: str) -> Topic:
        """Closes a topic for producers, who are refused with Forbidden and this sentence (at most 500 characters).

        When this returns, no server stores a message of a producer in it, not even one on its way; only a delayed or
        half message on its way may still be accepted. Consumers go on, and what was accepted arrives: also delayed
        messages, half messages that are committed later, and those of transactions of users (`popmq_enqueue`).
        """
        if not because:
            raise ValueError("because is empty; say why the topic is closed, for the people behind its producers")
        request = wire.UpdateTopicRequest(topic=self._named(name), closed_because=because)
        answer = self._call(lambda link: link.admin.UpdateTopic, request)
        if not answer.topic.closed_because:
            raise UnsupportedByServer(f"this server cannot close topic {name!r}: it is older than 1.0; update it first")
        return topic_of(answer.topic)

    def open_topic(self, name: str) -> Topic:
        """Lets a closed topic take messages of producers again."""
        request = wire.UpdateTopicRequest(topic=self._named(name), closed_because="")
        answer = self._call(lambda link: link.admin.UpdateTopic, request)
        return topic_of(answer.topic)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic with its messages. Raises NotFound."""
        self._call(lambda link: link.admin.DeleteTopic, wire.DeleteTopicRequest(topic=self._named(name)))

    def get_topic(self, name: str) -> Topic:
        """Raises NotFound."""
        answer = self._call(lambda link: link.admin.GetTopic, wire.GetTopicRequest(topic=self._named(name)))
        return topic_of(answer.topic)

    def list_topics(self, *, max_topics: int | None = None) -> list[Topic]:
        """Those of the config's namespace, or all without a namespace; by namespace and name, at most so many.

        Asks for 1,000 at a time.
        """
        request, topics = wire.ListTopicsRequest(), list[Topic]()
        while True:
            answer = self._call(lambda link: link.admin.ListTopics, request)
            topics += map(topic_of, answer.topics)
            if not answer.HasField("next_after") or len(topics) >= (max_topics or len(topics) + 1):
                return topics[:max_topics]
            request.after.CopyFrom(answer.next_after)

    def list_lite_topics(
        self, topic: str, *, prefix: str = "", after: str = "", max_topics: int = 1_000
    ) -> list[LiteTopic]:
        """The lite topics of a topic by name: those that begin with `prefix`, after the name `after`; at most 1,000."""
        request = wire.ListLiteTopicsRequest(topic=self._named(topic), prefix=prefix, after=after, max=max_topics)
        answer = self._call(lambda link: link.admin.ListLiteTopics, request)
        return [facts_of(LiteTopic, each) for each in answer.lite_topics]

    def get_lite_topic(self, topic: str, lite_topic: str) -> LiteTopicFacts:
        """A lite topic, and what each group does with it. Raises NotFound."""
        request = wire.GetLiteTopicRequest(topic=self._named(topic), lite_topic=lite_topic)
        answer = self._call(lambda link: link.admin.GetLiteTopic, request)
        groups = tuple(facts_of(LiteTopicGroup, each, group=each.group.name) for each in answer.groups)
        return LiteTopicFacts(facts_of(LiteTopic, answer.lite_topic), groups)


class Groups(Calls):
    """The calls about consumer groups."""

    def create_group(
        self,
        name: str,
        *,
        max_attempts: int = 0,
        retry_intervals: Iterable[float | timedelta] | ExponentialBackoff = (),
        fifo_retry_interval: float | timedelta | None = None,
        consume_from: str = "",
        history: str = "",
        lite: str = "",
    ) -> Group:
        """Creates a group; what is not given is a default. Intervals: seconds, timedeltas, or exponential.

        lite: SHARED, EXCLUSIVE or WILDCARD for lite consumers; empty: ordinary ones.
        """
        request = wire.CreateGroupRequest(
            group=self._named(name), max_attempts=max_attempts, consume_from=consume_from, history=history, lite=lite
        )
        set_intervals(request, retry_intervals)
        set_interval(request, fifo_retry_interval)
        answer = self._call(lambda link: link.admin.CreateGroup, request)
        return group_of(answer.group)

    def update_group(
        self,
        name: str,
        *,
        max_attempts: int | None = None,
        retry_intervals: Iterable[float | timedelta] | ExponentialBackoff = (),
        fifo_retry_interval: float | timedelta | None = None,
        history: str | None = None,
        lite: str = "",
    ) -> Group:
        """Changes a group; what is not given stays as it is. `lite` changes only if the group was never used."""
        request = wire.UpdateGroupRequest(
            group=self._named(name), max_attempts=max_attempts, history=history, lite=lite
        )
        set_intervals(request, retry_intervals)
        set_interval(request, fifo_retry_interval)
        answer = self._call(lambda link: link.admin.UpdateGroup, request)
        return group_of(answer.group)

    def delete_group(self, name: str) -> None:
        """Deletes a group with its progress and its dead letters. Raises NotFound."""
        self._call(lambda link: link.admin.DeleteGroup, wire.DeleteGroupRequest(group=self._named(name)))

    def get_group(self, name: str) -> Group:
        """Raises NotFound."""
        answer = self._call(lambda link: link.admin.GetGroup, wire.GetGroupRequest(group=self._named(name)))
        return group_of(answer.group)

    def list_groups(self, *, max_groups: int | None = None) -> list[Group]:
        """The same for groups."""
        request, groups = wire.ListGroupsRequest(), list[Group]()
        while True:
            answer = self._call(lambda link: link.admin.ListGroups, request)
            groups += map(group_of, answer.groups)
            if not answer.HasField("next_after") or len(groups) >= (max_groups or len(groups) + 1):
                return groups[:max_groups]
            request.after.CopyFrom(answer.next_after)


# The server waits for the client's answer 5 s, and 15 s where a listener consumes a message.
PATIENCE: Final = 8.0
TRIAL_PATIENCE: Final = 20.0


class Clients(Calls):
    """The calls about clients. Each of several servers knows the clients that have a session with it."""

    def list_clients(self, group: str | None = None) -> list[ClientFacts]:
        """The connected clients by id, at most 1,000; with a group only its consumers."""
        request = wire.ListClientsRequest(group=self._named(group))
        answer = self._call(lambda link: link.admin.ListClients, request)
        return list(map(client_facts_of, answer.clients))

    def print_threads(self, client_id: str) -> str:
        """The stack traces of the client's threads, as it wrote them; at most 256 Ki characters.

        Raises NotFound for a client without a session here, RequestTimeout where it has not answered within 5 s.
        """
        request = rocketmq.PrintThreadStackTraceRequest(client_id=client_id)
        answer = self._call(lambda link: link.rocketmq_admin.PrintThreadStackTrace, request, PATIENCE)
        return answer.thread_stack_trace

    def verify_message(self, client_id: str, message_id: str, topic: str | None = None) -> Trial:
        """Lets a push consumer's listener consume a stored message as a trial. The state of its group does not change.

        The listener consumes it like any message. Without a topic, the server searches all topics. Raises as
        `print_threads`, but after 15 s.
        """
        request = rocketmq.VerifyMessageRequest(client_id=client_id, message_id=message_id, topic=self._named(topic))
        answer = self._call(lambda link: link.rocketmq_admin.VerifyMessage, request, TRIAL_PATIENCE, but=OUTCOMES)
        return trial_of(answer.status)

    def reconnect_client(self, client_id: str) -> None:
        """Makes the client open a new session; returns when the server has sent the request. Raises NotFound."""
        request = wire.ReconnectClientRequest(client_id=client_id)
        self._call(lambda link: link.admin.ReconnectClient, request, PATIENCE)
