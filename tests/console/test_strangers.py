"""What comes from strangers."""

from __future__ import annotations

import pytest

from popproto.v2 import definition_pb2 as pb
from tests.console.site import Site
from tests.support.admin_server import AdminServer, named

EVIL = "<script>alert('1')</script>\"'><img src=x onerror=alert(2)>"


def test_hostile_bodies_names_and_reasons_are_text(site: Site, admin_server: AdminServer) -> None:
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=1, accept_message_types=[pb.NORMAL, pb.FIFO])
    admin_server.make_group("arrivals", history="all")
    body = f'{{"{EVIL[:24]}": ["</script><script>alert(3)</script>", "{{{{ 7919*7927 }}}}"]}}'.encode()
    admin_server.send("flights", EVIL, "m1", body=body, properties={"a<b>": EVIL}, tag="<b>x", message_group="<i>g</i>")
    for message in admin_server.receive("arrivals", "flights", 1):
        admin_server.give_up("arrivals", "flights", message)
    admin_server.receive("arrivals", "flights", 1)
    number = "1"
    for path in (
        "/",
        "/groups/arrivals",
        "/groups/arrivals?tab=message-groups",
        "/topics/flights",
        "/messages/m1",
        "/messages/m1?show=text",
        f"/messages?find={EVIL}",
        f"/messages?topic=flights&tag={EVIL}",
        f"/messages?topic={EVIL}",
        f"/groups?name={EVIL}",
        f"/groups/{EVIL}",
        f"/clients?name={EVIL}",
        f"/users?who={EVIL}&name={EVIL}",
        "/dead-letters/arrivals",
        f"/dead-letters/arrivals?reason={EVIL}&tag={EVIL}&where={EVIL}",
        f"/dead-letters/arrivals/{number}",
        f"/scheduled?topic={EVIL}",
    ):
        text = site.browser.get(path).text
        for part in ("<script>alert", "<img src=x", "<b>x", "<i>g</i>", "a<b>", "<script>al", "62773913"):
            assert part not in text, (path, part)


@pytest.mark.parametrize(
    "path",
    [
        "/messages?since=1h&topic=x",
        "/messages?until=9999999999999d&topic=x",
        "/groups?from=x",
        "/dead-letters/g?after=x",
        "/topics/t?queue=x",
    ],
)
def test_wrong_addresses_are_refused_in_a_sentence(site: Site, path: str) -> None:
    answer = site.browser.get(path)
    assert answer.status_code in (200, 400, 404), answer.text
    assert "Internal Server Error" not in answer.text


def test_forms_that_are_too_large(site: Site) -> None:
    answer = site.browser.post("/topics", content=b"a" * 7 * 1024 * 1024)
    assert answer.status_code == 413
    answer = site.browser.post("/topics", content="&".join(f"a{i}=1" for i in range(2_000)))
    assert (answer.status_code, "1200 fields" in answer.text) == (400, True)


def test_a_page_that_is_not_there(site: Site) -> None:
    assert site.browser.get("/nowhere").status_code == 404
    assert site.browser.get("/static/../app.py").status_code == 404
