"""The programs of docs/migrating: PopMQ's side is run, and so is RocketMQ's; the other side is at least Python."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url

import popserver
from popclient import PushConsumer
from popserver import EmbeddedBroker
from tests.support.documentation_pages import ADDRESS, Block, Reader, blocks, fits
from tests.support.scripted_server import until_in_thread

PAGES = Path(__file__).parents[2] / "docs" / "migrating"
OTHERS = {"celery": "Celery", "sqs": "SQS", "rabbitmq": "RabbitMQ", "pgmq": "pgmq", "rocketmq": "RocketMQ"}
SHOP = "postgresql+psycopg://localhost/shop"
RUN = re.compile(r"^(PushConsumer\(.*\))\.run\(\)$", re.MULTILINE)


def side(block: Block) -> str:
    """Whose program it is: its first line says so."""
    return block.text.splitlines()[0].removeprefix("# ")


class Follower:
    """Runs the programs of one page in their order. A `….run()` goes on in the background until the page's end."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.said = StringIO()
        self.names: dict[str, Any] = {"started": self.started}
        self.consumers: list[PushConsumer] = []

    def started(self, consumer: PushConsumer) -> None:
        self.consumers.append(consumer)
        consumer.start()

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()
        if "engine" in self.names:
            self.names["engine"].dispose()

    def follow(self, block: Block) -> None:
        if block.language == "sh":
            self.reader.type(block.text)
        elif block.language == "text":
            until_in_thread(lambda: fits(block.text, self.said.getvalue()))
            self.said.seek(0)
            self.said.truncate()
        elif side(block) == "PopMQ":
            code = RUN.sub(r"started(\1)", block.text.replace(ADDRESS, self.reader.endpoint))
            exec(compile(code, "page", "exec"), self.names)
        elif side(block) == "RocketMQ":
            self.said.write(official(block, self.reader))


def official(block: Block, reader: Reader) -> str:
    """What RocketMQ's own client prints; it keeps its log below HOME, and waits for 3 s unless told otherwise."""
    patient = block.text.replace("Credentials())", "Credentials(), request_timeout=60)")
    done = subprocess.run(
        [sys.executable, "-c", patient.replace(ADDRESS, reader.endpoint)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={"HOME": str(reader.folder)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with popserver.embedded() as running:
        yield running


def follow(page: list[Block], folder: Path, broker: EmbeddedBroker) -> None:
    with closing(Follower(Reader(folder, broker.endpoint))) as follower, redirect_stdout(follower.said):
        for block in page:
            follower.follow(block)


@pytest.mark.parametrize("name", ["celery", "sqs", "rabbitmq", "rocketmq"])
def test_the_programs_of_a_page(name: str, tmp_path: Path, broker: EmbeddedBroker) -> None:
    follow(blocks(PAGES / f"{name}.md"), tmp_path, broker)


def test_the_programs_from_pgmq(tmp_path: Path, postgres_url: str) -> None:
    shop = make_url(postgres_url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    engine = create_engine(shop)
    page = [block._replace(text=block.text.replace(SHOP, shop)) for block in blocks(PAGES / "pgmq.md")]
    with popserver.embedded(postgres_url, durability="relaxed") as broker:
        with engine.begin() as conn:
            conn.exec_driver_sql("CREATE TABLE shop_order (number int); CREATE TABLE invoice (number int)")
        follow(page, tmp_path, broker)
        with engine.connect() as conn:
            [(invoiced,)] = conn.exec_driver_sql("SELECT number FROM invoice")
    engine.dispose()
    assert invoiced == 43


@pytest.mark.parametrize("name", list(OTHERS))
def test_each_program_stands_beside_one_of_the_other_system(name: str) -> None:
    programs = [block for block in blocks(PAGES / f"{name}.md") if block.language == "python"]
    assert [side(block) for block in programs] == [OTHERS[name], "PopMQ"] * (len(programs) // 2)
    assert len(programs) >= 4
    for block in programs:
        ast.parse(block.text)
        assert max(map(len, block.text.splitlines())) <= 120


def test_each_page_is_tested() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == {*OTHERS, "README"}
