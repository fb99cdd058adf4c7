"""One event to a real receiver: what it gets, and what counts as accepted."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from popserver.alerts.told import AlertRow
from popserver.alerts.webhook import Receiver, Sender, Webhook
from tests.alerts.receiver import WebhookServer, a_webhook
from tests.support.running_broker import until

AT = 1_700_000_000_250
SENDER = Sender("mq.example:8081", "1.2.3", "https://mq.example/popmq")
BEGIN = AlertRow(
    17, "dead_letters", "", "billing", "3 dead letters.", "Look.", "/dead-letters/billing", AT, None, 0, ""
)
END = BEGIN._replace(ended_at_ms=AT + 60_000, told=1)


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    with a_webhook() as found:
        yield found


@pytest.fixture
async def webhook(server: WebhookServer) -> AsyncIterator[Webhook]:
    made = Webhook(Receiver(server.url, "s3cret"), SENDER, timeout_s=0.5)
    yield made
    await made.close()


async def test_an_event_has_the_documented_shape(server: WebhookServer, webhook: Webhook) -> None:
    assert await webhook.tell(BEGIN, AT + 999) == ""
    assert await webhook.tell(END, AT + 60_000) == ""
    begun, ended = server.got
    assert begun.path == "/hook?token=t0ken"
    assert begun.event == {
        "version": 1,
        "id": "17-begin",
        "event": "begin",
        "at": "2023-11-14T22:13:20.250Z",
        "server": "mq.example:8081",
        "alert": {
            "id": "17",
            "kind": "dead_letters",
            "namespace": "",
            "subject": "billing",
            "sentence": "3 dead letters.",
            "next_step": "Look.",
            "began_at": "2023-11-14T22:13:20.250Z",
            "ended_at": None,
            "link": "https://mq.example/popmq/dead-letters/billing",
        },
    }
    assert (ended.event["id"], ended.event["at"]) == ("17-end", "2023-11-14T22:14:20.250Z")
    assert ended.event["alert"] == begun.event["alert"] | {"ended_at": "2023-11-14T22:14:20.250Z"}
    assert begun.headers["content-type"] == "application/json"
    assert begun.headers["user-agent"] == "popmq/1.2.3"
    assert begun.headers["x-popmq-event"] == "begin"


async def test_the_signature_is_of_time_and_body(server: WebhookServer, webhook: Webhook) -> None:
    await webhook.tell(BEGIN, AT)
    (got,) = server.got
    assert got.headers["x-popmq-timestamp"] == str(AT // 1_000)
    wanted = hmac.new(b"s3cret", f"{AT // 1_000}.".encode() + got.body, hashlib.sha256).hexdigest()
    assert got.headers["x-popmq-signature"] == f"sha256={wanted}"


async def test_the_page_verifies_as_documented(server: WebhookServer, webhook: Webhook) -> None:
    page = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text()
    names: dict[str, object] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    await webhook.tell(BEGIN, AT)
    headers = server.got[0].headers
    given = ("s3cret", headers["x-popmq-timestamp"], server.got[0].body, headers["x-popmq-signature"])
    check = names["is_from_popmq"]
    assert callable(check)
    assert check(*given)
    assert not check("another", *given[1:])
    assert not check(given[0], "1", *given[2:])


async def test_without_a_secret_and_a_console_there_is_neither_signature_nor_link(server: WebhookServer) -> None:
    webhook = Webhook(Receiver(server.url), Sender("mq", "1", ""))
    assert await webhook.tell(BEGIN, AT) == ""
    await webhook.close()
    assert "x-popmq-signature" not in server.got[0].headers
    assert server.got[0].event["alert"]["link"] is None


@pytest.mark.parametrize("status", [200, 204, 299])
async def test_what_is_accepted(server: WebhookServer, webhook: Webhook, status: int) -> None:
    server.answers = [status]
    assert await webhook.tell(BEGIN, AT) == ""


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_what_is_refused(server: WebhookServer, webhook: Webhook, status: int) -> None:
    server.answers = [status]
    failure = await webhook.tell(BEGIN, AT)
    assert failure.startswith(f"http://127.0.0.1:{server.port} answered {status}")
    assert "t0ken" not in failure, "the address may have a secret"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(server: WebhookServer, webhook: Webhook, status: int) -> None:
    server.answers, server.location = [status], f"http://127.0.0.1:{server.port}/elsewhere"
    assert "redirects are not followed" in await webhook.tell(BEGIN, AT)
    assert [each.path for each in server.got] == ["/hook?token=t0ken"]


@pytest.mark.parametrize("answer", [None, "drip"], ids=["silent", "slow"])
async def test_a_receiver_that_hangs_delays_nothing(
    server: WebhookServer, webhook: Webhook, answer: str | None
) -> None:
    server.answers = [answer, 204]
    telling = asyncio.create_task(webhook.tell(BEGIN, AT))
    turns = 0
    while not telling.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 50, "the event loop goes on"
    assert "has not answered within 0.5 s" in telling.result()
    assert await webhook.tell(BEGIN, AT) == "", "the thread is free again"


async def test_nobody_listens(server: WebhookServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    webhook = Webhook(Receiver(f"http://127.0.0.1:{port}/"), SENDER)
    assert "cannot be reached: " in await webhook.tell(BEGIN, AT)
    await webhook.close()


async def test_a_plain_receiver_does_not_speak_tls(server: WebhookServer) -> None:
    webhook = Webhook(Receiver(server.url.replace("http://", "https://")), SENDER, timeout_s=2)
    assert "cannot be reached: " in await webhook.tell(BEGIN, AT)
    assert server.got == []
    await webhook.close()


async def test_closing_ends_a_request(server: WebhookServer) -> None:
    server.answers = [None]
    webhook = Webhook(Receiver(server.url), SENDER, timeout_s=60)
    telling = asyncio.create_task(webhook.tell(BEGIN, AT))
    await until(lambda: bool(server.got))
    await webhook.close()
    async with asyncio.timeout(10):
        assert "cannot be reached" in await telling
