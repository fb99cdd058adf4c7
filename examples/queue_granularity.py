"""Whole queues, read from offsets: a day's takings, a crash, a second reading. Start a broker first: popmq serve

The till counts notes and commits its offset. It crashes with uncounted messages: the next till continues at the
committed offset, and counts nothing twice. The auditor reads the whole day again and commits nothing.
"""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from popclient import Message, MessageView, Producer, PullConsumer

FIRST = "CONSUME_FROM_FIRST_OFFSET"
endpoints = sys.argv[1] if len(sys.argv) > 1 else ""  # ROCKETMQ_ENDPOINTS, or 127.0.0.1:8081
opened = datetime.now(UTC)


def total(messages: Sequence[MessageView]) -> int:
    return sum(int(message.text) for message in messages)


with Producer(endpoints) as producer:
    producer.send_many([Message("takings", str(euros)) for euros in range(1, 101)])

counted: list[MessageView] = []
with PullConsumer(endpoints, "till", consume_from=FIRST) as till:
    till.assign("takings")
    while len(counted) < 50:
        counted += till.poll(timeout=5, max_messages=50 - len(counted))
    till.commit()
    lost = till.poll(timeout=5)
    print(f"the till crashes: {len(counted)} notes counted, more in hand: {lost != []}")

with PullConsumer(endpoints, "till", consume_from=FIRST) as till:
    till.assign("takings")
    while messages := till.poll(timeout=2):
        counted += messages
        till.commit()
print(f"another has gone on: {len(counted)} notes, {total(counted)} euros")

with PullConsumer(endpoints, "auditor") as auditor:
    auditor.assign("takings")
    auditor.seek_to_time(opened)
    seen: list[MessageView] = []
    while messages := auditor.poll(timeout=2):
        seen += messages
    print(f"the auditor agrees: {total(seen)}, and has committed nothing")
