"""Stored messages: looked at, explained, held against a filter. Nothing of a group changes."""

from __future__ import annotations

from datetime import timedelta

from popclient._arguments import as_timedelta
from popclient.admin.answers import filter_trial_of, message_facts_of, views_of, why_of
from popclient.admin.calls import Calls
from popclient.admin.facts import FilterTrial, MessageFacts, Why
from popclient.message import MessageView
from popproto.v1 import admin_pb2 as wire


class Messages(Calls):
    """The calls that look at stored messages."""

    def peek_messages(
        self, topic: str, *, queue_id: int | None = None, from_offset: int | None = None, max_messages: int = 32
    ) -> list[MessageView]:
        """Reads without holding: no group's progress changes. Without a queue all of them, from their oldest on."""
        request = wire.PeekMessagesRequest(
            topic=self._named(topic), queue_id=queue_id, from_offset=from_offset, max=max_messages
        )
        return views_of(self._call(lambda link: link.admin.PeekMessages, request).messages)

    def get_message(self, message_id: str, topic: str | None = None) -> MessageFacts:
        """A message with its states and history; without a topic all of them are searched."""
        request = wire.GetMessageRequest(topic=None if topic is None else self._named(topic), message_id=message_id)
        return message_facts_of(self._call(lambda link: link.admin.GetMessage, request))

    def why(self, message_id: str, group: str, topic: str | None = None) -> Why:
        """Why the message is where it is in that group; without a topic all of them are searched."""
        request = wire.WhyRequest(
            topic=None if topic is None else self._named(topic), group=self._named(group), message_id=message_id
        )
        return why_of(self._call(lambda link: link.admin.Why, request))

    def try_filter(
        self, expression: str, topic: str, *, last: float | timedelta | None = None, max_messages: int = 10
    ) -> FilterTrial:
        """What a SQL filter would have wanted of the messages stored in the `last` time, or of all. Nothing changes.

        `last` is seconds or a timedelta; at most the newest 100,000 messages are examined. Raises BadRequest, saying
        where, for an expression that is illegal.
        """
        request = wire.TryFilterRequest(topic=self._named(topic), expression=expression, max=max_messages)
        if last is not None:
            request.last.FromTimedelta(as_timedelta("last", last))
        return filter_trial_of(self._call(lambda link: link.admin.TryFilter, request))
