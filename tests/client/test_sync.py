"""The synchronous face: threads, iteration, and a process that just ends."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from popclient import (
    BadRequest,
    ClientClosed,
    InvalidReceiptHandle,
    Message,
    MultipleResults,
    NotFound,
    Producer,
    SimpleConsumer,
)
from popclient._loop import LoopThread
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.support.client_program import AT_ONCE_S, run
from tests.support.scripted_server import ServerThread, status, until_in_thread


def test_send_receive_ack(threaded: ServerThread) -> None:
    with Producer(threaded.endpoints) as producer, SimpleConsumer(threaded.endpoints, "g", "t") as consumer:
        receipt = producer.send("t", "hello", tag="a", keys="k", properties={"p": "v"})
        assert producer.send_many([Message("t", b"2"), Message("t", b"3")]).ok
        assert (producer.healthy, consumer.healthy, consumer.group) == (True, True, "g")
        messages = consumer.receive(await_duration=1)
        assert [message.text for message in messages] == ["hello", "2", "3"]
        assert (messages[0].message_id, messages[0].tag) == (receipt.message_id, "a")
        consumer.change_invisible_duration(messages[0], 20)
        consumer.forward_to_dead_letter_queue(messages[1])
        consumer.ack(messages[0])
        consumer.ack(messages[1:])
        with pytest.raises(InvalidReceiptHandle):
            consumer.ack(messages[0])
        with pytest.raises(MultipleResults):
            consumer.ack(messages)
    assert not threaded.server.held
    assert repr(producer).startswith("<Producer 127.0.0.1:")
    assert "group='g'" in repr(consumer)


def test_sends_of_many_threads_travel_together_and_each_gets_its_own(threaded: ServerThread) -> None:
    threads, each = 32, 25
    with Producer(threaded.endpoints, "t") as producer, ThreadPoolExecutor(threads) as pool:
        ready = threading.Barrier(threads)

        def work(number: int) -> list[tuple[str, str]]:
            ready.wait()
            return [(f"{number}-{n}", producer.send("t", f"{number}-{n}").message_id) for n in range(each)]

        sent = dict(pair for pairs in pool.map(work, range(threads)) for pair in pairs)
    stored = {message.body.decode(): message.system_properties.message_id for message in threaded.server.stored["t"]}
    assert stored == sent
    assert len(threaded.server.requests("SendMessage")) < threads * each / 3


def test_a_thread_gets_its_own_error(threaded: ServerThread) -> None:
    server = threaded.server

    def answer(request: rpc.SendMessageRequest) -> rpc.SendMessageResponse:
        answer = server.store(request)
        for message, entry in zip(request.messages, answer.entries, strict=True):
            if message.body == b"bad":
                entry.status.CopyFrom(status(pb.ILLEGAL_MESSAGE_KEY))
        return answer

    server.answers["SendMessage"] = answer
    with Producer(threaded.endpoints, "t") as producer, ThreadPoolExecutor(8) as pool:
        sends = [pool.submit(producer.send, "t", "bad" if n == 3 else "good") for n in range(8)]
        errors = [send.exception() for send in sends]
    assert [type(error) for error in errors if error] == [BadRequest]
    assert isinstance(errors[3], BadRequest)


def test_iteration_in_several_threads(threaded: ServerThread) -> None:
    count = 200
    seen: list[str] = []
    with Producer(threaded.endpoints) as producer:
        producer.send_many([Message("t", str(n)) for n in range(count)])
    with SimpleConsumer(threaded.endpoints, "g", "t") as consumer:

        def work() -> None:
            for message in consumer:
                consumer.ack(message)
                seen.append(message.text)

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        until_in_thread(lambda: len(seen) == count)
        consumer.close()
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive()
    assert sorted(seen, key=int) == [str(n) for n in range(count)]


def test_closing_gives_back_what_was_not_handed_out(threaded: ServerThread) -> None:
    with Producer(threaded.endpoints) as producer:
        producer.send_many([Message("t", str(n)) for n in range(10)])
    with SimpleConsumer(threaded.endpoints, "g", "t") as consumer:
        for message in consumer:
            consumer.ack(message)
            break
    assert len(threaded.server.given_back) == 9
    with pytest.raises(ClientClosed):
        consumer.receive()


def test_a_with_block_that_cannot_start_closes(threaded: ServerThread) -> None:
    refusal = rpc.QueryRouteResponse(status=status(pb.TOPIC_NOT_FOUND, "make it"))
    threaded.server.answers["QueryRoute"] = lambda _: refusal
    with pytest.raises(NotFound), SimpleConsumer(threaded.endpoints, "g", "t"):
        pass
    with pytest.raises(NotFound), Producer(threaded.endpoints, "t"):
        pass


def test_a_callback_may_not_wait_for_the_client(threaded: ServerThread) -> None:
    said: list[str] = []

    def call(_: Exception) -> None:
        try:
            producer.send("t", b"x")
        except RuntimeError as refusal:
            said.append(str(refusal))

    with Producer(threaded.endpoints, "t", on_disconnect=call) as producer:
        threaded.drop_streams()
        until_in_thread(lambda: said)
    assert "callback" in said[0]


@pytest.mark.parametrize("wrong", ["handle", ["x"], 5])
def test_only_messages_are_acked(threaded: ServerThread, wrong: Any) -> None:
    with SimpleConsumer(threaded.endpoints, "g", "t") as consumer, pytest.raises(TypeError, match="ack takes messages"):
        consumer.ack(wrong)


@pytest.mark.parametrize("wrong", [b"tea", [b"tea"], 5])
def test_only_messages_are_sent_together(threaded: ServerThread, wrong: Any) -> None:
    with Producer(threaded.endpoints) as producer, pytest.raises(TypeError, match="send_many takes Messages"):
        producer.send_many(wrong)


@pytest.mark.timeout(60)
def test_what_fails_in_the_loop_is_raised_in_the_thread_that_asked() -> None:
    def fail(_: object) -> None:
        raise KeyError("a defect")

    with pytest.raises(KeyError, match="a defect"):
        LoopThread().ask(fail)


def test_an_interrupted_receive_loses_nothing(threaded: ServerThread) -> None:
    with SimpleConsumer(threaded.endpoints, "g", "t") as consumer, Producer(threaded.endpoints) as producer:
        with pytest.raises(TimeoutError):
            consumer._bridge.run(lambda: consumer._core.receive(consumer._defaults), timeout=0.1)
        producer.send("t", "still there")
        assert [message.text for message in consumer.receive()] == ["still there"]


# ---- Processes ----


UNCLOSED = """
    import sys, threading, time
    from popclient import ClientConfig, Producer, SimpleConsumer
    config = ClientConfig(sys.argv[1], request_timeout=60, close_timeout=60)
    producer = Producer(config)
    producer.send("t", "x")
    producer.send("t", "y")
    consumer = SimpleConsumer(config, "g", "t")
    message = next(iter(consumer))
    assert message.text == "x"
    waiting = SimpleConsumer(config, "g", "empty", await_duration=60)
    threading.Thread(target=waiting.receive, daemon=True).start()
    time.sleep(0.1)
    {how}
    print(time.time())
"""


def test_a_process_ends_at_once_without_closing(threaded: ServerThread) -> None:
    ended, took = run(UNCLOSED.format(how=""), threaded.endpoints)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert took < AT_ONCE_S
    until_in_thread(lambda: len(threaded.server.requests("NotifyClientTermination")) == 3)
    assert [message.body for message in threaded.server.given_back] == [b"y"], "what iteration held came back"


def test_a_process_ends_at_once_when_the_server_is_gone(threaded: ServerThread) -> None:
    script = UNCLOSED.format(how="print('ready', flush=True); sys.stdin.read()")
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), threaded.endpoints],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        threaded.run(threaded.server.stop())
        process.stdin.close()
        began = float(process.stdout.readline())
        assert process.wait(300) == 0
        assert time.time() - began < AT_ONCE_S


def test_an_asyncio_program_that_does_not_close_ends_at_once(threaded: ServerThread) -> None:
    script = """
        import asyncio, sys, time
        from popclient import ClientConfig, aio
        async def main():
            producer = aio.Producer(ClientConfig(sys.argv[1], request_timeout=60, close_timeout=60))
            await producer.send("t", "x")
        asyncio.run(main())
        print(time.time())
    """
    ended, took = run(script, threaded.endpoints)
    assert ended.returncode == 0
    assert took < AT_ONCE_S


def test_grpc_is_loaded_when_a_client_is_named() -> None:
    """A Spark worker and `popmq --help` need none."""
    script = """
        import sys, time
        import popclient, popclient.cli
        from popclient import Message, PopError
        assert "grpc" not in sys.modules
        assert {"Producer", "SimpleConsumer"} <= set(dir(popclient))
        from popclient import *
        assert Producer is popclient.Producer and SimpleConsumer.__module__ == "popclient"
        assert not hasattr(popclient, "Nothing")
        print(time.time())
    """
    ended, _ = run(script)
    assert ended.returncode == 0, ended.stderr


def test_the_client_needs_grpcio_and_protobuf_alone() -> None:
    """The bare install: every other distribution is forbidden to be imported."""
    script = """
        import sys, time
        from importlib import metadata
        ours = {"popclient", "popproto"}
        needed = {"grpcio", "protobuf", "typing_extensions"}
        forbidden = {
            name
            for name, owners in metadata.packages_distributions().items()
            if not needed.intersection(owners) and name not in ours
        }
        class Guard:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in forbidden or name.partition(".")[0] in ("popserver", "sqlalchemy"):
                    raise ImportError(f"{name} is not in the bare install")
        sys.meta_path.insert(0, Guard())
        import popclient, popclient.aio, popclient.admin
        assert not {n.partition(".")[0] for n in sys.modules} & {"popserver", "sqlalchemy", "pydantic", "structlog"}
        print(time.time())
    """
    ended, _ = run(script)
    assert ended.returncode == 0, ended.stderr


def test_what_fails_after_its_thread_was_interrupted_is_not_logged() -> None:
    said: list[object] = []
    thread = LoopThread()
    thread.call(lambda: asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context)))

    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ClientClosed from None

    with pytest.raises(TimeoutError):
        thread.run(fail, timeout=0.01)
    for _ in range(3):  # the cancellation, the failure, and the end of the task
        thread.run(lambda: asyncio.sleep(0))
    thread.call(gc.collect)
    assert said == []


def test_only_a_message_begins_a_transaction(threaded: ServerThread) -> None:
    wrong: Any = "orders"
    with Producer(threaded.endpoints) as producer, pytest.raises(TypeError, match="takes a Message, not 'orders'"):
        producer.transaction(wrong)
