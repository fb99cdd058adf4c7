"""A server with flights in it that can be killed and started again, and what SQL says of them."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from popclient import Message, Producer
from popclient.admin import Admin
from tests.support.server_process import clean_environment, serve_command

QUEUES = 4


class Server:
    """`popmq serve` on a file of its own, on a port that it keeps."""

    def __init__(self, folder: Path) -> None:
        self.database = folder / "popmq.db"
        self._log = folder / "server.log"
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self.endpoint = ""

    def start(self) -> None:
        command = serve_command(f"sqlite:///{self.database}", "--port", str(self._port))
        with self._log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=clean_environment()
            )
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        assert "grpc=" in ready, self._log.read_text()
        self.endpoint = ready.partition("grpc=")[2].split()[0]
        self._port = int(self.endpoint.rpartition(":")[2])

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def ask(self, statement: str, *values: Any) -> Any:
        """One value from the database, which is only read."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as conn:
            return conn.execute(statement, values).fetchone()[0]

    def stored(self, topic: str) -> int:
        statement = "SELECT count(*) FROM message m JOIN topic t ON t.topic_id = m.topic_id WHERE t.name = ?"
        found: int = self.ask(statement, topic)
        return found

    def lag(self, group: str) -> int:
        found: int = self.ask("SELECT sum(ready) FROM group_lag WHERE consumer_group = ?", group)
        return found

    def fill(self, topic: str, count: int, first: int = 0, per_request: int = 50) -> None:
        """Flights `first` and so on, some in each queue."""
        with Admin(self.endpoint) as admin:
            if not first:
                admin.create_topic(topic, queue_count=QUEUES)
        with Producer(self.endpoint) as producer:
            for start in range(first, first + count, per_request):
                some = range(start, min(start + per_request, first + count))
                producer.send_many(Message(topic, f"flight {number}") for number in some).raise_for_failures()


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def kill_group(process: subprocess.Popen[Any]) -> None:
    """A driver with its JVM and workers, if anything of it still lives."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
