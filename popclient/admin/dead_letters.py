"""Dead letters of a group: looked at, removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from popclient import _convert as convert
from popclient.admin.answers import dead_letter_of, dead_letter_page_of
from popclient.admin.calls import PAGE, Calls
from popclient.admin.pace import STEP_MAX
from popclient.admin.redrive_facts import DeadLetter, DeadLetterPage, DeadLetterSelection
from popproto.v1 import admin_pb2 as wire


class DeadLetters(Calls):
    """The calls about dead letters."""

    def list_dead_letters(
        self,
        of: str | DeadLetterSelection,
        *,
        after_id: int = 0,
        max_messages: int = PAGE,
        without_bodies: bool = False,
    ) -> DeadLetterPage:
        """One page, oldest first, of a group's dead letters or of those selected; those with an id above `after_id`."""
        request = wire.ListDeadLettersRequest(
            selection=selection_wire(of, self._config.namespace),
            after_id=after_id,
            max=max_messages,
            without_bodies=without_bodies,
        )
        return dead_letter_page_of(self._call(lambda link: link.admin.ListDeadLetters, request))

    def dead_letters(
        self, of: str | DeadLetterSelection, *, after_id: int = 0, without_bodies: bool = False
    ) -> Iterator[DeadLetter]:
        """All of them, oldest first, page by page. Without bodies, messages hold an empty one; that is quicker."""
        page_size = STEP_MAX if without_bodies else PAGE
        at: int | None = after_id
        while at is not None:
            page = self.list_dead_letters(of, after_id=at, max_messages=page_size, without_bodies=without_bodies)
            yield from page.dead_letters
            at = page.next_after_id

    def get_dead_letter(self, group: str, message_id: str) -> DeadLetter:
        """By the id of its message; the newest one, if several of that name died."""
        request = wire.GetDeadLetterRequest(group=self._named(group), message_id=message_id)
        return dead_letter_of(self._call(lambda link: link.admin.GetDeadLetter, request).dead_letter)

    def purge_dead_letters(self, of: str | DeadLetterSelection, *, told: Callable[[int], None] | None = None) -> int:
        """Removes dead letters with their copies, for ever; how many. What was redriven and is not done yet stays.

        In steps of at most 1,000, each a transaction; after each one `told` hears how many are gone so far. Repeated
        after a failure it goes on.
        """
        selection = selection_wire(of, self._config.namespace)
        purged, after_id = 0, 0
        while True:
            request = wire.PurgeDeadLettersRequest(selection=selection, after_id=after_id, max=STEP_MAX)
            answer = self._call(lambda link: link.admin.PurgeDeadLetters, request)
            purged += answer.purged
            if told is not None:
                told(purged)
            if not answer.HasField("next_after_id"):
                return purged
            after_id = answer.next_after_id


def selection_wire(of: str | DeadLetterSelection, namespace: str) -> wire.DeadLetterSelection:
    selection = DeadLetterSelection.of(of)
    written = wire.DeadLetterSelection(
        group=convert.resource(selection.group, namespace),
        topic=None if selection.topic is None else convert.resource(selection.topic, namespace),
        where=selection.where,
        ids=selection.ids,
        redriven_too=selection.redriven_too,
    )
    _set_time(written.dead_from, selection.dead_from)
    _set_time(written.dead_until, selection.dead_until)
    return written


def _set_time(written: Any, moment: datetime | None) -> None:
    if moment is not None:
        written.FromDatetime(moment.astimezone(UTC))
