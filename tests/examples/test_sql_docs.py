"""The Python in docs/sql.md, docs/tracing.md and its like in docs/tour.md does what it says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, make_url, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

import popclient
import popclient.admin
import popclient.sql
import popserver
from popclient import Producer
from popserver import EmbeddedBroker
from tests.support.scripted_server import until_in_thread

ROOT = Path(__file__).parents[2]
SQL = (ROOT / "docs" / "sql.md").read_text()
TRACING = (ROOT / "docs" / "tracing.md").read_text()
TOUR = (ROOT / "docs" / "tour.md").read_text()


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "shop_order"
    number: Mapped[int] = mapped_column(primary_key=True)


class Invoice(Base):
    __tablename__ = "invoice"
    order: Mapped[int] = mapped_column(primary_key=True)


def block(document: str, word: str) -> str:
    """The only block of Python with that word in it, which ends where a listing would go on for ever."""
    [found] = [each for each in re.findall(r"```python\n(.*?)```", document, re.DOTALL) if word in each]
    return str(found).replace("for message in consumer:", "for message in consumer.receive():")


class Shop:
    """A user's database; `do` runs a block in it."""

    def __init__(self, engine: Engine, endpoint: str) -> None:
        self.engine = engine
        self.endpoint = endpoint
        Base.metadata.create_all(engine)

    def do(self, code: str, **names: Any) -> None:
        given = {
            "Session": sessionmaker(self.engine),
            "engine": self.engine,
            "endpoint": self.endpoint,
            "Order": Order,
            "Invoice": Invoice,
            "popclient": popclient,
        }
        exec(compile(code, "docs", "exec"), given | names)

    def all_of(self, column: Any) -> list[int]:
        with sessionmaker(self.engine)() as session:
            return list(session.scalars(select(column)))


@pytest.fixture
def broker(postgres_url: str) -> Iterator[EmbeddedBroker]:
    with popserver.embedded(postgres_url, durability="relaxed") as running:
        yield running


@pytest.fixture
def shared(broker: EmbeddedBroker, postgres_url: str) -> Iterator[Shop]:
    """In the broker's own Postgres."""
    engine = create_engine(make_url(postgres_url).set(drivername="postgresql+psycopg"))
    with popclient.admin.Admin(broker.endpoint) as admin:
        admin.create_topic("orders", queue_count=1)
    yield Shop(engine, broker.endpoint)
    engine.dispose()


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Shop]:
    """In a database of its own."""
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with popserver.embedded() as broker:
        yield Shop(engine, broker.endpoint)
    engine.dispose()


def test_enqueue_and_ack(shared: Shop) -> None:
    shared.do(block(SQL, 'b"42", keys="42", tag="new"'))
    assert shared.all_of(Order.number) == [42]
    shared.do(block(SQL, "except sql.HoldLost"))
    assert shared.all_of(Invoice.order) == [42]


def test_tour(shared: Shop) -> None:
    shared.do(block(TOUR, "popclient.sql.enqueue"))
    shared.do(block(SQL, "except sql.HoldLost"))
    assert shared.all_of(Invoice.order) == [42]


def test_outbox_and_idempotent(apart: Shop) -> None:
    with apart.engine.begin() as conn:
        popclient.sql.metadata.create_all(conn)
    apart.do(block(SQL, "target_metadata"))
    apart.do(block(SQL, "sql.Relay("), serve=_until(lambda: not apart.all_of(popclient.sql.outbox.c.outbox_id)))
    apart.do(block(SQL, "@sql.idempotent"), serve=_until(lambda: apart.all_of(Invoice.order) == [42]))


def _until(fact: Callable[[], bool]) -> Callable[[], object]:
    return lambda: until_in_thread(fact)


def test_the_rest(apart: Shop) -> None:
    with Producer(apart.endpoint) as producer:
        apart.do(block(SQL, "idempotency_key="), producer=producer)
    handled: list[str] = []
    apart.do(block(TRACING, "otel.processing"), handle=lambda message: handled.append(message.text))
    assert handled == ["42"]
