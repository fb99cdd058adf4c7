"""The places of workers: each has its sockets, and one worker after the other listens on them.

The supervisor keeps the sockets open while workers come and go. So a connection that waits to be accepted waits for
the next worker of its slot, and is not reset.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog

from popserver.config import OFF, Config
from popserver.front.sockets import GivenSockets, listening_sockets
from popserver.serve.order import ASK, LEAVE, Order, Report
from popserver.serve.rules import STEADY_S, Restarts
from popserver.serve.settings import REFUSED
from popserver.transport.listen import address_of, cannot_listen, cannot_listen_for_http, split_address

BACKLOG = 1_024
STOP_S = 15.0  # for what a worker does after its drain
# A worker is asked for a sign of life each ASK_S; one that has let so many of these pass without an answer is hung.
ASK_S = 5.0
UNANSWERED_MAX = 4
LAST_WORDS_S = 1.0  # for a hung worker to print what its threads are doing

log = structlog.get_logger("popserver.workers")


class WorkerFailed(Exception):
    """A worker ended before it was ready; with a sentence that says why, and the exit code."""

    def __init__(self, sentence: str, exit_code: int = REFUSED) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


class Worker:
    """One worker's process."""

    def __init__(self, number: int, process: Process) -> None:
        self.number = number
        self.report = Report()
        self._process = process
        self._ready_s = asyncio.get_running_loop().time()
        self._asking: asyncio.Task[None] | None = None
        self._hung = ""

    @classmethod
    async def spawn(cls, order: Order) -> Worker:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "popserver.serve.worker", str(order.worker)),
            stdin=PIPE,
            stdout=PIPE,
            pass_fds=[number for each in order.sockets.values() for number in each],
            # The supervisor alone answers to systemd, and to the keys of a terminal.
            env={name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"},
            process_group=0,
        )
        worker = cls(order.worker, process)
        worker._write(order.line())
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def served_s(self) -> float:
        """How long it has been ready."""
        return asyncio.get_running_loop().time() - self._ready_s

    async def ready(self) -> None:
        """Wait until it serves. Raises `WorkerFailed` if it ends instead."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"worker {self.number} ended before it was ready: {await self.ended()}")
        self.report = Report.read(line)
        if self.report.refusal:
            await self.ended()
            raise WorkerFailed(self.report.refusal, self.report.exit_code)
        self._ready_s = asyncio.get_running_loop().time()
        self._asking = asyncio.create_task(self._ask())

    async def ended(self) -> str:
        """Wait for its end. Returns how it ended."""
        code = await self._process.wait()
        self._ask_no_more()
        if self._hung:
            return self._hung
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def leave(self) -> None:
        """Let it accept no more connections: its successor does."""
        self._write(LEAVE)

    def end(self) -> None:
        """Let it finish its calls and end."""
        self._ask_no_more()
        self._signal(signal.SIGTERM)

    async def stop(self) -> bool:
        """Let it finish its calls and end. Returns whether it did so in time; otherwise it is killed."""
        self.end()
        try:
            await asyncio.wait_for(self._process.wait(), self.report.drain_s + STOP_S)
        except TimeoutError:
            log.error("a worker does not stop; it is killed", worker=self.number, pid=self.pid)
            self._signal(signal.SIGKILL)
            await self._process.wait()
            return False
        return True

    async def _ask(self) -> None:
        """Ask whether its event loop runs, again and again, and kill it if it does not.

        What passes without an answer is counted, not measured: if the supervisor was stopped too, it counts once.
        """
        assert self._process.stdout is not None
        unanswered = 0
        while unanswered < UNANSWERED_MAX:
            if not unanswered:
                self._write(ASK)
            try:
                async with asyncio.timeout(ASK_S):
                    if not await self._process.stdout.readline():
                        return  # it has ended
            except TimeoutError:
                unanswered += 1
            else:
                unanswered = 0
                await asyncio.sleep(ASK_S)
        self._hung = f"its event loop did not answer for {UNANSWERED_MAX * ASK_S:.0f} s, and it was killed"
        self._signal(signal.SIGABRT)
        await asyncio.sleep(LAST_WORDS_S)  # a process that is stopped does not heed that signal
        self._signal(signal.SIGKILL)

    def _ask_no_more(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)  # a few hundred bytes fit into the pipe; a process that is gone does not matter


class Slot:
    """The place of one worker."""

    def __init__(self, number: int, sockets: GivenSockets, places: Mapping[str, str]) -> None:
        """`sockets`: of clients on the port that all slots share, others on ports of this slot.

        `places`: the settings that name those ports.
        """
        self.number = number
        self.worker: Worker | None = None  # the one that serves
        self.restarts = Restarts()
        self.restarting: asyncio.Task[None] | None = None
        self._sockets = sockets
        self._places = places

    @property
    def keeps_failing(self) -> bool:
        is_steady = self.worker is not None and self.worker.served_s >= STEADY_S
        return self.restarts.has_given_up and not is_steady

    def close_port(self) -> None:
        """Leave connections of the shared port to the other slots."""
        for each in self._sockets.clients:
            each.close()
        self._sockets = self._sockets._replace(clients=())

    def order(self, settings: Mapping[str, Any], open_port: Callable[[], Sequence[socket.socket]]) -> Order:
        """What the next worker needs. Raises as `open_port` does, if the port was closed and cannot be opened again."""
        if not self._sockets.clients:
            self._sockets = self._sockets._replace(clients=open_port())
        numbers = {name: [each.fileno() for each in sockets] for name, sockets in self._sockets._asdict().items()}
        return Order(self.number, {**settings, **self._places}, numbers)

    @property
    def port(self) -> int:
        """The port that all slots share."""
        port: int = self._sockets.clients[0].getsockname()[1]
        return port


def open_slots(config: Config) -> list[Slot]:
    """Bind all addresses of all workers. Raises `CannotListen`."""
    clients = list(_shared_ports(config.host, config.port, config.workers))
    return [_slot(config, number, shared) for number, shared in enumerate(clients, 1)]


def open_shared_port(host: str, port: int) -> list[socket.socket]:
    """Sockets for one more slot on the port for clients. Raises `CannotListen`."""
    try:
        return listening_sockets(host, port, is_shared=True)
    except OSError:
        raise cannot_listen(host, port, "--port") from None


def _slot(config: Config, number: int, clients: Sequence[socket.socket]) -> Slot:
    sockets = GivenSockets(clients, _admin_port(config.admin, number), _http_port(config, number))
    places = {"http": _address(config.http, sockets.http) or OFF, "admin": _address(config.admin, sockets.admin)}
    return Slot(number, sockets, places)


def _shared_ports(host: str, port: int, count: int) -> Iterator[list[socket.socket]]:
    """The sockets of each slot on the port for clients, where the system spreads connections over the slots."""
    try:
        if port:
            # Another program of this user that shares its port too would get some of the connections.
            for probe in listening_sockets(host, port):
                probe.close()
        for _ in range(count):
            sockets = open_shared_port(host, port)
            port = sockets[0].getsockname()[1]
            for each in sockets:
                each.listen(BACKLOG)
            yield sockets
    except OSError:
        raise cannot_listen(host, port, "--port") from None


def _admin_port(address: str, number: int) -> Sequence[socket.socket]:
    """Worker 1 has the port of the address, worker 2 the next one; with port 0 each has a free one."""
    if not address:
        return ()
    host, port = _place(address, number)
    try:
        return listening_sockets(host, port)
    except OSError:
        raise cannot_listen(host, port, "--admin") from None


def _http_port(config: Config, number: int) -> Sequence[socket.socket]:
    if config.http == OFF:
        return ()
    host, port = _place(config.http, number)
    try:
        return listening_sockets(host, port)
    except OSError as error:
        refusal = cannot_listen_for_http(host, port, error)
        if "http" in config.model_fields_set:
            raise refusal from None
        log.warning("no metrics, health and console over HTTP", worker=number, reason=refusal.sentence)
        return ()


def _place(address: str, number: int) -> tuple[str, int]:
    host, port = split_address(address, port_min=0)
    return host, port + number - 1 if port else 0


def _address(written: str, sockets: Sequence[socket.socket]) -> str:
    """The address as it was written, with the port of these sockets; empty if there are none."""
    return address_of(split_address(written, port_min=0)[0], sockets[0].getsockname()[1]) if sockets else ""
