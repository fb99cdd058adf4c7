"""The slots of workers: each has its sockets, and one worker after the other listens on them.

The supervisor keeps the sockets open while workers come and go. So a connection that waits to be accepted waits for
the next worker of its slot, and is not reset.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import structlog

from popserver.config import OFF, Config
from popserver.serve.order import ASK, LEAVE, Order, Report
from popserver.serve.ports import Ports, more_ports, open_ports
from popserver.serve.process import STOP_S
from popserver.serve.rules import STEADY_S, Restarts
from popserver.serve.settings import REFUSED

START_S = 60.0  # within which the successor of a worker has to be ready
KILL_S = STOP_S + 5.0  # after its drain: a worker that has not ended itself by then is killed
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
        assert process.stdout is not None
        self._reports = process.stdout
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

    async def ready(self, within_s: float | None) -> None:
        """Wait until it serves.

        Raises `WorkerFailed` if it ends instead, if it is not ready within these seconds (None: no limit), and if its
        report cannot be read. Then it is killed.
        """
        try:
            async with asyncio.timeout(within_s):
                line = await self._reports.readline()
            if not line:
                raise WorkerFailed(f"worker {self.number} ended before it was ready: {await self.ended()}")
            self.report = Report.read(line)
        except TimeoutError:
            await self._kill()
            raise WorkerFailed(
                f"worker {self.number} was not ready within {within_s:.0f} s, and was killed; see what it waits for in"
                " its log"
            ) from None
        except ValueError as error:
            await self._kill()
            raise WorkerFailed(
                f"worker {self.number} wrote something else than its report, and was killed ({error}); if another"
                " version of popmq was installed, stop the server and start it again"
            ) from None
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
        """Let it finish its calls and end; at once if it is not ready yet."""
        self._ask_no_more()
        self._signal(signal.SIGTERM)

    async def stop(self, *, hands_over: bool = False) -> bool:
        """Let it finish its calls and end. Returns whether it did so in time; otherwise it is killed.

        `hands_over`: it serves on before that, until its clients have gone to other servers.
        """
        if hands_over:
            self._signal(signal.SIGUSR1)
        else:
            self.end()
        within_s = self.report.handover_s * hands_over + self.report.drain_s + KILL_S
        try:
            code = await asyncio.wait_for(self._process.wait(), within_s)
        except TimeoutError:
            log.error("a worker does not stop; it is killed", worker=self.number, pid=self.pid)
            await self._kill()
            return False
        is_ready = bool(self.report.facts)  # A worker that refuses to start has no calls to finish.
        return code != REFUSED or not is_ready

    async def _ask(self) -> None:
        """Ask whether its event loop runs, again and again, and kill it if it does not.

        What passes without an answer is counted, not measured: if the supervisor was stopped too, it counts once.
        """
        unanswered = 0
        while unanswered < UNANSWERED_MAX:
            if not unanswered:
                self._write(ASK)
            try:
                async with asyncio.timeout(ASK_S):
                    if not await self._reports.readline():
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

    async def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)  # a few hundred bytes fit into the pipe; a process that is gone does not matter


class Slot:
    """The slot of one worker."""

    def __init__(self, number: int, ports: Ports) -> None:
        self.number = number
        self.worker: Worker | None = None  # the one that serves
        self.restarts = Restarts()
        self.restarting: asyncio.Task[None] | None = None
        self._ports = ports

    @property
    def keeps_failing(self) -> bool:
        is_steady = self.worker is not None and self.worker.served_s >= STEADY_S
        return self.restarts.has_given_up and not is_steady

    def end(self) -> Worker | None:
        """Start no more workers here. Returns the one that serves, which accepts connections until it leaves."""
        if self.restarting is not None:
            self.restarting.cancel()
        worker, self.worker, self.restarting = self.worker, None, None
        self.close_ports()
        return worker

    def close_ports(self) -> None:
        """Leave connections of the shared port to the other slots, and refuse those of the others."""
        for each in self._ports.values():
            each.close()

    def order(self, settings: Mapping[str, Any], *, upgrades: bool) -> Order:
        """What the next worker needs. Raises `CannotListen` if a port was closed and cannot be opened again."""
        bound = {
            "http": self._ports["http"].address if "http" in self._ports else OFF,
            "admin": self._ports["admin"].address if "admin" in self._ports else "",
        }
        sockets = {name: port.open() for name, port in self._ports.items()}
        return Order(self.number, {**settings, **bound}, sockets, upgrades)

    @property
    def port(self) -> int:
        """The port that all slots share."""
        return self._ports["clients"].number


def open_slots(config: Config) -> list[Slot]:
    """Bind all addresses of all workers. Raises `CannotListen`."""
    return [Slot(number, ports) for number, ports in enumerate(open_ports(config), 1)]


def more_slots(config: Config, have: int) -> list[Slot]:
    """Slots of further workers beside the `have` that there are. Raises `CannotListen`."""
    return [Slot(number, ports) for number, ports in enumerate(more_ports(config, have), have + 1)]
