"""The options about the server, which all sources and the sink share."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from popclient.config import ClientConfig, Tls
from popclient.spark.options import Option, OptionReader

# The options that `server_of` reads.
SERVER_OPTIONS: Final = (
    "endpoints",
    "namespace",
    "accessKey",
    "accessSecret",
    "sessionToken",
    "tls",
    "tlsCa",
    "tlsCert",
    "tlsKey",
    "tlsServerName",
    "requestTimeout",
)
REQUEST_TIMEOUT_MS: Final = 30_000
_TLS: Final = ("off", "on", "insecure")


def server_of(given: OptionReader) -> ClientConfig:
    """The server's configuration, with a timeout in which it may restart; raises `ValueError` with the option.

    Access keys that are not given are taken from the environment of this process, not of the workers.
    """
    endpoints = given.needed("endpoints", "give the server's host:port, or several separated by ';'")
    if "@" in endpoints:  # later errors quote endpoints, which must have no password then
        raise given.refuse(
            "endpoints", "give only the server's host:port; give keys with the options accessKey and accessSecret"
        )
    timeout_ms = given.duration_ms("requestTimeout", REQUEST_TIMEOUT_MS, least=100)
    try:
        config = ClientConfig(
            endpoints=endpoints,
            namespace=given.text("namespace") or "",
            access_key=given.text("accessKey") or "",
            access_secret=given.text("accessSecret") or "",
            session_token=given.text("sessionToken") or "",
            tls=_tls(given),
            request_timeout=timeout_ms / 1_000,
            max_attempts=10,
            tracing="off",
        )
    except ValueError as refusal:
        raise ValueError(f"the options about the server are wrong: {refusal}") from None
    if bool(config.access_key) != bool(config.access_secret):
        has, lacks = ("accessKey", "accessSecret") if config.access_key else ("accessSecret", "accessKey")
        raise ValueError(
            f"option {lacks} is missing, and without it {has} signs no call; give both, as options or as"
            f" ROCKETMQ_ACCESS_KEY and ROCKETMQ_ACCESS_SECRET, or neither"
        )
    return config


def _tls(given: OptionReader) -> bool | Tls:
    ca, cert, key = (_path(given, name) for name in ("tlsCa", "tlsCert", "tlsKey"))
    server_name = given.text("tlsServerName")
    named = ca or cert or key or server_name
    how = given.choice("tls", "on" if named else "off", _TLS)
    if how == "off":
        if named:
            raise given.refuse("tls", "with tlsCa, tlsCert, tlsKey or tlsServerName give on or insecure")
        return False
    return Tls(ca=ca, cert=cert, key=key, insecure=how == "insecure", server_name=server_name)


def _path(given: OptionReader, name: str) -> str | None:
    """An absolute path, because workers may have another working directory."""
    written = given.text(name)
    return None if written is None else str(Path(written).absolute())


SERVER: Final = Option(SERVER_OPTIONS, server_of)
