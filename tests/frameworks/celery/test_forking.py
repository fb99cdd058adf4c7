"""Clients that are closed for a fork: both processes go on with clients of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from popclient import SimpleConsumer
from popclient.admin import Admin
from popserver import EmbeddedBroker


def run(program: str, endpoint: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(program), endpoint]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def texts(endpoint: str, count: int) -> list[str]:
    with SimpleConsumer(endpoint, "g", "t", await_duration=5) as consumer:
        return sorted(each.text for _ in range(count) for each in consumer.receive(1))


def test_a_producer_goes_on_in_parent_and_child(broker: EmbeddedBroker) -> None:
    """With threads that send all the time."""
    program = """
        import os, sys, threading
        from popclient import ClientConfig, Message
        from popclient.frameworks.forking import ForkingProducer

        producer, ended, sent = ForkingProducer(ClientConfig(sys.argv[1])), threading.Event(), []

        def send():
            while not ended.is_set():
                producer.send(Message("t", "of a thread"))
                sent.append(1)

        threads = [threading.Thread(target=send) for _ in range(3)]
        for each in threads:
            each.start()
        for number in range(5):
            child = os.fork()
            if child == 0:
                producer.send(Message("t", f"of child {number}"))
                producer.close()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            producer.send(Message("t", f"of the parent {number}"))
        ended.set()
        for each in threads:
            each.join()
        producer.close()
        print(len(sent))
    """
    of_threads = int(run(program, broker.endpoint))
    with Admin(broker.endpoint) as admin:
        assert admin.get_topic("t").message_count == of_threads + 10


def test_an_intake_goes_on_in_the_parent(broker: EmbeddedBroker) -> None:
    """What it holds during the fork is still held after it, and settled once."""
    program = """
        import os, sys, threading
        from datetime import UTC, datetime, timedelta
        from popclient import ClientConfig, Message
        from popclient.frameworks.forking import ForkingProducer
        from popclient.frameworks.intake import Intake, Settlement

        config, woken = ClientConfig(sys.argv[1]), threading.Event()
        producer = ForkingProducer(config)
        intake = Intake(config, "g", timedelta(seconds=6), lambda: 1, woken.set)
        producer.send(Message("t", "a"))
        intake.receive_from(["t"])

        def next_arrived():
            while (found := intake.next_arrived()) is None:
                assert woken.wait(60)
                woken.clear()
            return found

        tag, view = next_arrived()
        for number in range(3):
            child = os.fork()
            if child == 0:
                assert intake.next_arrived() is None
                intake.settle(tag, Settlement.GIVE_UP)
                intake.close()
                producer.send(Message("t", f"of child {number}"))
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        until = view.invisible_until
        while view.invisible_until == until:  # it is renewed after a third of its hold
            assert datetime.now(UTC) < until, "the hold has ended"
            woken.wait(0.02)
        intake.settle(tag, Settlement.ACK)
        intake.give_back_arrived()
        intake.close()
        print(view.text)
    """
    assert run(program, broker.endpoint) == "a\n"
    assert texts(broker.endpoint, 3) == [f"of child {number}" for number in range(3)]
