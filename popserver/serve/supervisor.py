"""`popmq serve --workers N`: starts, watches, restarts, replaces and stops N servers that share one port.

The supervisor serves nothing itself. It holds the sockets (`slots`), and each worker is a process of its own. See
docs/design/0022-workers.md.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog

from popserver import logs
from popserver.config import OFF, Config
from popserver.front.sockets import notify_supervisor
from popserver.model.errors import CannotListen
from popserver.serve.process import Facts, announce, announce_drain, monotonic_us, since_ms, words_of
from popserver.serve.rules import FAILURES_MAX
from popserver.serve.settings import OK, REFUSED, USAGE, WrongSettings, given_settings, load_config
from popserver.serve.slots import START_S, Slot, Worker, WorkerFailed, more_slots, open_slots

# Connections that an old worker has just accepted become calls in this time, before it gets SIGTERM.
LEAVE_S = 1.0

log = structlog.get_logger("popserver.workers")


def supervise(config: Config, arguments: argparse.Namespace, started: float, *, as_json: bool) -> int:
    """Run all workers until a signal stops this process. Returns the exit code."""
    logs.configure(config.log_level, config.log_format)
    try:
        slots = open_slots(config)
    except CannotListen as refusal:
        logs.write(sys.stderr, f"popmq: {refusal.sentence}\n")
        return REFUSED
    # What the sockets decide counts before the environment and popmq.toml, which workers read anew at each start.
    bound = {"host": config.host, "port": slots[0].port}
    settings = {**given_settings(vars(arguments)), **bound}
    return asyncio.run(Supervisor(config.model_copy(update=bound), slots, settings, started, as_json=as_json).run())


class Supervisor:
    """The workers of one `popmq serve`."""

    def __init__(
        self, config: Config, slots: Sequence[Slot], settings: Mapping[str, Any], started: float, *, as_json: bool
    ) -> None:
        """`settings`: those that count before the environment and popmq.toml."""
        self._config = config
        self._slots = slots
        self._settings = settings
        self._started = started
        self._as_json = as_json
        self._words = ""  # the ready line
        self._alive: dict[Worker, asyncio.Task[None]] = {}  # all workers that run, each with the task that watches it
        self._given_up: asyncio.Future[WorkerFailed]
        self._stopping = asyncio.Event()
        self._hands_over = False  # the workers serve on before they stop, until clients have gone to other servers
        self._reloading = asyncio.Event()

    async def run(self) -> int:
        self._given_up = asyncio.get_running_loop().create_future()
        self._take_signals()
        serving = asyncio.create_task(self._serve())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            return await self._stop(serving)
        failed = serving.result()
        logs.write(sys.stderr, f"popmq: {failed}\n")
        await self._stop(stopping)
        return failed.exit_code

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._end)
        loop.add_signal_handler(signal.SIGUSR1, self._hand_over)
        # A terminal that is closed ends what it has started.
        hangs_up = self._end if sys.stdin is not None and sys.stdin.isatty() else self._reloading.set
        loop.add_signal_handler(signal.SIGHUP, hangs_up)

    def _end(self) -> None:
        if self._hands_over:
            for worker in self._alive:
                worker.end()
        self._stopping.set()

    def _hand_over(self) -> None:
        if not self._stopping.is_set():
            self._hands_over = True
            self._stopping.set()

    async def _serve(self) -> WorkerFailed:
        """Start all workers, then reload whenever asked to. Returns only if they fail, and why."""
        first, *others = self._slots
        try:
            # Alone, because it may upgrade the schema, which takes as long as it needs, or say why none can start.
            self._adopt(first, await self._started_for(first, upgrades=True, within_s=None))
            await asyncio.gather(*map(self._start, others))
        except Exception as error:  # noqa: BLE001 - whatever it is, all workers are stopped
            return error if isinstance(error, WorkerFailed) else WorkerFailed(_reason(error))
        self._announce()
        reloads = asyncio.create_task(self._reload_when_asked())
        try:
            return await self._given_up
        finally:
            reloads.cancel()
            with suppress(asyncio.CancelledError):
                await reloads

    def _announce(self) -> None:
        facts = self._facts()
        self._words = announce(facts, as_json=self._as_json)
        notify_supervisor(f"READY=1\nSTATUS={self._words}")

    def _facts(self) -> Facts:
        workers = [slot.worker.report.facts for slot in self._slots if slot.worker is not None]
        facts: dict[str, Any] = {**workers[0], "workers": len(workers), "ready_after_ms": since_ms(self._started)}
        for name in ("http", "admin"):
            if name in facts:
                facts[name] = ",".join(dict.fromkeys(_addresses(workers, name))) or OFF
        return facts

    # One worker.

    async def _start(self, slot: Slot) -> None:
        self._adopt(slot, await self._started_for(slot))

    async def _started_for(
        self, slot: Slot, *, count: int = 0, upgrades: bool = False, within_s: float | None = START_S
    ) -> Worker:
        """A new worker for this slot, which is ready. `count`: how many workers there will be; 0: as many as now.

        Raises `WorkerFailed`.
        """
        settings = {**self._settings, "workers": count or len(self._slots)}
        try:
            worker = await Worker.spawn(slot.order(settings, upgrades=upgrades))
        except CannotListen as refusal:
            raise WorkerFailed(f"worker {slot.number} {refusal.sentence}") from None
        except OSError as error:
            raise WorkerFailed(f"worker {slot.number} cannot be started ({error})") from None
        self._alive[worker] = asyncio.create_task(self._watch(slot, worker))
        try:
            await worker.ready(within_s)
        except asyncio.CancelledError:
            worker.end()
            raise
        log.info("worker ready", worker=slot.number, pid=worker.pid)
        return worker

    def _adopt(self, slot: Slot, worker: Worker) -> None:
        """From now on the worker is the one of the slot."""
        if slot.restarting is not None and slot.restarting is not asyncio.current_task():
            slot.restarting.cancel()
        slot.restarting = None
        slot.worker = worker
        if worker not in self._alive:
            self._restart(slot, worker, "it ended at once")

    async def _watch(self, slot: Slot, worker: Worker) -> None:
        how = await worker.ended()
        del self._alive[worker]
        if slot.worker is worker and not self._stopping.is_set():
            self._restart(slot, worker, how)

    def _restart(self, slot: Slot, worker: Worker, how: str) -> None:
        pause_s = slot.restarts.ended(worker.served_s)
        slot.worker = None
        log.warning("worker ended", worker=slot.number, pid=worker.pid, reason=how, next_in_s=pause_s)
        self._judge(f"worker {slot.number}: {how}")
        slot.restarting = asyncio.create_task(self._keep_starting(slot, pause_s))

    async def _keep_starting(self, slot: Slot, pause_s: float) -> None:
        while True:
            if pause_s:
                slot.close_ports()
                await asyncio.sleep(pause_s)
            try:
                await self._start(slot)
            except Exception as error:  # noqa: BLE001 - a mistake here must not leave the slot without a worker
                pause_s = slot.restarts.ended(0.0)
                reason = _reason(error)
                log.error("worker cannot start", worker=slot.number, reason=reason, next_in_s=pause_s)
                self._judge(reason)
            else:
                return

    def _judge(self, reason: str) -> None:
        """Give up when no worker stays: a supervisor of this process, or an operator, has to act."""
        if all(slot.keeps_failing for slot in self._slots) and not self._given_up.done():
            sentence = f"the workers keep ending, each {FAILURES_MAX} times or more; the last reason was: {reason}"
            self._given_up.set_result(WorkerFailed(f"{sentence}; the log has the others"))

    # All workers.

    async def _reload_when_asked(self) -> None:
        while True:
            await self._reloading.wait()
            self._reloading.clear()
            notify_supervisor(f"RELOADING=1\nMONOTONIC_USEC={monotonic_us()}")
            log.info("reloading")
            try:
                await self._reload()
            except Exception as error:  # noqa: BLE001 - the next reload must be heard
                log.error("not reloaded: the workers that run stay as they are", reason=_reason(error))
            else:
                self._words = words_of(self._facts())
                log.info("reloaded", workers=len(self._slots))
            notify_supervisor(f"READY=1\nSTATUS={self._words}")

    async def _reload(self) -> None:
        """Replace all workers: when every new one is ready, the old ones leave, one after the other.

        So a setting that is wrong replaces none, and clients of old workers are spread over new ones only. A slot
        whose worker is being started again gets a successor too, because that worker may have read old settings. The
        number of workers is read anew as well: there are more slots then, or the last ones end.
        """
        count = self._wanted_count()
        kept, ending = self._slots[:count], self._slots[count:]
        added = self._more_slots(count)
        successors: dict[Slot, Worker] = {}
        try:
            for slot in (*kept, *added):
                successors[slot] = await self._started_for(slot, count=count)
        except Exception:
            await _retire(list(successors.values()))
            for slot in added:
                slot.close_ports()
            raise
        old = [slot.worker for slot in kept if slot.worker is not None]
        old += [worker for slot in ending if (worker := slot.end()) is not None]
        self._slots = [*kept, *added]
        for slot, successor in successors.items():
            slot.restarts.failures = 0
            self._adopt(slot, successor)
        await _retire(old)

    def _wanted_count(self) -> int:
        """The number of workers by the settings of now. Raises `WorkerFailed`."""
        try:
            return load_config(self._settings).workers
        except WrongSettings as wrong:
            raise WorkerFailed(str(wrong), USAGE) from None

    def _more_slots(self, count: int) -> list[Slot]:
        """Slots for as many workers in all. Raises `WorkerFailed`."""
        try:
            return more_slots(self._config.model_copy(update={"workers": count}), len(self._slots))
        except CannotListen as refusal:
            raise WorkerFailed(refusal.sentence) from None

    async def _stop(self, waiting: asyncio.Task[Any]) -> int:
        """Stop all workers at once. Returns 0 if all of them finished in time."""
        self._stopping.set()
        notify_supervisor("STOPPING=1")
        if self._words and not self._hands_over:
            announce_drain(as_json=self._as_json)
        restarting = [slot.restarting for slot in self._slots if slot.restarting is not None]
        for task in (waiting, *restarting):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        # Workers that hand over have these sockets too. Otherwise new connections are refused now, so clients try other
        # servers: our open sockets would let them wait in vain.
        for slot in self._slots:
            slot.close_ports()
        in_time = await asyncio.gather(*(worker.stop(hands_over=self._hands_over) for worker in list(self._alive)))
        await asyncio.gather(*self._alive.values())
        return OK if all(in_time) else REFUSED


async def _retire(workers: Sequence[Worker]) -> None:
    """End workers that others have replaced, one after the other, so that none breaks a call."""
    for worker in workers:
        worker.leave()
    await asyncio.sleep(LEAVE_S)
    for worker in workers:
        await worker.stop()


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, WorkerFailed) else "".join(traceback.format_exception(error))


def _addresses(workers: Sequence[Facts], name: str) -> list[str]:
    return [facts[name] for facts in workers if facts[name] != OFF]
