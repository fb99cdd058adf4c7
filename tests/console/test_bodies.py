"""Bodies on pages: what is hostile, damaged or large is shown as far as it goes."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable

import pytest

from popclient.message import MessageView
from popconsole.bodies import DEPTH_MAX, NODES_MAX, PAGE_MAX, Node, body_of, excerpt, unpacked
from popproto.v2 import definition_pb2 as pb
from tests.console.site import Site
from tests.support.admin_server import AdminServer, named

MIB = 1024 * 1024


def a_message(body: bytes, *, is_packed: bool = False) -> MessageView:
    encoding = pb.GZIP if is_packed else pb.IDENTITY
    system = pb.SystemProperties(message_id="m0", body_encoding=encoding)
    return MessageView.unheld(pb.Message(topic=named("flights"), body=body, system_properties=system))


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """64 KiB that unpack to 64 MiB."""
    return gzip.compress(bytes(64 * MIB))


def die(admin_server: AdminServer, body: bytes, encoding: pb.Encoding.ValueType = pb.IDENTITY) -> None:
    """One message that group `arrivals` gives up."""
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=1, accept_message_types=[pb.NORMAL])
    admin_server.make_group("arrivals")
    admin_server.send("flights", "m0", body=body, body_encoding=encoding)
    for message in admin_server.receive("arrivals", "flights"):
        admin_server.give_up("arrivals", "flights", message)


def test_a_packed_body_is_unpacked_no_further_than_it_is_shown(bomb: bytes) -> None:
    message = a_message(bomb, is_packed=True)
    tracemalloc.start()
    try:
        shown, line = body_of(message), excerpt(message)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 8 * PAGE_MAX
    assert (shown.is_too_large, shown.octets, shown.damaged) == (True, PAGE_MAX, False)
    assert line.startswith("0x0000")


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
@pytest.mark.parametrize("size", [0, 1, 360, PAGE_MAX - 1, PAGE_MAX])
def test_a_packed_body_that_fits_is_whole(pack: Callable[[bytes], bytes], size: int) -> None:
    shown = body_of(a_message(pack(b"a" * size), is_packed=True))
    assert (shown.octets, shown.is_too_large, shown.damaged) == (size, False, False)


@pytest.mark.parametrize("stored", [b"is no gzip", gzip.compress(bytes(100), mtime=0)[:-9], b""])
def test_a_packed_body_that_does_not_unpack(stored: bytes) -> None:
    message = a_message(stored, is_packed=True)
    assert (body_of(message).damaged, excerpt(message)) == (True, "(damaged GZIP)")
    assert unpacked(message, PAGE_MAX).raw == stored


def test_the_pages_of_a_body_that_is_too_large(site: Site, admin_server: AdminServer, bomb: bytes) -> None:
    die(admin_server, bomb, pb.GZIP)
    assert "too large when unpacked" in site.get("/messages/m0")
    page = site.get("/dead-letters/arrivals/1")
    assert "too large when unpacked" in page and '<textarea name="body"' not in page
    form = {"form_on": "/dead-letters/arrivals/1", "body": "b"}
    assert "cannot be changed" in site.post("/dead-letters/arrivals/1/repair", 400, **form).text
    for path in ("/dead-letters/arrivals", "/topics/flights"):
        assert "0x0000" in site.get(path)


def test_the_export_gives_a_body_that_is_too_large_as_it_is_stored(
    site: Site, admin_server: AdminServer, bomb: bytes
) -> None:
    die(admin_server, bomb, pb.GZIP)
    row = json.loads(site.get("/dead-letters/arrivals/export"))
    assert len(row["body_base64"]) < 2 * len(bomb)


@pytest.mark.parametrize(
    "text",
    [
        r'["\ud800"]',
        r'{"\udfff": 1}',
        "[" * 960 + "]" * 960,
        "[" * 100_000,
        '{"a":' * (DEPTH_MAX + 1) + "1" + "}" * (DEPTH_MAX + 1),
    ],
    ids=["surrogate", "surrogate as a name", "deep", "very deep", "a little too deep"],
)
def test_json_that_cannot_be_drawn_is_text(site: Site, admin_server: AdminServer, text: str) -> None:
    die(admin_server, text.encode())
    for page in (site.get("/messages/m0"), site.get("/dead-letters/arrivals/1")):
        assert text[:60_000] in page and "<details open><summary>{" not in page
    assert body_of(a_message(text.encode())).kinds == ["text", "hex"]


def test_json_as_deep_as_is_drawn(site: Site, admin_server: AdminServer) -> None:
    die(admin_server, ("[" * DEPTH_MAX + "7" + "]" * DEPTH_MAX).encode())
    for page in (site.get("/messages/m0"), site.get("/dead-letters/arrivals/1")):
        assert page.count("<summary>[ 1 ]</summary>") == DEPTH_MAX


@pytest.mark.parametrize("value", [[[]] * 80_000, [[[0] * 5] * 100] * 100, [{"a": 1, "b": [2]}] * 5_000])
def test_a_page_has_a_tree_of_so_many_parts_and_no_more(site: Site, admin_server: AdminServer, value: object) -> None:
    die(admin_server, json.dumps(value, separators=(",", ":")).encode())
    tree = body_of(desk_message(admin_server)).tree
    assert tree is not None and 150 < size_of(tree) <= NODES_MAX
    for page in (site.get("/messages/m0"), site.get("/dead-letters/arrivals/1")):
        assert page.count('<div class="pair">') < NODES_MAX and " more</div>" in page
        assert len(page) < 1_000_000


def desk_message(admin_server: AdminServer) -> MessageView:
    return MessageView.unheld(admin_server.call("GetMessage", message_id="m0").message)


def size_of(node: Node) -> int:
    return 1 + sum(map(size_of, node.parts))


def test_news_of_a_page_are_without_the_body(site: Site, admin_server: AdminServer) -> None:
    die(admin_server, b'["a body"]')
    page = site.get("/messages/m0", headers={"hx-request": "true"})
    assert 'id="life"' in page and "a body" not in page
