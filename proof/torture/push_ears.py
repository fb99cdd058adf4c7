"""What a push consumer of popclient says: what it receives, when its listener is called, and what it acks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from popclient import ConsumeResult, Interceptor, MessageView, PopError
from proof.torture.program_lines import Lines
from tests.support.workload import digest

WORK_S = 0.005  # of the listener, so that kills meet it


class Ear(Interceptor):
    """A listener and an interceptor. The hold of a push consumer ends when its stream breaks, so it promises none."""

    def __init__(self, lines: Lines, name: str, *, says_client: bool = False) -> None:
        self._lines = lines
        self._name = name
        self._client_of = {"client": name} if says_client else {}
        self._receives: deque[int] = deque()  # polls that wait; the oldest counts as the one that ends first
        self._acks: dict[str, int] = {}

    def listen(self, message: MessageView) -> ConsumeResult:
        number = self._lines.begin("Consume", message_id=message.message_id, client=self._name)
        time.sleep(WORK_S)
        self._lines.end(number)
        return ConsumeResult.SUCCESS

    def before_receive(self, _topic: str, /) -> None:
        self._receives.append(self._lines.begin("Receive", held_ms=0.0, may_hide=False, **self._client_of))

    def after_receive(self, _topic: str, messages: Sequence[MessageView], error: PopError | None, /) -> None:
        number = self._receives.popleft()
        if error is not None:
            self._lines.end(number, error=repr(error)[:200])
            return
        deliveries = [
            {
                "message_id": each.message_id,
                "digest": digest(each.body, dict(each.properties)),
                "attempt": each.delivery_attempt,
                "handle": each.receipt_handle,
            }
            for each in messages
        ]
        self._lines.end(number, deliveries=deliveries)

    def before_ack(self, message: MessageView, /) -> None:
        handle = message.receipt_handle
        self._acks[handle] = self._lines.begin("Ack", message_id=message.message_id, handle=handle)

    def after_ack(self, message: MessageView, error: PopError | None, /) -> None:
        number = self._acks.pop(message.receipt_handle)
        self._lines.end(number, **({} if error is None else {"error": repr(error)[:200]}))
