"""Celery's worker over PopMQ: real workers and children, killed in the middle of tasks."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from popclient import Producer
from popclient.admin import Admin
from tests.frameworks.celery.conftest import Shop
from tests.support.waiting import soon

pytestmark = pytest.mark.full  # workers start and end
PREFORK = ("--pool", "prefork", "--concurrency", "2")
QUICK = "tests.frameworks.celery.shop.quick"


@pytest.fixture
def admin(shop: Shop) -> Iterator[Admin]:
    with Admin(shop.endpoint) as opened:
        yield opened


def is_done(admin: Admin, topic: str = "celery") -> bool:
    """Nothing waits and nothing is held."""
    lag = admin.list_lag("shop", topic)
    return bool(lag) and not any(each.ready or each.inflight for each in lag)


def numbered(word: str, count: int) -> list[str]:
    return [f"{word}-{number}" for number in range(count)]


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_tasks_run_and_are_acked(shop: Shop, admin: Admin, pool: str) -> None:
    with shop.worker("--pool", pool, "--concurrency", "2") as worker:
        shop.run("for number in range(40): quick.delay(f'task-{number}')")
        shop.until(*numbered("task", 40))
        soon(lambda: is_done(admin))
        worker.stop()
    assert len(shop.notes()) == 40
    assert {each[2] if pool == "prefork" else each[1] for each in shop.notes()} == {str(worker.process.pid)}
    [found] = admin.find_messages(topic="celery", tag=QUICK, max_messages=1).messages
    assert found.keys


def test_a_task_with_an_eta_waits_in_the_server(shop: Shop, admin: Admin) -> None:
    with shop.worker(*PREFORK):
        shop.run("print(quick.apply_async(['later'], countdown=3).id); quick.delay('now')")
        began = time.time()
        [scheduled] = admin.scheduled("celery")
        shop.until("now")
        assert admin.list_holds("shop") == []
        assert "later" not in shop.words()
        shop.until("later")
        noted = (shop.folder / "notes").stat().st_mtime
    assert scheduled.due_at.timestamp() - 0.1 <= noted < scheduled.due_at.timestamp() + 2, began


def test_a_task_that_waits_is_cancelled_by_its_id(shop: Shop, admin: Admin) -> None:
    task_id = shop.run("print(quick.apply_async(['never'], countdown=3600).id)").stdout.strip()
    admin.cancel_scheduled("celery", key=task_id)
    assert list(admin.scheduled("celery")) == []


def test_an_eta_beyond_the_servers_limit_is_refused(shop: Shop) -> None:
    refused = shop.run("quick.apply_async(['never'], countdown=41 * 86_400)", check=False)
    assert "ILLEGAL_DELIVERY_TIME" in refused.stderr


def test_an_eta_without_a_time_zone_is_held_by_the_worker(shop: Shop, admin: Admin) -> None:
    said = shop.run("from datetime import *; quick.apply_async(['soon'], eta=datetime.now() - timedelta(hours=14))")
    assert "has no time zone" in said.stderr
    assert list(admin.scheduled("celery")) == []
    with shop.worker(*PREFORK):
        shop.until("soon")


def test_a_hold_lasts_as_long_as_its_task(shop: Shop, admin: Admin) -> None:
    with shop.worker(*PREFORK, hold_s=2):
        shop.run("gated.delay('long')")
        shop.until("begin-long")
        [first] = admin.list_holds("shop")
        for _ in range(5):
            before = admin.list_holds("shop")[0].visible_at
            soon(lambda before=before: admin.list_holds("shop")[0].visible_at > before)
        assert (admin.list_holds("shop")[0].visible_at - first.visible_at).total_seconds() > 2
        shop.open("long")
        soon(lambda: is_done(admin))
    assert shop.words() == ["begin-long", "end-long"]


def test_a_killed_child(shop: Shop, admin: Admin) -> None:
    """Its task runs again in the child that replaces it, which can send."""
    with shop.worker(*PREFORK) as worker:
        shop.run("gated.delay('kill')")
        shop.until("begin-kill")
        shop.open("kill")  # for the second attempt
        [(_, child, parent, _)] = [each for each in shop.notes() if each[0] == "begin-kill"][:1]
        assert parent == str(worker.process.pid)
        os.kill(int(child), signal.SIGKILL)
        shop.until("end-kill")
        soon(lambda: is_done(admin))
        assert shop.words() == ["begin-kill", "begin-kill", "end-kill"]
        shop.run("for number in range(8): sender.delay(f'from-{number}')")
        shop.until(*numbered("from", 8))
        worker.stop()


def test_every_child_is_replaced_after_its_task(shop: Shop, admin: Admin) -> None:
    """The worker forks while it consumes, and each new child sends."""
    with shop.worker(*PREFORK, "--max-tasks-per-child", "1") as worker:
        shop.run("for number in range(12): sender.delay(f'from-{number}')")
        shop.until(*numbered("from", 12))
        soon(lambda: is_done(admin))
        worker.stop()
        assert "Forked" not in worker.log.read_text()
    assert Counter(shop.words()) == Counter(numbered("send-from", 12) + numbered("from", 12))
    assert len({each[1] for each in shop.notes()}) == 24


def test_a_killed_worker(shop: Shop, admin: Admin) -> None:
    """All that it held, begun or not, is done by another one after its holds have ended."""
    with shop.worker(*PREFORK, "--prefetch-multiplier", "4", hold_s=5) as worker:
        shop.run("[gated.delay('gate') for _ in range(2)]; [quick.delay(f'task-{n}') for n in range(20)]")
        soon(lambda: shop.words().count("begin-gate") == 2)
        worker.kill()
    shop.open("gate")
    assert not is_done(admin)
    with shop.worker(*PREFORK) as another:
        shop.until("end-gate", *numbered("task", 20))
        soon(lambda: is_done(admin))
        another.stop()
    words = Counter(shop.words())
    assert words["begin-gate"] == 4
    assert words["end-gate"] == 2
    assert all(words[each] == 1 for each in numbered("task", 20))


def test_sigterm(shop: Shop, admin: Admin) -> None:
    """What has begun ends and is acked; what was prefetched goes back, and that is no attempt."""
    with shop.worker(*PREFORK, "--prefetch-multiplier", "4") as worker:
        shop.run("[gated.delay('gate') for _ in range(2)]")
        soon(lambda: shop.words().count("begin-gate") == 2)
        shop.run("[quick.delay(f'task-{n}') for n in range(4)]")
        soon(lambda: len(admin.list_holds("shop")) == 6)
        worker.process.send_signal(signal.SIGTERM)
        soon(lambda: "Warm shutdown" in worker.log.read_text())
        shop.open("gate")
        assert worker.process.wait(60) == 0, worker.log.read_text()
        assert admin.list_holds("shop") == []
    done = Counter(shop.words())
    assert done["end-gate"] == 2
    with shop.worker(*PREFORK) as another:
        shop.until(*numbered("task", 4))
        soon(lambda: is_done(admin))
        another.stop()
    assert Counter(shop.words())["begin-gate"] == 2
    assert [each for each in shop.notes() if each[3] == "1"] == []


def test_a_task_that_kills_its_child_becomes_a_dead_letter(shop: Shop, admin: Admin) -> None:
    admin.create_group("shop", max_attempts=3)
    with shop.worker(*PREFORK):
        shop.run("dying.delay('poison')")
        soon(lambda: any(admin.dead_letters("shop")), within_s=60)
    [letter] = admin.dead_letters("shop")
    assert letter.delivery_attempt == 3
    assert shop.words() == ["poison"] * 3
    assert [each[3] for each in shop.notes()] == ["0", "1", "1"]


@pytest.mark.parametrize("task", ["refusing", "failing"])
def test_a_rejected_task_is_a_dead_letter_at_once(shop: Shop, admin: Admin, task: str) -> None:
    with shop.worker(*PREFORK):
        shop.run(f"{task}.delay('no')")
        soon(lambda: any(admin.dead_letters("shop")), within_s=60)
    [letter] = admin.dead_letters("shop")
    assert (letter.delivery_attempt, letter.topic) == (1, "celery")
    assert letter.reason.endswith("rejected by the worker")


def test_a_foreign_message_is_a_dead_letter(shop: Shop, admin: Admin) -> None:
    with Producer(shop.endpoint) as producer:
        producer.send("celery", "hello")
    with shop.worker(*PREFORK):
        soon(lambda: any(admin.dead_letters("shop")), within_s=60)
        shop.run("quick.delay('after')")
        shop.until("after")
    [letter] = admin.dead_letters("shop")
    assert "is no message of kombu's" in letter.reason


def test_a_retry_waits_in_the_server(shop: Shop, admin: Admin) -> None:
    with shop.worker(*PREFORK):
        shop.run("again.delay('try')")
        shop.until("try-0")
        soon(lambda: bool(list(admin.scheduled("celery"))) or "try-1" in shop.words())
        shop.until("try-1")
        soon(lambda: is_done(admin))
    assert shop.words() == ["try-0", "try-1"]


def test_priorities(shop: Shop, admin: Admin) -> None:
    admin.create_topic("urgent", queue_count=10, accept_message_types=["PRIORITY", "DELAY"])
    shop.run("[quick.apply_async([f'p{p}-{n}'], queue='urgent', priority=p) for p in (0, 9) for n in range(16)]")
    with shop.worker("--pool", "solo", "--prefetch-multiplier", "1", "--queues", "urgent"):
        shop.until(*numbered("p0", 16), *numbered("p9", 16))
    # One of a few looks of the server ignores priorities.
    assert sum(word.startswith("p9") for word in shop.words()[:16]) >= 12


def test_tasks_of_a_message_group_run_one_after_the_other(shop: Shop, admin: Admin) -> None:
    shop.run("for number in range(10): quick.apply_async([f'step-{number}'], message_group='order-42')")
    with shop.worker("--pool", "prefork", "--concurrency", "4"):
        shop.until("step-9")
    assert shop.words() == numbered("step", 10)


def test_the_worker_survives_remote_control_and_events(shop: Shop, admin: Admin) -> None:
    with shop.worker(*PREFORK, "--task-events") as worker:
        refused = shop.run("app.control.ping(timeout=1)", check=False)
        assert "Celery's remote control and its result backend rpc:// need such queues" in refused.stderr
        shop.run("quick.delay('after')")
        shop.until("after")
        worker.stop()
    assert [each.name for each in admin.list_topics()] == ["celery", "urgent"]
