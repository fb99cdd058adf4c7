"""The program of docs/frameworks/fastapi.md under uvicorn: its health, its start and its end."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from fastapi.testclient import TestClient

import popserver
from popclient import Producer
from popclient.admin import Admin
from popserver import EmbeddedBroker
from tests.frameworks.programs import Program
from tests.support.documentation_pages import ADDRESS, blocks
from tests.support.waiting import soon

PAGE = Path(__file__).parents[2] / "docs" / "frameworks" / "fastapi.md"
NO_SERVER = "127.0.0.1:1"


def write_program(folder: Path, endpoint: str) -> Path:
    """The page's program, in this folder."""
    program = blocks(PAGE)[1].text
    assert program.startswith("# shop.py")
    (folder / "shop.py").write_text(program.replace(ADDRESS, endpoint))
    return folder


@pytest.fixture
def folder(tmp_path: Path, stored: EmbeddedBroker) -> Path:
    return write_program(tmp_path, stored.endpoint)


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker that makes no topics and groups on first use, with those of the page."""
    with popserver.embedded(tmp_path / "strict.db", auto_create=False) as broker, Admin(broker.endpoint) as admin:
        admin.create_topic("orders")
        admin.create_group("kitchen")
        yield broker


class Shop(Program):
    """The application, on a free port."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        super().__init__(folder, "shop", ["uvicorn", "shop:app", "--port", "0"], endpoint)


def status(url: str, body: object = None) -> int:
    request = Request(url, None if body is None else json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except HTTPError as refused:
        return refused.code


def test_a_request_is_sent_and_consumed(folder: Path, stored: EmbeddedBroker) -> None:
    with Shop(folder, stored.endpoint) as shop:
        address = shop.uvicorn_address()
        assert status(f"{address}/orders", {"number": 1, "drink": "tea"}) == 202
        assert status(f"{address}/orders", {"number": 1}) == 422
        shop.until_it_says("order 1: tea")
        assert status(f"{address}/health") == 200


def test_a_consumer_that_the_server_has_ended_is_not_healthy(tmp_path: Path, strict: EmbeddedBroker) -> None:
    folder = write_program(tmp_path, strict.endpoint)
    with Shop(folder, strict.endpoint) as shop, Admin(strict.endpoint) as admin:
        address = shop.uvicorn_address()
        assert status(f"{address}/health") == 200
        admin.delete_group("kitchen")
        soon(lambda: status(f"{address}/health") == 503)
        assert status(f"{address}/orders", {"number": 2, "drink": "tea"}) == 202


def test_a_body_that_is_no_order_is_a_dead_letter(folder: Path, stored: EmbeddedBroker) -> None:
    with Shop(folder, stored.endpoint) as shop, Admin(stored.endpoint) as admin, Producer(stored.endpoint) as producer:
        shop.uvicorn_address()
        producer.send("orders", '{"number": 1}')
        soon(lambda: len(list(admin.dead_letters("kitchen"))) == 1)
        [letter] = admin.dead_letters("kitchen")
    assert letter.reason == "forwarded by its consumer: the body cannot be read: drink: Field required"


def test_sigterm_ends_it_at_once_if_nothing_runs(folder: Path, stored: EmbeddedBroker) -> None:
    with Shop(folder, stored.endpoint) as shop:
        shop.uvicorn_address()
        began = time.monotonic()
        shop.terminate()
        assert shop.ended() in {0, -15}
        assert time.monotonic() - began < 8  # the consumer's long poll would take 15 s
        assert "Application shutdown complete" in shop.log.read_text()


def test_sigterm_lets_a_listener_finish(folder: Path, stored: EmbeddedBroker) -> None:
    program = folder / "shop.py"
    slow = '    await asyncio.sleep(0.2 * (order.drink == "slow"))\n    print('
    program.write_text("import asyncio\n" + program.read_text().replace("    print(", f'    print("begun")\n{slow}', 1))
    with Shop(folder, stored.endpoint) as shop, Admin(stored.endpoint) as admin:
        address = shop.uvicorn_address()
        assert status(f"{address}/orders", {"number": 1, "drink": "slow"}) == 202
        shop.until_it_says("begun")
        shop.terminate()
        assert shop.ended() in {0, -15}
        assert "order 1: slow" in shop.log.read_text()
        [lag] = admin.get_group("kitchen").lag
    assert (lag.ready, lag.inflight, lag.waiting_retry) == (0, 0, 0)


def test_fastapis_own_test_client_runs_the_lifespan(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", shop)  # pydantic looks the annotations up there
    exec(compile((folder / "shop.py").read_text(), "shop.py", "exec"), shop.__dict__)
    with TestClient(shop.app) as client:
        assert client.post("/orders", json={"number": 1, "drink": "tea"}).status_code == 202
        assert client.get("/health").json() == {"producer": True, "kitchen": True}
        soon(lambda: "order 1: tea" in capsys.readouterr().out)


def test_without_a_server_it_does_not_start(tmp_path: Path) -> None:
    with Shop(write_program(tmp_path, NO_SERVER), NO_SERVER) as shop:
        assert shop.ended() == 3
        assert "popclient.errors.Unreachable" in shop.log.read_text()
