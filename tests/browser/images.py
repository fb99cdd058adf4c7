"""The pictures of the console in docs/images: `make images`."""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import sync_playwright

from popclient import SimpleConsumer
from popclient.admin import DeadLetterSelection
from popclient.config import ClientConfig
from popconsole.settings import Settings
from tests.browser.conftest import PATIENCE_MS, chromium_path, console
from tests.browser.world import PAGES, World, world

FOLDER = Path(__file__).parents[2] / "docs" / "images"
BYTES_MAX = 200_000
SAMPLES = 50  # points of each plot
DESK, PHONE = (1280, 860), (360, 740)


class Picture(NamedTuple):
    """One file. page: where, or how to get there."""

    name: str
    page: str
    size: tuple[int, int] = DESK
    scheme: str = "light"


def pictures(made: World) -> list[Picture]:
    return [
        Picture("console-overview", PAGES["overview"]),
        Picture("console-overview-dark", PAGES["overview"], scheme="dark"),
        Picture("console-group", PAGES["holds"]),
        Picture("console-message", f"/messages/{made.a_dead_letter()}"),
        Picture("console-dead-letters", PAGES["dead letters of a group"], scheme="dark"),
        Picture("console-redrive", f"/redrives/{a_redrive(made)}"),
        Picture("console-scheduled", PAGES["scheduled"], scheme="dark"),
        Picture("console-phone", PAGES["overview"], PHONE),
    ]


def a_redrive(made: World) -> str:
    """Half of the dead letters went back, and most of them died again."""
    letters = made.admin.list_dead_letters("arrivals", max_messages=6).dead_letters
    plan = made.admin.plan_redrive(
        DeadLetterSelection("arrivals", ids=[each.id for each in letters]), reason="the feed is fixed"
    )
    for _ in made.admin.run_redrive(plan.plan_id):
        pass
    return plan.plan_id


def keep_busy(made: World, is_enough: Callable[[], bool]) -> None:
    """Flights come in waves until it is enough; group `radar` keeps up, nearly."""
    chance = random.Random(5)
    with SimpleConsumer(made.endpoint, "radar", "flights", invisible_duration=45) as consumer:
        for turn in itertools.count():
            if is_enough():
                break
            made.send_flights(8 + round(6 * math.sin(turn / 9)))
            for message in consumer.receive(16):
                if chance.random() < 0.97:
                    consumer.ack(message)
            time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every page, light, dark and on a phone")
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder (docs/images)")
    arguments = parser.parse_args()
    logging.disable(logging.ERROR)  # flights that never arrived fail, as they should
    arguments.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        made = stack.enter_context(world())
        at, admin_server = stack.enter_context(console(Settings(ClientConfig(made.endpoint), sample_s=1.0)))
        browser = stack.enter_context(sync_playwright()).chromium.launch(
            executable_path=chromium_path(), args=["--no-sandbox"]
        )
        stack.callback(browser.close)
        first = browser.new_page()
        first.goto(at)  # the console samples while somebody looks
        keep_busy(made, lambda: len(admin_server.pulse.ring) >= SAMPLES)
        wanted = pictures(made)
        if arguments.all:
            wanted += [
                Picture(f"{name.replace(' ', '-')}-{scheme}-{size[0]}", page, size, scheme)
                for name, page in PAGES.items()
                for size, scheme in ((DESK, "light"), (DESK, "dark"), (PHONE, "light"))
            ]
        for each in wanted:
            take(browser, at, each, arguments.out)


def take(browser: Any, at: str, picture: Picture, folder: Path) -> None:
    width, height = picture.size
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=picture.scheme)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(at + picture.page)
    for plot in page.locator("[data-plot]").all():
        plot.locator("canvas").first.wait_for()
    path = folder / f"{picture.name}.png"
    page.screenshot(path=path, full_page=False)
    context.close()
    size = path.stat().st_size
    assert size <= BYTES_MAX, f"{path} has {size} bytes; at most {BYTES_MAX} are wanted"
    print(f"{path.name}: {size // 1_000} kB")


if __name__ == "__main__":
    main()
