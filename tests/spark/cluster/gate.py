"""Holds tasks of a cluster in the middle of their batch, until the test has killed what it wants."""

from __future__ import annotations

import queue
import socketserver
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from types import TracebackType


class Visit(NamedTuple):
    """A task that waits. batch: its number. executor: the process id of its JVM."""

    batch: int
    executor: int


class Gate:
    """Listens on 127.0.0.1:`port`. Tasks of the batches up to `open_to` pass at once."""

    def __init__(self) -> None:
        self._visits: queue.Queue[Visit] = queue.Queue()
        self._changed = threading.Condition()
        self._open_to = -1
        gate = self

        class Waiting(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                visit = Visit(*map(int, self.rfile.readline().split()))
                gate._wait(visit)
                self.wfile.write(b"go\n")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Waiting)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]

    def __enter__(self) -> Gate:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open()
        self._server.shutdown()
        self._server.server_close()

    def next(self, timeout_s: float = 900) -> Visit:
        """The next task that waits, of a batch that is not open."""
        while (visit := self._visits.get(timeout=timeout_s)).batch <= self._open_to:
            pass
        return visit

    def open(self, to: int = 1_000_000) -> None:
        """From now on tasks of batches up to this one pass."""
        with self._changed:
            self._open_to = to
            self._changed.notify_all()

    def _wait(self, visit: Visit) -> None:
        with self._changed:
            if visit.batch > self._open_to:
                self._visits.put(visit)
            self._changed.wait_for(lambda: visit.batch <= self._open_to, timeout=1_800)


def gated(port: int, batch: int, after: int) -> Any:
    """A function for the rows of a partition, which waits at the gate after so many of them.

    It refers to nothing of this module, because executors do not have it: Spark's pickler sends it by value.
    """

    def wait_there(rows: Iterable[Any]) -> Iterator[Any]:
        import os
        import socket
        from pathlib import Path

        for number, row in enumerate(rows):
            if number == after:
                # This process was forked by PySpark's daemon, which is a child of the executor.
                executor = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
                with socket.create_connection(("127.0.0.1", port)) as gate:
                    gate.sendall(f"{batch} {executor}\n".encode())
                    gate.recv(3)
            yield row

    return wait_there
