"""Topics and consumer groups: created, changed, deleted, listed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from popclient.admin.answers import group_of, topic_of
from popclient.admin.facts import ExponentialBackoff, Group, Topic
from popclient.admin.requests import message_types, set_interval, set_intervals
from popclient.aio.admin.calls import Calls
from popproto.v1 import admin_pb2 as wire


class Topics(Calls):
    """The calls about topics."""

    async def create_topic(self, name: str, *, queue_count: int = 0, accept_message_types: Iterable[str] = ()) -> Topic:
        """Creates a topic. 0 queues and no types: the server's defaults. Types are NORMAL, FIFO, DELAY, TRANSACTION."""
        request = wire.CreateTopicRequest(
            topic=self._named(name), queue_count=queue_count, accept_message_types=message_types(accept_message_types)
        )
        answer = await self._call(lambda link: link.admin.CreateTopic, request)
        return topic_of(answer.topic)

    async def update_topic(
        self, name: str, *, queue_count: int | None = None, accept_message_types: Iterable[str] = ()
    ) -> Topic:
        """Changes a topic; what is not given stays as it is. The number of queues can only grow."""
        request = wire.UpdateTopicRequest(
            topic=self._named(name), queue_count=queue_count, accept_message_types=message_types(accept_message_types)
        )
        answer = await self._call(lambda link: link.admin.UpdateTopic, request)
        return topic_of(answer.topic)

    async def delete_topic(self, name: str) -> None:
        await self._call(lambda link: link.admin.DeleteTopic, wire.DeleteTopicRequest(topic=self._named(name)))

    async def get_topic(self, name: str) -> Topic:
        answer = await self._call(lambda link: link.admin.GetTopic, wire.GetTopicRequest(topic=self._named(name)))
        return topic_of(answer.topic)

    async def list_topics(self) -> list[Topic]:
        """Those of the config's namespace; all without a namespace. Servers limit the list."""
        answer = await self._call(lambda link: link.admin.ListTopics, wire.ListTopicsRequest())
        return [topic_of(each) for each in answer.topics]


class Groups(Calls):
    """The calls about consumer groups."""

    async def create_group(
        self,
        name: str,
        *,
        max_attempts: int = 0,
        retry_intervals: Iterable[float | timedelta] | ExponentialBackoff = (),
        fifo_retry_interval: float | timedelta | None = None,
        consume_from: str = "",
        history: str = "",
    ) -> Group:
        """Creates a group; what is not given is a default. Intervals: seconds, timedeltas, or exponential."""
        request = wire.CreateGroupRequest(
            group=self._named(name), max_attempts=max_attempts, consume_from=consume_from, history=history
        )
        set_intervals(request, retry_intervals)
        set_interval(request, fifo_retry_interval)
        answer = await self._call(lambda link: link.admin.CreateGroup, request)
        return group_of(answer.group)

    async def update_group(
        self,
        name: str,
        *,
        max_attempts: int | None = None,
        retry_intervals: Iterable[float | timedelta] | ExponentialBackoff = (),
        fifo_retry_interval: float | timedelta | None = None,
        history: str | None = None,
    ) -> Group:
        """Changes a group; what is not given stays as it is."""
        request = wire.UpdateGroupRequest(group=self._named(name), max_attempts=max_attempts, history=history)
        set_intervals(request, retry_intervals)
        set_interval(request, fifo_retry_interval)
        answer = await self._call(lambda link: link.admin.UpdateGroup, request)
        return group_of(answer.group)

    async def delete_group(self, name: str) -> None:
        await self._call(lambda link: link.admin.DeleteGroup, wire.DeleteGroupRequest(group=self._named(name)))

    async def get_group(self, name: str) -> Group:
        answer = await self._call(lambda link: link.admin.GetGroup, wire.GetGroupRequest(group=self._named(name)))
        return group_of(answer.group)

    async def list_groups(self) -> list[Group]:
        """Those of the config's namespace; all without a namespace. Servers limit the list."""
        answer = await self._call(lambda link: link.admin.ListGroups, wire.ListGroupsRequest())
        return [group_of(each) for each in answer.groups]
