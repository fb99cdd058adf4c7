"""`popmq db copy`: all rows of a store come to the other database, and its clients go on there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from popserver.database import migrate
from popserver.database.copying import pages
from popserver.database.copying.copy import copy_database
from popserver.database.database import Database
from popserver.database.schema import metadata
from popserver.model.errors import PopError
from popserver.model.message import Delivery
from popserver.model.states import State
from tests.database.full_store import FullStore, NoWatcher, closed, content, empty_tables, fill, opened
from tests.database.test_migrations import shape
from tests.support.builders import in_order
from tests.support.open_store import MINUTE, OpenStore, ids
from tests.support.pending_store import enter_due
from tests.support.postgres import PostgresServer, fresh_database
from tests.support.progress import commit

Urls = tuple[str, str]


@pytest.fixture(params=["sqlite-postgres", "postgres-sqlite", "sqlite-sqlite", "postgres-postgres"])
def urls(request: pytest.FixtureRequest, tmp_path: Any, postgres: PostgresServer) -> Iterator[Urls]:
    """A source with an empty store, and a target with nothing."""
    source, target = request.param.split("-")
    with fresh_database(postgres) as one, fresh_database(postgres) as two:
        found = {"sqlite": f"sqlite:///{tmp_path}/one.db", "postgres": one}[source]
        database = Database(found)
        migrate.upgrade(database)
        database.close()
        yield found, {"sqlite": f"sqlite:///{tmp_path}/two.db", "postgres": two}[target]


def test_everything_comes_over_and_clients_go_on(urls: Urls, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = urls
    monkeypatch.setattr(pages, "PAGE_ROWS", 3)
    store = opened(source)
    full = fill(store, monkeypatch)
    assert empty_tables(store) == set(), "a new table needs rows in `full_store`"
    store.check()
    before = content(store)
    closed(store)
    facts = copy_database(source, target, NoWatcher())
    assert facts["rows"] == sum(facts["tables"].values()) == sum(map(len, before.values()))
    assert set(facts["tables"]) == set(metadata.tables)
    unchanged, copied = opened(source), opened(target)
    assert content(unchanged) == content(copied) == before
    closed(unchanged)
    copied.check()
    clients_go_on(copied, full)
    copied.check()
    closed(copied)


def clients_go_on(store: OpenStore, full: FullStore) -> None:
    """What clients of the source have is valid at the copy."""
    store.now_ms = full.now_ms
    highest = store.one_value("SELECT MAX(topic_id) FROM topic")
    assert store.topic("new").topic_id > highest, "ids go on behind the highest"
    (again,) = store.receive(full.billing, full.orders)
    assert again.stored.message.message_id == full.redriven, "what is held, waits or is dead stays"
    assert store.ack(full.billing, *full.held) == [None, None], "handles that are out"
    moved = commit(store, full.pulling, full.orders, full.pulled + 1)
    assert not isinstance(moved, PopError)
    assert store.receive(full.billing, full.steps) == [], "the message group is locked by its holds"
    store.ack(full.billing, *full.in_order)
    store.send(full.steps, in_order("a", 1))
    of_group = [each for each in store.receive(full.billing, full.steps) if each.stored.message.message_group == "a"]
    assert [each.stored.offset for each in of_group] == sorted(each.stored.offset for each in of_group)
    assert of_group[0].stored.offset > max(each.stored.offset for each in full.in_order)
    assert store.state(full.billing, full.retried) == State.WAITING_RETRY
    store.now_ms = full.retry_at_ms - 1
    store.end_due()
    assert full.retried not in ids(store.receive(full.billing, full.orders))
    store.end_due(after_ms=1)
    assert full.retried in ids(store.receive(full.billing, full.orders)), "the retry comes in time"
    assert enter_due(store, after_ms=MINUTE) == 1, "the delayed message"


@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection:sqlalchemy.exc.SAWarning")
def test_the_copy_has_the_schema_of_a_new_database(
    postgres: PostgresServer, sqlite_url: str, postgres_url: str, tmp_path: Any
) -> None:
    """Indexes are created after the rows, with all their settings."""
    migrate.upgrade(database := Database(sqlite_url))
    fresh = {"sqlite": schema_of(database), "postgresql": schema_of(Database(postgres_url))}
    database.close()
    with fresh_database(postgres) as copied:
        copy_database(sqlite_url, copied, NoWatcher())
        assert schema_of(Database(copied)) == fresh["postgresql"]
        copy_database(copied, file := f"sqlite:///{tmp_path}/back.db", NoWatcher())
        assert schema_of(Database(file)) == fresh["sqlite"]


def schema_of(database: Database) -> Any:
    with database.reading.connect() as conn:
        found = shape(conn)
    database.close()
    return found


def test_an_id_of_a_removed_row_is_not_given_again(urls: Urls) -> None:
    source, target = urls
    store = opened(source)
    last = [store.topic(name) for name in ("one", "two", "three")][-1]
    store.conn.exec_driver_sql("DELETE FROM queue")
    store.conn.exec_driver_sql("DELETE FROM topic WHERE name <> 'one'")
    closed(store)
    copy_database(source, target, NoWatcher())
    copied = opened(target)
    assert copied.topic("four").topic_id == last.topic_id + 1
    closed(copied)


@pytest.mark.parametrize("seed", [1, 2])
def test_random_stores_are_copied(urls: Urls, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = urls
    chance = random.Random(seed)
    monkeypatch.setattr(pages, "PAGE_ROWS", chance.choice((1, 2, 7)))
    monkeypatch.setattr(pages, "PAGE_BYTES", chance.choice((1, 20_000, 1 << 30)))
    store = opened(source)
    work(store, chance)
    store.check()
    before = content(store)
    closed(store)
    copy_database(source, target, NoWatcher())
    copied = opened(target)
    assert content(copied) == before
    copied.check()
    closed(copied)


def work(store: OpenStore, chance: random.Random, steps: int = 40) -> None:
    """Any verbs of clients, in any order."""
    topic = store.topic(queues=3)
    groups = [store.group(name, meets=[topic], max_attempts=2) for name in ("one", "two")]
    held: list[tuple[Any, Delivery]] = []

    def send() -> None:
        size = chance.choice((1, 100, 10_000))
        store.send(topic, chance.randint(1, 5), queue=chance.randrange(3), body=chance.randbytes(size))

    def receive() -> None:
        group = chance.choice(groups)
        held.extend((group, each) for each in store.receive(group, topic, chance.randint(1, 4)))

    def settle(how: Callable[[Any, Delivery], object]) -> None:
        if held:
            how(*held.pop(chance.randrange(len(held))))

    for _ in range(steps):
        verb = chance.choice(
            (
                send,
                receive,
                lambda: settle(store.ack),
                lambda: settle(store.forward),
                lambda: settle(lambda group, each: store.change(group, each, MINUTE, give_back=chance.random() < 0.5)),
            )
        )
        verb()


def test_pages_have_a_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", 10)
    assert list(pages.counts_of([4, 4, 4, 11, 1, 1])) == [3, 1, 2]
    reader = pages.PageReader(metadata.tables["message"])
    rows = [(key, *[None] * 17, b"x" * 6) for key in range(5)]
    assert [len(page) for page in reader.pages(iter(rows))] == [2, 2, 1]


def test_a_digest_tells_types_and_order_apart() -> None:
    rows: list[pages.Row] = [(1, "a", None), (2, "b", b"b")]
    assert pages.digest_of(rows) == pages.digest_of(list(rows))
    for other in ([(1, "a", ""), rows[1]], [("1", "a", None), rows[1]], [rows[0], (2, "b", "b")], rows[::-1], rows[:1]):
        assert pages.digest_of(other) != pages.digest_of(rows)
