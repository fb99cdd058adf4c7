"""What a topic holds, for tests of what Spark has sent to it."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

from popclient import MessageView
from popclient.admin import Admin


def stored(endpoint: str, topic: str) -> list[MessageView]:
    """Every message of a topic, queue by queue, in the order of their offsets."""
    found: list[MessageView] = []
    with Admin(endpoint) as admin:
        for queue in admin.get_topic(topic).queues:
            offset = 0
            while page := admin.peek_messages(topic, queue_id=queue.id, from_offset=offset, max_messages=1_000):
                found += page
                offset = page[-1].queue_offset + 1
    return found


def bodies(endpoint: str, topic: str) -> Counter[str]:
    return Counter(message.text for message in stored(endpoint, topic))


def forget_last_commit(checkpoint: Path) -> int:
    """Makes the query believe that its last batch was not finished; its number."""
    last = max(int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdecimal())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    return last


def forget_all_commits(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint / "commits")
