"""Exactly once: consumers are killed while they work, and every message's work is done one time."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest
from sqlalchemy import Engine, text

from popclient import Message, Producer
from popclient.admin import Admin
from popserver import EmbeddedBroker
from tests.support.scripted_server import until_in_thread

MESSAGES = 90
GROUPS = 6

# Holds run out while it works, its transactions take a while, and nothing warns it.
CONSUMER = """
import random, sys, time
from sqlalchemy import create_engine, text
from popclient import SimpleConsumer, sql

endpoint, url = sys.argv[1:]
engine = create_engine(url)
with SimpleConsumer(endpoint, "g", "orders", max_messages=8, invisible_duration=0.25) as consumer:
    while True:
        for message in consumer.receive(await_duration=1):
            try:
                with engine.begin() as conn:
                    conn.execute(text("INSERT INTO orders VALUES (:number)"), {"number": int(message.text)})
                    sql.ack(conn, message)
                    time.sleep(random.random() * 0.02)
            except (sql.HoldLost, sql.OutOfOrder):
                pass
"""


def numbers(user: Engine) -> list[int]:
    with user.connect() as conn:
        return list(conn.execute(text("SELECT number FROM orders")).scalars())


@pytest.mark.parametrize("in_order", [False, True], ids=["unordered", "in-order"])
def test_killed_consumers_do_each_message_once(broker: EmbeddedBroker, user: Engine, in_order: bool) -> None:
    with Admin(broker.endpoint) as admin, Producer(broker.endpoint) as producer:
        admin.create_topic("orders", queue_count=2, accept_message_types=["FIFO" if in_order else "NORMAL"])
        admin.create_group("g", max_attempts=1_000)
        producer.send_many(
            Message("orders", f"{number}", message_group=f"{number % GROUPS}" if in_order else None)
            for number in range(MESSAGES)
        ).raise_for_failures()
    over = threading.Event()
    threads = [threading.Thread(target=_consume_until, args=(broker, user, over, kills)) for kills in (True, False)]
    for thread in threads:
        thread.start()
    try:
        until_in_thread(lambda: len(set(numbers(user))) == MESSAGES)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    found = numbers(user)
    assert sorted(found) == list(range(MESSAGES))
    if in_order:
        for group in range(GROUPS):
            of_group = [number for number in found if number % GROUPS == group]
            assert of_group == sorted(of_group)


def _consume_until(broker: EmbeddedBroker, user: Engine, over: threading.Event, kills: bool) -> None:
    """A consumer process; with `kills` one after the other, each killed once it has done something."""
    url = user.url.render_as_string(hide_password=False)
    while not over.is_set():
        process = subprocess.Popen([sys.executable, "-c", CONSUMER, broker.endpoint, url], stderr=subprocess.PIPE)
        done = len(numbers(user))
        while not over.wait(0.02) and process.poll() is None and not (kills and len(numbers(user)) > done + 10):
            pass
        ended = process.poll()
        process.send_signal(signal.SIGKILL)
        _, said = process.communicate()
        assert ended is None, said.decode()
