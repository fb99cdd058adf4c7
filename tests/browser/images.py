"""Makes the pictures of the console in docs/images: `make images`. It takes a minute, in which the plots fill."""

from __future__ import annotations

import logging
import os
import random
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from popclient import SimpleConsumer
from popclient.config import ClientConfig
from popconsole.settings import Settings
from tests.browser.conftest import console, playwright
from tests.browser.world import World, world

FOLDER = Path(__file__).parents[2] / "docs" / "images"
MINUTE_S = 75.0
WIDTH, HEIGHT = 1280, 860


def main() -> int:
    path = os.environ.get("POPMQ_CHROMIUM") or shutil.which("chromium")
    if path is None:
        print("no Chromium: apt-get install chromium, or name one with POPMQ_CHROMIUM", file=sys.stderr)
        return 1
    logging.disable(logging.ERROR)  # the failures of flights that never arrived
    FOLDER.mkdir(exist_ok=True)
    with world() as flights, console(Settings(ClientConfig(flights.endpoint), sample_s=1.0)) as (address, _):
        enough = threading.Event()
        workers = [threading.Thread(target=work, args=(flights, enough)) for work in (_send, _receive)]
        for each in workers:
            each.start()
        try:
            with playwright.sync_playwright() as started:
                browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
                _take(browser, address, flights)
                browser.close()
        finally:
            enough.set()
            for each in workers:
                each.join()
    return 0


def _take(browser: Any, address: str, flights: World) -> None:
    def picture(name: str, place: str, scheme: str = "light", height: int = HEIGHT) -> None:
        context = browser.new_context(viewport={"width": WIDTH, "height": height}, color_scheme=scheme)
        page = context.new_page()
        page.goto(address + place)
        page.wait_for_timeout(1_200)
        page.screenshot(path=FOLDER / f"{name}.png")
        context.close()

    # The plots begin with the first look.
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    page.wait_for_timeout(MINUTE_S * 1_000)
    context.close()
    picture("console-overview", "/", height=1_000)
    picture("console-overview-dark", "/", "dark", 1_000)
    picture("console-group", "/groups/radar")
    picture("console-message", f"/messages/{flights.a_dead_letter()}")
    picture("console-dead-letters", "/dead-letters/arrivals")


def _send(flights: World, enough: threading.Event) -> None:
    """Flights in waves."""
    chance = random.Random(3)
    level = 12.0
    while not enough.wait(0.25):
        level = min(30.0, max(3.0, level + chance.uniform(-4, 4)))
        flights.send_flights(round(level))


def _receive(flights: World, enough: threading.Event) -> None:
    """Group `radar` keeps up, nearly."""
    chance = random.Random(5)
    with SimpleConsumer(flights.endpoint, "radar", "flights", invisible_duration=45) as consumer:
        while not enough.wait(0.2):
            for message in consumer.receive(10):
                if chance.random() < 0.97:
                    consumer.ack(message)


if __name__ == "__main__":
    sys.exit(main())
