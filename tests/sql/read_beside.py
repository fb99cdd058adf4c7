"""Sends to an embedded broker and reads its file by Python's own SQLite, in one process.

Run it with: python -m tests.sql.read_beside FILE
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

import popclient
import popserver

MESSAGES = 50


def main(file: str) -> None:
    with (
        popserver.embedded(file) as broker,
        popclient.Producer(broker.endpoint, topics=["orders"]) as producer,
    ):
        for number in range(MESSAGES):
            with closing(sqlite3.connect(file)) as connection:
                producer.send(popclient.Message("orders", b"body"))
                stored = connection.execute("SELECT count(*) FROM message").fetchone()
                assert stored == (number + 1,), f"{stored[0]} messages are seen of {number + 1} that were acknowledged"


if __name__ == "__main__":
    main(sys.argv[1])
