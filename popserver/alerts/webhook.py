"""Tells a webhook of alerts: one POST for each event, in a thread of its own, so that a receiver delays nothing.

An answer of 200 to 299 accepts the event. Redirects are not followed, because they would take the event to an address
that no operator has given.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from popserver.alerts.told import AlertRow
from popserver.model.times import utc

TIMEOUT_S: Final = 10.0  # from the first packet to the status of the answer


class Receiver(NamedTuple):
    """Where events are sent: `url` of HTTP or HTTPS. secret: signs them; empty: they are not signed."""

    url: str
    secret: str = ""


class Sender(NamedTuple):
    """What events say of their sender. console: the address of the console, without a slash at its end; or empty."""

    server: str
    version: str
    console: str


def body_of(event: AlertRow, sender: Sender) -> dict[str, Any]:
    """The event as the receiver gets it (docs/alerts.md). Nothing of messages is in it."""
    at_ms = event.ended_at_ms if event.is_end and event.ended_at_ms is not None else event.began_at_ms
    return {
        "version": 1,
        "id": f"{event.alert_id}-{_word(event)}",
        "event": _word(event),
        "at": _time(at_ms),
        "server": sender.server,
        "alert": {
            "id": str(event.alert_id),
            "kind": event.kind,
            "namespace": event.namespace,
            "subject": event.subject,
            "sentence": event.sentence,
            "next_step": event.next_step,
            "began_at": _time(event.began_at_ms),
            "ended_at": _time(event.ended_at_ms) if event.is_end and event.ended_at_ms is not None else None,
            "link": sender.console + event.page if sender.console else None,
        },
    }


def _word(event: AlertRow) -> str:
    return "end" if event.is_end else "begin"


def _time(at_ms: int) -> str:
    return utc(at_ms).replace(" ", "T").replace("+00:00", "Z")


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """The value of the header `X-PopMQ-Signature`."""
    signed = timestamp.encode() + b"." + body
    return f"sha256={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"


class Webhook:
    """The receiver of a server's alerts."""

    def __init__(self, receiver: Receiver, sender: Sender, timeout_s: float = TIMEOUT_S) -> None:
        self._receiver = receiver
        self._sender = sender
        self._timeout_s = timeout_s
        self._at = urlsplit(receiver.url)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="popmq-alerts")
        self._connection: HTTPConnection | None = None

    @property
    def address(self) -> str:
        """The receiver, without the path and the query: these may have a secret."""
        return f"{self._at.scheme}://{self._at.netloc.rpartition('@')[2]}"

    async def tell(self, event: AlertRow, now_ms: int) -> str:
        """Send one event. Returns why it was not accepted; empty if it was."""
        body = json.dumps(body_of(event, self._sender), ensure_ascii=False).encode()
        answer = asyncio.wrap_future(self._thread.submit(self._post, body, self._headers(event, body, now_ms)))
        done, _ = await asyncio.wait([answer], timeout=self._timeout_s)
        if done:
            return answer.result()
        self._abort()
        return self._silence

    @property
    def _silence(self) -> str:
        return f"{self.address} has not answered within {self._timeout_s:g} s"

    async def close(self) -> None:
        """End a request that runs."""
        self._abort()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _headers(self, event: AlertRow, body: bytes, now_ms: int) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "user-agent": f"popmq/{self._sender.version}",
            "x-popmq-event": _word(event),
            "x-popmq-timestamp": (timestamp := str(now_ms // 1_000)),
        }
        if self._receiver.secret:
            headers["x-popmq-signature"] = signature(self._receiver.secret, timestamp, body)
        return headers

    def _post(self, body: bytes, headers: dict[str, str]) -> str:
        connection = self._connection = self._connect()
        path = (self._at.path or "/") + (f"?{self._at.query}" if self._at.query else "")
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
        except TimeoutError:
            return self._silence
        except (OSError, HTTPException, ValueError) as error:
            return f"{self.address} cannot be reached: {str(error) or type(error).__name__}"
        finally:
            self._connection = None
            connection.close()
        if 200 <= answer.status < 300:
            return ""
        rest = "; redirects are not followed, so give the address that it leads to" if answer.status // 100 == 3 else ""
        return f"{self.address} answered {answer.status} {answer.reason[:80]}{rest}"

    def _connect(self) -> HTTPConnection:
        host, port = self._at.hostname or "", self._at.port
        if self._at.scheme == "https":
            return HTTPSConnection(host, port, timeout=self._timeout_s, context=ssl.create_default_context())
        return HTTPConnection(host, port, timeout=self._timeout_s)

    def _abort(self) -> None:
        """End the connection under the thread that waits for it: the wait fails at once."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
