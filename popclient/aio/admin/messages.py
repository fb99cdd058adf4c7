"""Messages: stored ones are read, explained and tried against a filter; scheduled ones are listed and cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta

from popclient._arguments import as_timedelta
from popclient.admin.answers import facts_of, filter_trial_of, views_of, why_of
from popclient.admin.facts import (
    FilterTrial,
    FoundMessages,
    Hold,
    LockedMessageGroups,
    MessageFacts,
    ScheduledMessage,
    Why,
)
from popclient.admin.requests import PAGE
from popclient.aio.admin.calls import Calls
from popclient.message import MessageView
from popproto.v1 import admin_pb2 as wire


class Messages(Calls):
    """The calls that look at stored messages."""

    async def peek_messages(
        self, topic: str, *, queue_id: int | None = None, from_offset: int | None = None, max_messages: int = 32
    ) -> list[MessageView]:
        """Reads stored messages without a hold. Without a queue: of all queues, from their oldest messages."""
        request = wire.PeekMessagesRequest(
            topic=self._named(topic), queue_id=queue_id, from_offset=from_offset, max=max_messages
        )
        answer = await self._call(lambda link: link.admin.PeekMessages, request)
        return views_of(answer.messages)

    async def get_message(self, message_id: str, topic: str | None = None) -> MessageFacts:
        """A message with its states and history; without a topic all of them are searched."""
        request = wire.GetMessageRequest(topic=self._named(topic), message_id=message_id)
        answer = await self._call(lambda link: link.admin.GetMessage, request)
        return facts_of(MessageFacts, answer)

    async def why(self, message_id: str, group: str, topic: str | None = None) -> Why:
        """Why the message is where it is in that group; without a topic all of them are searched."""
        request = wire.WhyRequest(topic=self._named(topic), group=self._named(group), message_id=message_id)
        answer = await self._call(lambda link: link.admin.Why, request)
        return why_of(answer)

    async def list_holds(self, group: str, topic: str | None = None, *, max_messages: int = PAGE) -> list[Hold]:
        """What the group holds and what waits for a retry, in one topic or in all; the last to end comes first."""
        request = wire.ListHoldsRequest(group=self._named(group), topic=self._named(topic), max=max_messages)
        answer = await self._call(lambda link: link.admin.ListHolds, request)
        return [facts_of(Hold, each) for each in answer.holds]

    async def list_locked_message_groups(self, group: str, *, max_groups: int = PAGE) -> LockedMessageGroups:
        """The message groups that wait for their first message; those with the most attempts come first."""
        request = wire.ListLockedMessageGroupsRequest(group=self._named(group), max=max_groups)
        answer = await self._call(lambda link: link.admin.ListLockedMessageGroups, request)
        return facts_of(LockedMessageGroups, answer)

    async def find_messages(
        self,
        *,
        key: str | None = None,
        topic: str | None = None,
        tag: str | None = None,
        where: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
        max_messages: int = 10,
        page: str = "",
        lite_topic: str | None = None,
    ) -> FoundMessages:
        """Finds stored messages by what is given, at most `max_messages`; the newest come first, without bodies.

        where: a SQL filter. since: stored then or later. until: stored before. With a key any topic is searched, by an
        index; without one, `topic`. One call examines at most 10,000 messages with the key, or the newest 100,000 of
        the topic in that time, and fewer with a costly filter. page: the `next_page` of the answer before, for the next
        ones; all pages together have each match once. Dead letters and retries are not found. lite_topic: only its
        messages, also those from before it expired. Raises BadRequest without key and topic, for an illegal expression,
        and for a lite topic of a topic of another type.
        """
        request = wire.FindMessagesRequest(
            topic=self._named(topic), key=key, tag=tag, where=where, max=max_messages, page=page, lite_topic=lite_topic
        )
        if since is not None:
            request.since.FromDatetime(since.astimezone(UTC))
        if until is not None:
            request.until.FromDatetime(until.astimezone(UTC))
        answer = await self._call(lambda link: link.admin.FindMessages, request)
        return facts_of(FoundMessages, answer)

    async def try_filter(
        self, expression: str, topic: str, *, last: float | timedelta | None = None, max_messages: int = 10
    ) -> FilterTrial:
        """Tries a SQL filter on the messages stored in the `last` time, or on all. Nothing changes.

        `last` is seconds or a timedelta; at most the newest 100,000 messages are examined. Raises BadRequest, saying
        where, for an expression that is illegal.
        """
        request = wire.TryFilterRequest(topic=self._named(topic), expression=expression, max=max_messages)
        if last is not None:
            request.last.FromTimedelta(as_timedelta("last", last))
        answer = await self._call(lambda link: link.admin.TryFilter, request)
        return filter_trial_of(answer)


class Scheduled(Calls):
    """The calls about delayed and half messages."""

    async def list_scheduled(
        self, topic: str, *, after: ScheduledMessage | None = None, max_messages: int = PAGE
    ) -> list[ScheduledMessage]:
        """One page of delayed and half messages, by due time; the last one, given as `after`, leads to the next."""
        request = wire.ListScheduledRequest(topic=self._named(topic), max=max_messages)
        if after is not None:
            request.after_due_at.FromDatetime(after.due_at)
            request.after_id = after.id
        answer = await self._call(lambda link: link.admin.ListScheduled, request)
        return [facts_of(ScheduledMessage, each) for each in answer.messages]

    async def scheduled(self, topic: str) -> AsyncIterator[ScheduledMessage]:
        """All delayed and half messages, by due time, page by page."""
        page = await self.list_scheduled(topic)
        while page:
            for each in page:
                yield each
            page = await self.list_scheduled(topic, after=page[-1])

    async def cancel_scheduled(
        self, topic: str, message_ids: Iterable[str] = (), *, key: str | None = None
    ) -> list[str]:
        """Removes delayed and half messages by id, or at most 1,000 by key; returns the ids of those found."""
        request = wire.CancelScheduledRequest(topic=self._named(topic), message_ids=message_ids, key=key)
        answer = await self._call(lambda link: link.admin.CancelScheduled, request)
        return list(answer.message_ids)
