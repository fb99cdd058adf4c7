"""A connection to RocketMQ: what it does with peers that are away, slow, hostile, or something else."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from popclient.errors import UnexpectedAnswer, Unreachable
from popclient.remoting import RefusedByBroker, requests
from popclient.remoting.connection import RemotingConnection
from popclient.remoting.frames import FRAME_MAX, Frame, encode
from popclient.remoting.signatures import AccessKey
from tests.remoting.peer import answer, peer

pytestmark = pytest.mark.row("O9")

ASK = requests.topic_stats("orders")
SHORT = 0.1
# What an HTTP/2 server says first: its settings, in a frame of 12 bytes.
SETTINGS = struct.pack(">HBBBI", 0, 12, 4, 0, 0) + b"\0\4\0\x10\0\0\0\5\0\0\x40\0"


async def test_a_request_and_its_answer() -> None:
    async with peer(lambda asked: answer(asked, {"n": 1}, fields={"offset": "7"})) as at:
        connection = RemotingConnection(at.address)
        got = await connection.call(ASK)
        await connection.call(ASK)
        await connection.close()
    assert (got.body, got.fields) == (b'{"n": 1}', {"offset": "7"})
    assert [(each.code, dict(each.fields)) for each in at.asked] == [(202, {"topic": "orders"})] * 2
    assert at.connections == 1


async def test_a_refusal_has_the_address_the_code_and_the_remark() -> None:
    remark = "No topic orders\nSee https://example.org for further details."
    async with peer(lambda asked: answer(asked, code=17, remark=remark)) as at:
        connection = RemotingConnection(at.address)
        with pytest.raises(RefusedByBroker) as refused:
            await connection.call(ASK)
        await connection.close()
    assert (refused.value.code, refused.value.name) == (17, "TOPIC_NOT_EXIST")
    assert refused.value.sentence == f"{at.address} refuses to tell the offsets of topic 'orders': No topic orders"


@pytest.mark.parametrize(("code", "way_out"), [(3, "name server"), (2, "repeat"), (16, "access key")])
async def test_a_refusal_names_the_way_out(code: int, way_out: str) -> None:
    async with peer(lambda asked: answer(asked, code=code, remark="no")) as at:
        connection = RemotingConnection(at.address)
        with pytest.raises(RefusedByBroker, match=way_out):
            await connection.call(ASK)
        await connection.close()


async def test_requests_are_signed() -> None:
    async with peer(answer) as at:
        connection = RemotingConnection(at.address, AccessKey("rocket", "secret"))
        await connection.call(ASK)
        await connection.close()
    assert at.asked[0].fields["AccessKey"] == "rocket"
    assert len(at.asked[0].fields["Signature"]) == 28


async def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unreachable, match=f"{address} cannot be reached: .*9876 and 10911"):
            await RemotingConnection(address).call(ASK)


async def test_a_silent_peer_costs_the_time_limit_and_its_late_answer_is_not_taken_for_the_next_one() -> None:
    async with peer(lambda _: b"") as at:
        connection = RemotingConnection(at.address, timeout=SHORT)
        with pytest.raises(Unreachable, match=r"did not answer within 0\.1 s; repeat it"):
            await connection.call(ASK)
        at.reply = lambda asked: answer(asked, {"n": 2})
        assert (await connection.call(ASK)).body == b'{"n": 2}'
        assert at.connections == 2
        await connection.close()


async def test_a_peer_that_closes() -> None:
    async with peer(lambda _: None) as at:
        with pytest.raises(Unreachable, match=r"closed the connection before its answer; .*TLS"):
            await RemotingConnection(at.address).call(ASK)


async def test_half_an_answer() -> None:
    halves = iter([lambda asked: answer(asked)[:20]])

    def reply(asked: Frame) -> bytes | None:
        at.cut()
        return next(halves)(asked)

    async with peer(reply) as at:
        with pytest.raises(Unreachable, match="closed the connection"):
            await RemotingConnection(at.address).call(ASK)


async def test_a_port_of_grpc() -> None:
    async with peer(lambda _: SETTINGS) as at:
        with pytest.raises((Unreachable, UnexpectedAnswer), match=r"gRPC \(8081\)"):
            await RemotingConnection(at.address, timeout=SHORT).call(ASK)


@pytest.mark.parametrize(
    ("back", "word"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "bytes; it may have 16,777,216"),
        (struct.pack(">I", FRAME_MAX + 1), "16,777,217 bytes"),
        (struct.pack(">II", 8, 4) + b"[{]}", "no JSON"),
        (struct.pack(">II", 8, 1 << 24 | 4) + b"abcd", "not as JSON"),
        (encode(Frame(0, 999, is_answer=True)), "number 999"),
        (encode(Frame(40, 1)) * 200, "none is an answer"),
    ],
)
async def test_another_protocol(back: bytes, word: str) -> None:
    async with peer(lambda _: back) as at:
        with pytest.raises(UnexpectedAnswer, match=word) as unexpected:
            await RemotingConnection(at.address).call(ASK)
    assert at.address in unexpected.value.sentence


async def test_requests_of_the_server_are_passed_over() -> None:
    """A broker tells its consumers that others came or went, by a request that wants no answer."""
    async with peer(lambda asked: encode(Frame(40, 1, {"consumerGroup": "g"})) + answer(asked, {"n": 3})) as at:
        connection = RemotingConnection(at.address)
        assert (await connection.call(ASK)).body == b'{"n": 3}'
        await connection.close()


async def test_a_connection_that_the_server_has_closed_is_opened_again() -> None:
    async with peer(answer) as at:
        connection = RemotingConnection(at.address)
        await connection.call(ASK)
        at.cut()
        reader = connection._open[0] if connection._open else None
        assert reader is not None
        await reader.read()  # until it is noticed here
        await connection.call(ASK)
        assert at.connections == 2
        await connection.close()


async def test_several_tasks_share_a_connection() -> None:
    async with peer(lambda asked: answer(asked, fields={"topic": asked.fields["topic"]})) as at:
        connection = RemotingConnection(at.address)
        names = [f"topic-{number}" for number in range(50)]
        answers = await asyncio.gather(*(connection.call(requests.topic_stats(name)) for name in names))
        assert [each.fields["topic"] for each in answers] == names
        assert at.connections == 1
        await connection.close()


async def test_a_cancelled_request_leaves_nothing_behind() -> None:
    async with peer(lambda _: b"") as at:
        connection = RemotingConnection(at.address, timeout=30)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.call(ASK), SHORT)
        at.reply = lambda asked: answer(asked)
        await connection.call(ASK)
        await connection.close()


@pytest.mark.parametrize("address", ["", "host", "host:", ":9876", "host:port", "host:0", "host:65536", "host:९"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ValueError, match="host:port, such as"):
        RemotingConnection(address)
