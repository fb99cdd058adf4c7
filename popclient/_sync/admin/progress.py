# Made by scripts/unasync.py from popclient/aio/admin/progress.py. Do not edit.
"""A group's progress: shown for each queue, moved, given to another group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Literal

from popclient._session import convert
from popclient._sync.admin.calls import Calls
from popclient.admin.answers import facts_of
from popclient.admin.facts import MovedOffset, QueueLag, SkippedMessage
from popclient.admin.redrive_facts import ImportedDeath
from popclient.errors import PopError, error_of
from popclient.message import MessageView
from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb


class Progress(Calls):
    """The calls about groups' progress."""

    def list_lag(self, group: str, topic: str | None = None) -> list[QueueLag]:
        """The queues in which the group has progress, by topic and number. Servers limit the list of several topics."""
        request = wire.ListLagRequest(group=self._named(group), topic=self._named(topic))
        answer = self._call(lambda link: link.admin.ListLag, request)
        return [facts_of(QueueLag, each) for each in answer.queues]

    def reset_offsets(
        self,
        group: str,
        topic: str,
        to: Literal["BEGINNING", "END"] | datetime | int,
        *,
        queue_id: int | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> list[MovedOffset]:
        """Moves a group to another offset, in one queue or in all of the topic; its members that are online follow.

        to: an end, the first message stored at a moment or later (without a time zone: this machine's), or the offset
        of the queue named. From there on every message is READY, in any state it had before; messages before it are
        done. Earlier handles are no longer valid. With `dry_run` nothing changes.
        Raises IllegalOffset for an offset beyond the queue's ends, BadRequest for a queue that is not there, and for a
        topic that the group has not read; with `force` it begins there.
        """
        request = wire.ResetOffsetsRequest(
            group=self._named(group), topic=self._named(topic), queue_id=queue_id, dry_run=dry_run, force=force
        )
        if isinstance(to, datetime):
            request.timestamp.FromDatetime(to.astimezone(UTC))
        elif isinstance(to, int):
            request.offset = to
        else:
            request.policy = pb.QueryOffsetPolicy.Value(to)
        answer = self._call(lambda link: link.admin.ResetOffsets, request)
        return [facts_of(MovedOffset, each) for each in answer.moved]

    def skip_message(
        self, group: str, message_id: str, topic: str | None = None, *, force: bool = False
    ) -> SkippedMessage:
        """Marks one message as consumed by the group without delivering it; messages behind it go on.

        Raises BadRequest, which says why and what to do, if the message is held, is done already, or is not the next
        one that the group would read. With `force` a held message is skipped too: its hold ends, no attempt counts, and
        an ack of its former holder is refused with InvalidReceiptHandle.
        """
        request = wire.SkipMessageRequest(
            group=self._named(group), topic=self._named(topic), message_id=message_id, force=force
        )
        answer = self._call(lambda link: link.admin.SkipMessage, request)
        return facts_of(SkippedMessage, answer)

    def pause_group(self, group: str, *, topic: str | None = None, message_group: str | None = None) -> None:
        """Stops the deliveries to a group, in one topic or in all, of all messages or of one message group.

        It lasts until `resume_group`, also over restarts. Messages that are held stay held and can be acked. Consumers
        stay connected: their receives wait. What a `QueuePushConsumer` or a `PullConsumer` has pulled already is still
        consumed. With a message group and no topic: in each topic that the group consumes now. Raises BadRequest for a
        message group of a group that consumes whole queues, or of a topic that the group has not received from.
        """
        request = wire.PauseGroupRequest(
            group=self._named(group), topic=self._named(topic), message_group=message_group
        )
        self._call(lambda link: link.admin.PauseGroup, request)

    def resume_group(self, group: str, *, topic: str | None = None, message_group: str | None = None) -> None:
        """Ends the pause that was begun with the same arguments; other pauses of the group stay."""
        request = wire.ResumeGroupRequest(
            group=self._named(group), topic=self._named(topic), message_group=message_group
        )
        self._call(lambda link: link.admin.ResumeGroup, request)

    def clone_offsets(self, source: str, group: str, topic: str | None = None) -> list[MovedOffset]:
        """Starts a group at the progress of another one, in one topic or in all of its topics.

        It begins in each queue at the first message that the source has not finished: later ones that the source has
        acked may repeat, and none is lost. Raises BadRequest if the group has progress in the topic already.
        """
        request = wire.CloneOffsetsRequest(
            source=self._named(source), group=self._named(group), topic=self._named(topic)
        )
        answer = self._call(lambda link: link.admin.CloneOffsets, request)
        return [facts_of(MovedOffset, each) for each in answer.moved]

    def import_offsets(self, group: str, offsets: Mapping[str, Mapping[int, int]]) -> list[MovedOffset]:
        """Sets the group's progress to given offsets: for each topic and queue id, the next offset to consume.

        All of them, or none. Raises BadRequest for a group of mode POP, IllegalOffset beyond a queue's ends.
        """
        request = wire.ImportOffsetsRequest(group=self._named(group))
        for topic, of_topic in offsets.items():
            for queue_id, offset in of_topic.items():
                request.offsets.add(topic=self._named(topic), queue_id=queue_id, to_offset=offset)
        answer = self._call(lambda link: link.admin.ImportOffsets, request)
        return [facts_of(MovedOffset, each) for each in answer.moved]

    def import_messages(
        self, group: str, topic: str, messages: Iterable[MessageView | ImportedDeath], *, failures: bool = True
    ) -> list[bool | PopError]:
        """Stores messages of another server for one group alone, at most 1,000: messages that the group has not done
        there, and its dead letters. The group and the topic must exist.

        failures: whether the attempts at the other server count. Returns for each message whether it was stored before,
        or why it is refused; a message id is stored once, as long as retention keeps the message. Raises a PopError if
        nothing was stored.
        """
        named = self._named(topic)
        request = wire.ImportMessagesRequest(group=self._named(group), topic=named)
        for each in messages:
            view = each.message if isinstance(each, ImportedDeath) else each
            given = request.messages.add(message=convert.as_sent(view, named))
            if isinstance(each, ImportedDeath):
                given.delivery_attempt = each.delivery_attempt
                given.death.reason = each.reason
                if each.dead_at is not None:
                    given.death.dead_at.FromDatetime(each.dead_at)
            elif failures:
                given.delivery_attempt = view.delivery_attempt
        answer = self._call(lambda link: link.admin.ImportMessages, request)
        return [each.is_repeated if each.status.code == pb.OK else error_of(each.status) for each in answer.results]
