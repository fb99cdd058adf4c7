"""Dead letters of a group: looked at."""

from __future__ import annotations

from collections.abc import Iterator

from popclient.admin.answers import dead_letter_of
from popclient.admin.calls import PAGE, Calls
from popclient.admin.facts import DeadLetter
from popproto.v1 import admin_pb2 as wire


class DeadLetters(Calls):
    """The calls about dead letters."""

    def list_dead_letters(
        self, group: str, *, topic: str | None = None, after_id: int = 0, max_messages: int = PAGE
    ) -> list[DeadLetter]:
        """One page, oldest first; the last one's id, given as `after_id`, leads to the next."""
        request = wire.ListDeadLettersRequest(
            selection=wire.DeadLetterSelection(
                group=self._named(group), topic=None if topic is None else self._named(topic)
            ),
            after_id=after_id,
            max=max_messages,
        )
        answer = self._call(lambda link: link.admin.ListDeadLetters, request)
        return [dead_letter_of(each) for each in answer.dead_letters]

    def dead_letters(self, group: str, *, topic: str | None = None) -> Iterator[DeadLetter]:
        """All of them, oldest first, page by page."""
        page = self.list_dead_letters(group, topic=topic)
        while page:
            yield from page
            page = self.list_dead_letters(group, topic=topic, after_id=page[-1].id)

    def get_dead_letter(self, group: str, message_id: str) -> DeadLetter:
        request = wire.GetDeadLetterRequest(group=self._named(group), message_id=message_id)
        return dead_letter_of(self._call(lambda link: link.admin.GetDeadLetter, request).dead_letter)
