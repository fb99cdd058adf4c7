"""examples/frameworks/shop.py as its text says: uvicorn, and a worker of Taskiq."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import Request, urlopen

from popserver import EmbeddedBroker
from tests.frameworks.programs import Program
from tests.support.waiting import soon

ROOT = Path(__file__).parents[2]
MODULE = "examples.frameworks.shop"


def answer(url: str, body: object = None) -> str:
    request = Request(url, None if body is None else json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=60) as answered:
        return str(json.load(answered))


def test_orders_are_taken_brewed_and_looked_up(tmp_path: Path, stored: EmbeddedBroker) -> None:
    serve, work = ["uvicorn", f"{MODULE}:app", "--port", "0"], ["taskiq", "worker", f"{MODULE}:broker", "-w", "1"]
    with (
        Program(tmp_path, "shop", serve, stored.endpoint, folder=ROOT) as shop,
        Program(tmp_path, "kitchen", work, stored.endpoint, folder=ROOT) as kitchen,
    ):
        orders = f"{shop.uvicorn_address()}/orders"
        tea = answer(orders, {"drink": "tea", "table": 7})
        water = answer(orders, {"drink": "water", "table": 7})
        cake = answer(orders, {"drink": "cake", "table": 7})
        soon(lambda: [answer(f"{orders}/{each}") for each in (tea, water, cake)] == ["COMMIT", "DLQ", "COMMIT"])
        said = [line for line in kitchen.log.read_text().splitlines() if line.endswith("for table 7")]
        assert said == ["tea for table 7", "cake for table 7"]
        for program in (shop, kitchen):
            program.terminate()
            assert program.ended() in {0, -15}
