"""One connection without a network: frames in, calls of the listener and frames out."""

from __future__ import annotations

from collections.abc import Callable

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from popserver.http2 import frames
from popserver.http2.connection import RESETS_REMEMBERED, Connection
from popserver.http2.frame_budget import IDLE_FRAMES_AT_ONCE
from popserver.http2.frames import ACK, END_HEADERS, END_STREAM, PREFACE, WINDOW_AT_START, ErrorCode, FrameReader
from popserver.http2.headers import DONE, OK, RequestHead
from popserver.http2.outgoing import FLUSH_BYTES
from popserver.http2.stream import Stream

REQUEST = [(":method", "POST"), (":scheme", "http"), (":path", "/a/B")]
SETTINGS = frames.settings({})
Frame = tuple[int, int, int, bytes]  # kind, flags, stream, payload


class Client:
    """A client of one connection, and the listener of the server's side."""

    def __init__(self, streams_max: int = 100) -> None:
        self.heard: list[str] = []
        self.streams: list[Stream] = []
        self.bodies: dict[int, bytes] = {}
        self.now_s = 0.0
        self._encoder = hpack.Encoder()
        self._reader = FrameReader()
        self._reader._has_preface = True  # a server sends none
        self.connection = Connection(self, streams_max)
        self.say(PREFACE + SETTINGS)
        assert [frame[0] for frame in self.hear()] == [frames.SETTINGS, frames.WINDOW_UPDATE, frames.SETTINGS]

    def say(self, data: bytes, streams_max: int = 1 << 30) -> None:
        self.connection.receive(data, self.now_s, streams_max)

    def hear(self) -> list[Frame]:
        """What the server has sent since the last time."""
        said: list[Frame] = []
        while not self.connection.outgoing.is_empty:
            self._reader.feed(b"".join(self.connection.outgoing.flush()))
            while (frame := self._reader.next()) is not None:
                said.append(frame)
        return said

    def headers(self, number: int, *more: tuple[str, str], flags: int = END_HEADERS) -> bytes:
        return frames.frame(frames.HEADERS, flags, number, self._encoder.encode([*REQUEST, *more]))

    def call(self, number: int = 1, body: bytes = b"", *, has_ended: bool = True) -> Stream:
        data = frames.frame(frames.DATA, END_STREAM if has_ended else 0, number, body)
        self.say(self.headers(number) + data)
        return self.streams[-1]

    def ends_with(self, code: ErrorCode) -> bool:
        """Whether the server has ended the connection for this reason."""
        failure = self.connection.failure
        last = self.hear()[-1]
        assert last[0] == frames.GOAWAY
        return failure is not None and failure.code is code and last[3][4:8] == code.to_bytes(4, "big")

    # The listener.

    def opened(self, stream: Stream, head: RequestHead) -> None:
        self.heard.append(f"{stream.id} opened {head.path}")
        self.streams.append(stream)
        stream.listener = Listening(self, stream.id)

    def was_reset(self) -> None:
        self.heard.append("was reset")

    def acknowledged(self, ping: bytes) -> None:
        self.heard.append(f"acknowledged {ping!r}")


class Listening:
    """Notes what happens on one stream."""

    def __init__(self, client: Client, number: int) -> None:
        self._client = client
        self._number = number

    def received(self, data: bytes) -> None:
        self._client.bodies[self._number] = self._client.bodies.get(self._number, b"") + data

    def ended(self) -> None:
        self._client.heard.append(f"{self._number} ended")

    def drained(self) -> None:
        self._client.heard.append(f"{self._number} drained")

    def closed(self, *, by_client: bool) -> None:
        self._client.heard.append(f"{self._number} closed{' by the client' if by_client else ''}")


def reset_of(number: int, code: ErrorCode) -> Frame:
    return frames.RST_STREAM, 0, number, code.to_bytes(4, "big")


def test_a_call_and_its_answer() -> None:
    client = Client()
    stream = client.call(body=b"question")
    assert (client.heard, client.bodies) == (["1 opened /a/B", "1 ended"], {1: b"question"})
    outgoing = client.connection.outgoing
    outgoing.begin(stream, OK)
    outgoing.send(stream, b"answer")
    outgoing.finish(stream, DONE)
    assert client.hear() == [
        (frames.HEADERS, END_HEADERS, 1, OK),
        (frames.DATA, 0, 1, b"answer"),
        (frames.HEADERS, END_HEADERS | END_STREAM, 1, DONE),
    ]
    assert client.heard[-1] == "1 closed"
    assert not client.connection.streams


@given(st.lists(st.integers(1, 400)))
def test_it_does_not_matter_how_bytes_are_divided(cuts: list[int]) -> None:
    client, whole = Client(), Client()
    data = whole.headers(1) + frames.frame(frames.DATA, END_STREAM, 1, b"x" * 300) + whole.headers(3)
    whole.say(data)
    for cut in cuts:
        client.say(data[:cut])
        data = data[cut:]
    client.say(data)
    assert (client.heard, client.bodies) == (whole.heard, whole.bodies)


def test_an_answer_before_the_end_of_the_question_stops_the_client() -> None:
    client = Client()
    stream = client.call(has_ended=False)
    client.connection.outgoing.finish(stream, DONE)
    assert client.hear()[-1] == reset_of(1, ErrorCode.NO_ERROR)
    client.say(frames.frame(frames.DATA, END_STREAM, 1, b"on its way"))
    assert not client.hear()
    assert client.connection.failure is None


def test_data_waits_for_the_windows() -> None:
    client = Client()
    one, two = client.call(1), client.call(3)
    outgoing = client.connection.outgoing
    for stream in (one, two):
        outgoing.send(stream, bytes(50_000))
        outgoing.finish(stream, DONE)
    sent = client.hear()
    assert sum(len(payload) for kind, *_, payload in sent if kind == frames.DATA) == WINDOW_AT_START
    assert len(client.connection.streams) == 1, "the first was answered, the second waits for the connection's window"
    client.say(frames.window_update(0, 100_000))
    assert sum(len(payload) for kind, *_, payload in client.hear() if kind == frames.DATA) == 100_000 - WINDOW_AT_START
    assert not client.connection.streams


def test_a_window_of_a_byte_gets_a_byte() -> None:
    client = Client()
    client.say(frames.settings({frames.INITIAL_WINDOW_SIZE: 1}))
    stream = client.call()
    client.connection.outgoing.send(stream, b"abc")
    client.hear()
    assert client.heard[-1] == "1 ended"
    for letter in (b"b", b"c"):
        client.say(frames.window_update(1, 1))
        assert client.hear() == [(frames.DATA, 0, 1, letter)]
    assert client.heard[-1] == "1 drained"


def test_smaller_windows_count_from_now_on() -> None:
    client = Client()
    stream = client.call()
    client.connection.outgoing.send(stream, bytes(1_000))
    client.hear()
    client.say(frames.settings({frames.INITIAL_WINDOW_SIZE: 0}))
    client.connection.outgoing.send(stream, b"x")
    assert [kind for kind, *_ in client.hear()] == [frames.SETTINGS]
    client.say(frames.settings({frames.INITIAL_WINDOW_SIZE: 1_001}))
    assert client.hear()[-1] == (frames.DATA, 0, 1, b"x")


def test_large_answers_take_turns() -> None:
    client = Client()
    client.say(frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 24}) + frames.window_update(0, 1 << 24))
    streams = [client.call(number) for number in (1, 3)]
    client.hear()
    for stream in streams:
        client.connection.outgoing.send(stream, bytes(FLUSH_BYTES * 2))
    numbers = [number for _, _, number, _ in client.hear()]
    assert numbers.index(3) < len(numbers) - numbers[::-1].index(1) - 1, "the second does not wait for the first"


def test_a_stream_takes_64_kib_and_what_is_granted() -> None:
    client = Client()
    stream = client.call(has_ended=False)
    client.connection.grant(stream, 10)
    assert client.hear() == [(frames.WINDOW_UPDATE, 0, 1, (10).to_bytes(4, "big"))]
    client.say(frames.frame(frames.DATA, 0, 1, bytes(WINDOW_AT_START)) + frames.frame(frames.DATA, 0, 1, bytes(10)))
    assert len(client.bodies[1]) == WINDOW_AT_START + 10
    client.say(frames.frame(frames.DATA, 0, 1, b"x"))
    assert client.hear() == [reset_of(1, ErrorCode.FLOW_CONTROL_ERROR)]


def test_padding_is_no_data() -> None:
    client = Client()
    client.call(has_ended=False)
    client.say(frames.frame(frames.DATA, frames.PADDED, 1, b"\x03abc" + bytes(3)))
    assert client.bodies[1] == b"abc"
    assert client.hear() == [(frames.WINDOW_UPDATE, 0, 1, (4).to_bytes(4, "big"))]


def test_streams_beyond_the_limit_are_refused() -> None:
    client = Client(streams_max=1)
    client.call(1)
    client.say(client.headers(3))
    assert client.hear() == [reset_of(3, ErrorCode.REFUSED_STREAM)]
    client.say(frames.reset(1, ErrorCode.CANCEL))
    assert client.heard[-2:] == ["1 closed by the client", "was reset"]
    assert client.call(5).id == 5


def test_the_rest_waits_after_so_many_new_streams() -> None:
    client = Client()
    client.say(client.headers(1) + client.headers(3) + client.headers(5), streams_max=2)
    assert len(client.streams) == 2
    assert client.connection.frames.has_more
    client.say(b"")
    assert len(client.streams) == 3
    assert not client.connection.frames.has_more


def test_a_header_block_in_pieces() -> None:
    client = Client()
    block = hpack.Encoder().encode(REQUEST)
    client.say(frames.frame(frames.HEADERS, 0, 1, block[:1]))
    client.say(frames.frame(frames.CONTINUATION, 0, 1, block[1:2]))
    client.say(frames.frame(frames.CONTINUATION, END_HEADERS, 1, block[2:]))
    assert client.heard == ["1 opened /a/B"]


def test_who_leaves_takes_what_is_on_its_way_first() -> None:
    client = Client()
    client.connection.leave(finally_=False)
    assert client.hear()[-1][3][:4] == frames.NUMBER.pack(frames.STREAM_LAST)
    assert not client.connection.has_left
    client.call(1)
    client.connection.leave(finally_=True)
    assert client.hear()[-1][3][:4] == frames.NUMBER.pack(1)
    client.say(client.headers(3))
    assert client.hear() == [reset_of(3, ErrorCode.REFUSED_STREAM)]
    assert client.heard == ["1 opened /a/B", "1 ended"]


def test_pings_are_answered() -> None:
    client = Client()
    client.say(frames.frame(frames.PING, 0, 0, b"12345678"))
    assert client.hear() == [(frames.PING, ACK, 0, b"12345678")]
    client.connection.ping(b"abcdefgh")
    client.say(frames.frame(frames.PING, ACK, 0, b"abcdefgh"))
    assert client.heard == ["acknowledged b'abcdefgh'"]


def test_a_content_length_must_be_true() -> None:
    client = Client()
    client.say(client.headers(1, ("content-length", "3")) + frames.frame(frames.DATA, END_STREAM, 1, b"four"))
    assert client.hear() == [reset_of(1, ErrorCode.PROTOCOL_ERROR)]


def of_stream_1(client: Client, data: bytes) -> bytes:
    client.call(has_ended=False)
    return data


FAILURES: dict[str, tuple[Callable[[Client], bytes], ErrorCode]] = {
    "a frame beyond the limit": (lambda _: b"\xff\xff\xff" + bytes(6), ErrorCode.FRAME_SIZE_ERROR),
    "DATA on stream 0": (lambda _: frames.frame(frames.DATA, 0, 0), ErrorCode.PROTOCOL_ERROR),
    "DATA on an idle stream": (lambda _: frames.frame(frames.DATA, 0, 1), ErrorCode.PROTOCOL_ERROR),
    "an even stream": (lambda client: client.headers(2), ErrorCode.PROTOCOL_ERROR),
    "a stream of before": (lambda client: client.headers(5) + frames.reset(5, ErrorCode.CANCEL) + client.headers(3),
                           ErrorCode.STREAM_CLOSED),
    "a ping of 7 bytes": (lambda _: frames.frame(frames.PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    "a ping on a stream": (lambda _: frames.frame(frames.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "settings of 5 bytes": (lambda _: frames.frame(frames.SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
    "a window beyond 2^31": (lambda _: frames.settings({4: 1 << 31}), ErrorCode.FLOW_CONTROL_ERROR),
    "frames of 1 byte": (lambda _: frames.settings({5: 1}), ErrorCode.PROTOCOL_ERROR),
    "ENABLE_PUSH of 2": (lambda _: frames.settings({2: 2}), ErrorCode.PROTOCOL_ERROR),
    "a promise": (lambda _: frames.frame(frames.PUSH_PROMISE, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "an update by 0": (lambda _: frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
    "an update beyond 2^31": (lambda _: frames.window_update(0, (1 << 31) - 1), ErrorCode.FLOW_CONTROL_ERROR),
    "padding longer than its frame": (
        lambda client: of_stream_1(client, frames.frame(frames.DATA, frames.PADDED, 1, b"\x05abc")),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a continuation of nothing": (lambda _: frames.frame(frames.CONTINUATION, 0, 1), ErrorCode.PROTOCOL_ERROR),
    "a ping within a header block": (
        lambda client: client.headers(1, flags=0) + frames.frame(frames.PING, 0, 0, bytes(8)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "an endless header block": (
        lambda client: client.headers(1, flags=0) + frames.frame(frames.CONTINUATION, 0, 1, bytes(60_000)) * 2,
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "a reset of an idle stream": (lambda _: frames.reset(7, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
    "a stream that depends on itself": (
        lambda _: frames.frame(frames.PRIORITY, 0, 3, frames.NUMBER.pack(3) + b"\0"),
        ErrorCode.PROTOCOL_ERROR,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", FAILURES)
def test_what_breaks_a_rule_ends_the_connection(what: str) -> None:
    client = Client()
    data, code = FAILURES[what]
    client.say(data(client))
    assert client.ends_with(code)
    client.say(SETTINGS)
    assert not client.hear(), "nothing is taken any more"


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n\r\n", PREFACE + frames.frame(frames.PING, 0, 0, bytes(8))])
def test_a_connection_begins_with_the_preface_and_settings(start: bytes) -> None:
    client = Client.__new__(Client)
    connection = Connection(client, 1)
    connection.receive(start, 0.0)
    assert connection.failure is not None
    assert connection.failure.code is ErrorCode.PROTOCOL_ERROR


IDLE = {
    "ping": frames.frame(frames.PING, 0, 0, bytes(8)),
    "settings": SETTINGS,
    "priority": frames.frame(frames.PRIORITY, 0, 3, bytes(5)),
    "window update": frames.window_update(0, 1),
    "empty data": frames.frame(frames.DATA, 0, 1),
    "unknown": frames.frame(0x77, 0, 1),
    "reset of a closed stream": frames.reset(1, ErrorCode.CANCEL),
}


@pytest.mark.parametrize("kind", IDLE)
def test_frames_that_bring_no_call_further_are_limited(kind: str) -> None:
    client = Client()
    client.call(has_ended=False)
    for _ in range(IDLE_FRAMES_AT_ONCE // 100 + 1):
        client.say(IDLE[kind] * 100)
    assert client.ends_with(ErrorCode.ENHANCE_YOUR_CALM)


@pytest.mark.parametrize("kind", IDLE)
def test_a_few_of_them_for_hours_are_not(kind: str) -> None:
    client = Client()
    client.call(has_ended=False)
    for _ in range(IDLE_FRAMES_AT_ONCE // 100 + 10):
        client.now_s += 1.0
        client.say(IDLE[kind] * 100)
        client.hear()
    assert client.connection.failure is None


def test_each_part_of_an_answer_may_be_confirmed() -> None:
    client = Client()
    stream = client.call()
    for _ in range(IDLE_FRAMES_AT_ONCE):
        client.connection.outgoing.send(stream, b"x")
        client.hear()
        client.say(frames.window_update(0, 1) + frames.window_update(1, 1))
    assert client.connection.failure is None


def test_answers_that_go_out_together_are_confirmed_together() -> None:
    calls = 2 * IDLE_FRAMES_AT_ONCE
    client = Client(streams_max=calls)
    client.say(frames.window_update(0, 1 << 30))
    for number in range(calls):
        stream = client.call(2 * number + 1)
        client.connection.outgoing.send(stream, b"answer")
        client.connection.outgoing.finish(stream, DONE)
    client.hear()
    updates = b"".join(frames.window_update(2 * number + 1, 6) for number in range(calls))
    client.say(updates + frames.window_update(0, 6) * calls)
    while client.connection.frames.has_more:
        client.say(b"")
    assert client.connection.failure is None


@pytest.mark.parametrize("kind", ["settings", "priority", "empty data", "unknown"])
def test_only_what_answers_data_is_allowed_for_data(kind: str) -> None:
    client = Client()
    stream = client.call(has_ended=False)
    for _ in range(IDLE_FRAMES_AT_ONCE):
        client.connection.outgoing.send(stream, b"x")
        client.hear()
        client.say(frames.window_update(0, 1) + frames.window_update(1, 1))
    for _ in range(IDLE_FRAMES_AT_ONCE // 100 + 1):
        client.say(IDLE[kind] * 100)
    assert client.ends_with(ErrorCode.ENHANCE_YOUR_CALM)


def test_trailers_of_streams_that_were_reset_are_limited() -> None:
    client = Client()
    client.connection.reset(client.call(has_ended=False), ErrorCode.CANCEL)
    for _ in range(IDLE_FRAMES_AT_ONCE // 100 + 1):
        client.say(client.headers(1, flags=END_HEADERS | END_STREAM) * 100)
    assert client.ends_with(ErrorCode.ENHANCE_YOUR_CALM)


def test_streams_that_wait_for_the_connections_window_go_on_in_turns() -> None:
    client = Client()
    client.say(frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 20}))
    client.hear()
    streams = [client.call(number) for number in (1, 3, 5)]
    for stream in streams:
        client.connection.outgoing.send(stream, bytes(65_535))
    assert sum(len(payload) for kind, _, _, payload in client.hear() if kind == frames.DATA) == 65_535
    assert client.connection.outgoing.is_empty  # nothing is looked at until the window grows
    said = []
    for _ in range(2 * 4):
        client.say(frames.window_update(0, 16_384))
        said += [(number, len(payload)) for kind, _, number, payload in client.hear() if kind == frames.DATA]
    assert sum(size for _, size in said) == 2 * 65_535
    assert {number for number, _ in said[:3]} == {3, 5}


def test_a_client_with_a_smaller_table_hears_that_none_is_used() -> None:
    client = Client()
    client.say(frames.settings({frames.HEADER_TABLE_SIZE: 0}))
    client.hear()
    for number in (1, 3):
        stream = client.call(number)
        client.connection.outgoing.begin(stream, DONE)
        client.connection.outgoing.finish(stream, DONE)
    blocks = [payload for kind, _, _, payload in client.hear() if kind == frames.HEADERS]
    assert blocks == [b"\x20" + DONE, DONE, DONE, DONE]


def test_refused_streams_are_not_remembered_for_ever() -> None:
    client = Client(streams_max=0)
    for number in range(1, 2 * RESETS_REMEMBERED + 11, 2):
        client.say(client.headers(number))
        client.hear()
    assert len(client.connection._resets) <= RESETS_REMEMBERED
