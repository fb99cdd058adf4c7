"""The results of sent messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple, overload

from popclient.errors import MultipleResults, PopError
from popclient.message import Message


class SendReceipt(NamedTuple):
    """The server has stored the message.

    `offset` is that in the queue `queue_id`. A half message or a delayed one is in no queue yet: its `queue_id` is None
    and its `offset` 0. Servers other than PopMQ report neither `queue_id` nor `delivery_timestamp`, which is the time
    from which a delayed message is delivered, by the server's clock. `transaction_id` is empty unless it is a half
    message, `recall_handle` unless it is a delayed one.
    """

    message_id: str
    offset: int
    transaction_id: str = ""
    recall_handle: str = ""
    queue_id: int | None = None
    delivery_timestamp: datetime | None = None


class SendResults(Sequence[SendReceipt | PopError]):
    """The outcome of each message of `send_many`, in the order given: its receipt, or its error."""

    def __init__(self, messages: Sequence[Message], outcomes: Sequence[SendReceipt | PopError]) -> None:
        self._messages = messages
        self._outcomes = outcomes

    @overload
    def __getitem__(self, index: int) -> SendReceipt | PopError: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SendReceipt | PopError]: ...
    def __getitem__(self, index: int | slice) -> SendReceipt | PopError | Sequence[SendReceipt | PopError]:
        return self._outcomes[index]

    def __len__(self) -> int:
        return len(self._outcomes)

    def __iter__(self) -> Iterator[SendReceipt | PopError]:
        return iter(self._outcomes)

    @property
    def receipts(self) -> list[SendReceipt]:
        """Of the messages that were stored."""
        return [outcome for outcome in self._outcomes if isinstance(outcome, SendReceipt)]

    @property
    def failures(self) -> list[tuple[Message, PopError]]:
        """The messages that were not stored, each with its error."""
        both = zip(self._messages, self._outcomes, strict=True)
        return [(message, outcome) for message, outcome in both if isinstance(outcome, PopError)]

    @property
    def ok(self) -> bool:
        """Were all messages stored?"""
        return not self.failures

    def raise_for_failures(self) -> SendResults:
        """Returns itself if all were stored; raises MultipleResults with the failures otherwise."""
        if failures := self.failures:
            raise MultipleResults(
                f"{len(failures)} of {len(self)} messages were not stored; the first: {failures[0][1]}",
                failures=failures,
            )
        return self

    def __repr__(self) -> str:
        return f"<SendResults stored={len(self.receipts)} failed={len(self.failures)}>"
