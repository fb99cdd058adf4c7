"""How a client reaches its server: addresses, credentials, TLS, patience."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from popclient._arguments import MILLISECOND, ZERO, as_seconds, require_function, require_text, require_whole

DEFAULT_PORT: Final = 8081
DEFAULT_ENDPOINTS: Final = "127.0.0.1:8081"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of a server. `host` is a name or an IP literal (IPv6 without brackets)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Tls:
    """How to speak TLS.

    Without `ca`, gRPC's own root certificates count. `ca`, `cert` and `key` are PEM: a path or the bytes; `cert` and
    `key` identify this client (mutual TLS). `insecure` accepts any certificate that has not expired, as the official
    Java, Go, C++ and C# clients do: it encrypts, but does not stop a man in the middle. `server_name` is compared with
    the certificate in place of the host.
    """

    ca: str | Path | bytes | None = None
    cert: str | Path | bytes | None = None
    key: str | Path | bytes | None = field(default=None, repr=False)
    insecure: bool = False
    server_name: str | None = None

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key"):
            if (given := getattr(self, name)) is not None and not isinstance(given, str | Path | bytes):
                raise TypeError(f"{name} is of type {type(given).__name__}; it must be a path, or PEM as bytes")
        if not isinstance(self.insecure, bool):
            raise TypeError(f"insecure is {self.insecure!r}; it must be True or False")
        if self.server_name is not None:
            require_text("server_name", self.server_name)
        if (self.cert is None) != (self.key is None):
            raise ValueError("a certificate and its key belong together: give Tls both cert and key, or neither")
        if self.insecure and self.ca is not None:
            raise ValueError("Tls(insecure=True) trusts any certificate, so ca has no effect; leave one of them out")


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """How a client reaches its server.

    endpoints: "host:port;host:port"; the first one that answers is used (requirement N1).
        A missing port is 8081. Empty: environment ROCKETMQ_ENDPOINTS, else 127.0.0.1:8081.
        "https://" before a host needs `tls`.
    namespace: of all topics and groups; the server keeps namespaces apart.
    access_key, access_secret: sign every call when both are set. Empty: ROCKETMQ_ACCESS_KEY, ROCKETMQ_ACCESS_SECRET.
    session_token: sent with every call when set.
    tls: False, True (public roots), or a `Tls`.
    request_timeout, wait_for_server, close_timeout: seconds, or a timedelta, which becomes seconds.
    request_timeout: time that one request may take, reconnecting included; a long poll may take three seconds more
        than its await duration.
    wait_for_server: time that a client waits at its first call for a server that is not up yet. Then it raises
        Unreachable; with 0 it does so after `request_timeout`. What a server or a proxy refuses is raised at once.
    wait_for_topic: True: a consumer starts although topics do not exist yet, says so once in its log, and consumes each
        as soon as it is made, from its first message on. False: it raises NotFound. None: as False, but True for a
        QueuePushConsumer, as in RocketMQ 4.
    max_attempts: how often a message is tried before `send` fails, the first time included.
    close_timeout: time that closing may take.
    tracing: spans in a process with an OpenTelemetry tracer provider; see popclient.otel. "link": processing a message
        is a trace of its own, linked to that of its sending; "child": it continues the sender's; "off": no spans.
    on_disconnect, on_reconnect: called when the session with the server is lost (with the reason) and when it is back.
        They run in the client's event loop and must not block.
    """

    endpoints: str = ""
    namespace: str = ""
    access_key: str = ""
    access_secret: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    tls: bool | Tls = False
    request_timeout: float = 3.0
    wait_for_server: float = 0.0
    wait_for_topic: bool | None = None
    max_attempts: int = 3
    close_timeout: float = 5.0
    tracing: Literal["link", "child", "off"] = "link"
    on_disconnect: Callable[[Exception], None] | None = None
    on_reconnect: Callable[[], None] | None = None

    if TYPE_CHECKING:
        # What the fields are made of: a type checker would allow no timedelta for a float.
        def __init__(
            self,
            endpoints: str = "",
            namespace: str = "",
            access_key: str = "",
            access_secret: str = "",
            session_token: str = "",
            tls: bool | Tls = False,
            request_timeout: float | timedelta = 3.0,
            wait_for_server: float | timedelta = 0.0,
            wait_for_topic: bool | None = None,
            max_attempts: int = 3,
            close_timeout: float | timedelta = 5.0,
            tracing: Literal["link", "child", "off"] = "link",
            on_disconnect: Callable[[Exception], None] | None = None,
            on_reconnect: Callable[[], None] | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        _set(self, "endpoints", self.endpoints or os.environ.get("ROCKETMQ_ENDPOINTS", "") or DEFAULT_ENDPOINTS)
        _set(self, "access_key", self.access_key or os.environ.get("ROCKETMQ_ACCESS_KEY", ""))
        _set(self, "access_secret", self.access_secret or os.environ.get("ROCKETMQ_ACCESS_SECRET", ""))
        for name in ("endpoints", "namespace", "access_key", "access_secret", "session_token"):
            _require_str(name, getattr(self, name))
        require_text("endpoints", self.endpoints)
        parse_endpoints(self.endpoints)
        require_function("on_disconnect", self.on_disconnect)
        require_function("on_reconnect", self.on_reconnect)
        if not isinstance(self.tls, bool | Tls):
            raise TypeError(
                f"tls is {self.tls!r}; it must be False, True (public roots) or a Tls, such as Tls(ca='server.pem')"
            )
        if not self.tls and "https://" in self.endpoints:
            raise ValueError(
                f"endpoints {self.endpoints!r} ask for TLS, but tls is off; set tls=True, or write http://"
            )
        for name in ("namespace", "access_key", "session_token"):
            _fit_for_header(name, getattr(self, name))
        for name, least in (("request_timeout", MILLISECOND), ("wait_for_server", ZERO), ("close_timeout", ZERO)):
            _set(self, name, as_seconds(name, getattr(self, name), least))
        if self.wait_for_topic not in (None, True, False):
            raise TypeError(f"wait_for_topic is {self.wait_for_topic!r}; it must be True, False or None")
        require_whole("max_attempts", self.max_attempts)
        if self.tracing not in ("link", "child", "off"):
            raise ValueError(f"tracing is {self.tracing!r}; it must be 'link', 'child' or 'off'")

    @classmethod
    def of(cls, given: str | ClientConfig | None) -> ClientConfig:
        """The config of a constructor's argument: endpoints, a config, or None."""
        return given if isinstance(given, ClientConfig) else cls(endpoints=given or "")

    def with_callbacks(
        self, on_disconnect: Callable[[Exception], None] | None, on_reconnect: Callable[[], None] | None
    ) -> ClientConfig:
        """This config, with the given callbacks in place of its own."""
        return replace(
            self,
            on_disconnect=on_disconnect or self.on_disconnect,
            on_reconnect=on_reconnect or self.on_reconnect,
        )


def _set(config: ClientConfig, name: str, value: object) -> None:
    object.__setattr__(config, name, value)


def _require_str(name: str, value: object) -> None:
    """Never shows the value: it may be a secret."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is of type {type(value).__name__}; it must be a str")


def _fit_for_header(name: str, value: str) -> None:
    """Never shows the value: it may be a secret."""
    for position, character in enumerate(value, 1):
        if not " " <= character <= "~":
            raise ValueError(
                f"character {position} of {len(value)} in {name} is U+{ord(character):04X}; a header carries printable"
                " ASCII alone: take it out (a line break, where the value was read from a file)"
            )


def parse_endpoints(text: str) -> list[Endpoint]:
    """ "a:1;b:2" as endpoints, in order.

    >>> [str(e) for e in parse_endpoints("a:1; b ;[::1]:7;::1")]
    ['a:1', 'b:8081', '[::1]:7', '[::1]:8081']
    """
    found = [_parse_endpoint(part.strip(), text) for part in text.split(";") if part.strip()]
    if not found:
        raise ValueError(f"endpoints {text!r} name no server; write them as host:port;host:port")
    return found


def _parse_endpoint(part: str, text: str) -> Endpoint:
    host, port = _split(part.removeprefix("http://").removeprefix("https://").rstrip("/"))
    if not host or any(c in host for c in "/[] ,") or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{part!r} in endpoints {text!r} is no host:port (port 1 to 65535, several separated by ';')")
    return Endpoint(host, int(port))


def _split(part: str) -> tuple[str, str]:
    if part.startswith("["):
        host, _, rest = part[1:].partition("]")
        return host, rest.removeprefix(":") or str(DEFAULT_PORT)
    if part.count(":") > 1:
        return part, str(DEFAULT_PORT)
    host, _, port = part.partition(":")
    return host, port or str(DEFAULT_PORT)
