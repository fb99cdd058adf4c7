"""Messages in no queue yet: looked at, cancelled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from popclient.admin.answers import scheduled_message_of
from popclient.admin.calls import PAGE, Calls
from popclient.admin.facts import ScheduledMessage
from popproto.v1 import admin_pb2 as wire


class Scheduled(Calls):
    """The calls about delayed and half messages."""

    def list_scheduled(
        self, topic: str, *, after: ScheduledMessage | None = None, max_messages: int = PAGE
    ) -> list[ScheduledMessage]:
        """One page of delayed and half messages, by due time; the last one, given as `after`, leads to the next."""
        request = wire.ListScheduledRequest(topic=self._named(topic), max=max_messages)
        if after is not None:
            request.after_due_at.FromDatetime(after.due_at)
            request.after_id = after.id
        answer = self._call(lambda link: link.admin.ListScheduled, request)
        return [scheduled_message_of(each) for each in answer.messages]

    def scheduled(self, topic: str) -> Iterator[ScheduledMessage]:
        """All of them, by due time, page by page."""
        page = self.list_scheduled(topic)
        while page:
            yield from page
            page = self.list_scheduled(topic, after=page[-1])

    def cancel_scheduled(self, topic: str, message_ids: Iterable[str] = (), *, key: str | None = None) -> list[str]:
        """Removes delayed and half messages, by id or (at most 1,000 at once) by key; the ids of what was there."""
        request = wire.CancelScheduledRequest(topic=self._named(topic), message_ids=message_ids, key=key)
        return list(self._call(lambda link: link.admin.CancelScheduled, request).message_ids)
