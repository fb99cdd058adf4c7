"""A worker that hangs, stopped or with an event loop that is busy for ever, is noticed, killed and replaced."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from popserver.config import Config
from popserver.front.sockets import listening_sockets
from popserver.model.errors import CannotListen
from popserver.serve import slots
from popserver.serve.order import ASK
from popserver.serve.ports import BoundPort
from popserver.serve.slots import Worker, open_slots
from tests.support.raw_client import raw_client
from tests.support.waiting import eventually
from tests.support.workers import workers

# Blocks the event loop at SIGUSR2, as an endless loop of Python would.
_BLOCKS = "import signal, time\nsignal.signal(signal.SIGUSR2, lambda *_: time.sleep(600))\n"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "ASK_S", 0.2)
    monkeypatch.setattr(slots, "LAST_WORDS_S", 0.2)


@pytest.fixture
def blocks_at_a_signal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_BLOCKS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("quick", "blocks_at_a_signal")
class TestOneWorker:
    async def test_which_serves_answers(self, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[bytes] = []
        write = Worker._write

        def written(worker: Worker, line: bytes) -> None:
            asked.append(line)
            write(worker, line)

        monkeypatch.setattr(Worker, "_write", written)
        async with _ready(postgres_url) as worker:

            async def is_asked_often() -> bool:
                return asked.count(ASK) > slots.UNANSWERED_MAX + 1

            await eventually(is_asked_often, "questions to it", within_s=60)
            assert await worker.stop()

    async def test_which_is_stopped_is_killed(self, postgres_url: str) -> None:
        async with _ready(postgres_url) as worker:
            os.kill(worker.pid, signal.SIGSTOP)
            assert "its event loop did not answer for 1 s, and it was killed" in await worker.ended()

    async def test_which_is_busy_for_ever_says_where(
        self, postgres_url: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        async with _ready(postgres_url) as worker:
            os.kill(worker.pid, signal.SIGUSR2)
            assert "did not answer" in await worker.ended()
        said = capfd.readouterr().err
        assert "Fatal Python error: Aborted" in said
        assert "sitecustomize.py" in said


@pytest.mark.timeout(300)
async def test_another_worker_takes_its_place(postgres_url: str) -> None:
    async with workers(postgres_url, 2, "--tls", "plaintext") as server:
        hung, number = next(iter(server.running().items()))
        os.kill(hung, signal.SIGSTOP)
        said = await server.logged("worker ended")
        assert (said["pid"], said["worker"]) == (hung, number)
        assert "did not answer for 20 s" in said["reason"]
        await server.logged("worker ready", 3)
        assert sorted(server.running().values()) == [1, 2]
        async with raw_client(server.endpoint) as client:
            await client.route()
        assert await server.stop() == 0


def test_a_port_that_was_taken_meanwhile_is_refused() -> None:
    bound = BoundPort("--port", "127.0.0.1", listening_sockets("127.0.0.1", 0))
    bound.close()
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", bound.number))
        with pytest.raises(CannotListen, match=f"cannot listen on {bound.address}: .* choose another port with --port"):
            bound.open()


@asynccontextmanager
async def _ready(database_url: str) -> AsyncIterator[Worker]:
    settings: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "database_url": database_url, "tls": "plaintext"}
    places = open_slots(Config(**settings, http="off", workers=2))
    worker = await Worker.spawn(places[0].order({**settings, "port": places[0].port, "workers": 2}, upgrades=True))
    for slot in places:
        slot.close_ports()
    try:
        await worker.ready(None)
        yield worker
    finally:
        worker._signal(signal.SIGKILL)
        await worker.ended()
