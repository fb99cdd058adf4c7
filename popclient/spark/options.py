"""The options of sources and of the sink: tables of allowed options, and a reader of the given ones.

Each mode has one table: for each field its option, with kind, default, limits and refusal. A refusal has the option,
its value and what is allowed, and shows no secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from popclient._arguments import parse_duration_ms
from popclient.config import ClientConfig, Tls

_SECONDS: Final = re.compile(r"\d+(?:\.\d+)?")
_SECRET: Final = re.compile("secret|token|passw|pwd", re.IGNORECASE)
# As in a URL or in a connection string. A password may have any character, also one that should be escaped.
_SECRET_PARAMETER: Final = re.compile(rf"(\w*(?:{_SECRET.pattern})\w*\s*=)[^&]*", re.IGNORECASE)
_USER: Final = re.compile(r"(:/*).*@", re.DOTALL)
BIGINT_MAX: Final = 2**63 - 1
# What other sources call it: those of Kafka, of RocketMQ and of Pulsar for Spark, and clients of Kafka.
_ELSEWHERE: Final = {
    "bootstrap.servers": "endpoints",
    "bootstrapservers": "endpoints",
    "brokers": "endpoints",
    "nameserver": "endpoints",
    "service.url": "endpoints",
    "assign": "topic",
    "topics": "topic",
    "topicspattern": "topicsPattern",
    "group": "consumerGroup",
    "group.id": "consumerGroup",
    "groupid": "consumerGroup",
    "groupidprefix": "consumerGroup",
    "predefinedsubscription": "consumerGroup",
    "subscription": "consumerGroup",
    "auto.offset.reset": "startingOffsets",
    "startingtime": "startingTimestamp",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingtime": "endingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "minoffsetspertrigger": "maxOffsetsPerTrigger",
    "maxbytespertrigger": "maxOffsetsPerTrigger",
    "max.poll.records": "maxOffsetsPerTrigger",
    "maxfilespertrigger": "maxOffsetsPerTrigger",
    "maxoffsetspertrigger": "maxRowsPerTrigger",
    "maxmessagespertrigger": "maxRowsPerTrigger",
    "startingoffsets": "startingId",
    "endingoffsets": "endingId",
    "minpartitions": "numPartitions",
    "jdbcurl": "url",
    "dbtable": "view",
    "sasl.jaas.config": "accessKey",
    "sasl.username": "accessKey",
    "sasl.password": "accessSecret",
    "user": "accessKey",
    "username": "accessKey",
    "password": "accessSecret",
    "security.protocol": "tls",
    "ssl.truststore.location": "tlsCa",
    "request.timeout.ms": "requestTimeout",
}


class OptionReader:
    """The options of one source or sink by their names; upper and lower case are the same, as Spark changes it.

    aliases: from another name of an option to its own name. Raises `ValueError` if both are given, and differ.
    """

    def __init__(self, options: Mapping[str, str], aliases: Mapping[str, str] | None = None) -> None:
        meant = {alias.lower(): name for alias, name in (aliases or {}).items()}
        self._values: dict[str, str] = {}
        for written, value in sorted(options.items(), key=lambda option: option[0].lower() in meant):
            name = meant.get(written.lower(), written).lower()
            if self._values.setdefault(name, value) != value:
                raise ValueError(
                    f"option {written}={_shown(written, value)} says otherwise than {meant[written.lower()]}="
                    f"{_shown(name, self._values[name])}, which it is another name of; give one of them"
                )

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def refuse_others(self, allowed: Iterable[str]) -> None:
        """Raises `ValueError` for the first option that is not allowed."""
        by_lower = {name.lower(): name for name in allowed}
        for name, value in self._values.items():
            if name not in by_lower:
                near = _near(name, by_lower)
                alike = "" if near is None else f"did you mean {near}? "
                names = ", ".join(by_lower.values())
                raise ValueError(f"option {name}={_shown(name, value)} is unknown; {alike}allowed are {names}")

    def refuse_near(self, *wanted: str) -> None:
        """Raises `ValueError` for the first option that another source calls so, or that is nearly written so."""
        for name, value in self._values.items():
            if (near := _near(name, {each.lower(): each for each in wanted})) is not None:
                raise ValueError(f"option {name}={_shown(name, value)} is unknown; did you mean {near}?")

    def refuse(self, name: str, allowed: str) -> ValueError:
        """The error for an option's value; `allowed`: what to give instead."""
        value = self._values.get(name.lower())
        if value is None:
            return ValueError(f"option {name} is missing; {allowed}")
        return ValueError(f"option {name}={_shown(name, value)} is not allowed; {allowed}")

    def text(self, name: str, default: str | None = None) -> str | None:
        """The value as given, stripped; raises if it is blank."""
        value = self._values.get(name.lower())
        if value is None:
            return default
        if not value.strip():
            raise self.refuse(name, "it is blank: give a value, or leave the option out")
        return value.strip()

    def needed(self, name: str, what: str) -> str:
        """The value; raises if it is missing. what: what to give, for the error."""
        value = self.text(name)
        if value is None:
            raise self.refuse(name, what)
        return value

    def number(self, name: str, default: int | None, least: int = 0, most: int = BIGINT_MAX) -> int | None:
        value = self.text(name)
        if value is None:
            return default
        allowed = f"give a whole number from {least}" + ("" if most == BIGINT_MAX else f" to {most}")
        if not re.fullmatch(r"-?[0-9]+", value) or not least <= int(value) <= most:
            raise self.refuse(name, allowed)
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise self.refuse(name, "give true or false")
        return value.lower() == "true"

    def choice(self, name: str, default: str, allowed: Collection[str]) -> str:
        """The allowed value that equals the given one but for upper and lower case."""
        value = self.text(name)
        if value is None:
            return default
        for each in allowed:
            if each.lower() == value.lower():
                return each
        raise self.refuse(name, f"give {' or '.join(allowed)}")

    def duration_ms(self, name: str, default: int, least: int = 0, most: int = BIGINT_MAX) -> int:
        """Milliseconds, from `500ms`, `10s`, `5m`, `2h`, `1h30m`, or a number of seconds."""
        value = self.text(name)
        if value is None:
            return default
        try:
            duration_ms = parse_duration_ms(f"{value}s" if _SECONDS.fullmatch(value) else value)
        except ValueError:
            duration_ms = -1
        if not least <= duration_ms <= most:
            limit = "" if most == BIGINT_MAX else f" to {most} ms"
            raise self.refuse(name, f"give a duration such as 500ms, 10s, 5m or 2h, from {least} ms{limit}")
        return duration_ms

    def time_ms(self, name: str) -> int | None:
        """Epoch milliseconds, given as such or as ISO 8601 with a time zone."""
        value = self.text(name)
        if value is None:
            return None
        if re.fullmatch("[0-9]+", value) and int(value) <= BIGINT_MAX:
            return int(value)
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            time = None
        if time is None or time.tzinfo is None:
            raise self.refuse(name, "give epoch milliseconds, or a time with its zone such as 2013-02-08T00:00:00Z")
        return round(time.timestamp() * 1_000)

    def names(self, name: str) -> tuple[str, ...]:
        """Names separated by commas, each once and in order; empty if the option is missing."""
        value = self.text(name)
        if value is None:
            return ()
        parts = [part.strip() for part in value.split(",")]
        if "" in parts:
            raise self.refuse(name, "one of the names is blank: give names separated by commas")
        return tuple(dict.fromkeys(parts))


def shown(value: str) -> str:
    """The value as errors quote it: without user and password of a URL, and without parameters that are secrets."""
    hidden = _SECRET_PARAMETER.sub(lambda found: found[1] + ("***@" if "@" in found[0] else "***"), value)
    return repr(_USER.sub(r"\1***@", hidden))


def _near(name: str, by_lower: Mapping[str, str]) -> str | None:
    """The option that is meant by this name: what another source calls so, or what is written nearly so."""
    plain = name.lower().removeprefix("kafka.").removeprefix("rocketmq.").removeprefix("pulsar.")
    if plain in by_lower:
        return by_lower[plain]
    meant = _ELSEWHERE.get(plain, "").lower()
    if meant in by_lower:
        return by_lower[meant]
    return next((by_lower[each] for each in get_close_matches(plain, by_lower, 1)), None)


def _shown(name: str, value: str) -> str:
    return "***" if _SECRET.search(name) else shown(value)


# ---- Tables of options ----


class Option(NamedTuple):
    """One option, or several that are read together.

    names: as users write them. read: returns the value; raises `ValueError` with the option.
    """

    names: tuple[str, ...]
    read: Callable[[OptionReader], Any]


class OptionTable(NamedTuple):
    """The options of one mode.

    fields: the option of each field, in the order of their checks. aliases: see OptionReader. elsewhere: options that
    are allowed here and read elsewhere. of_spark: options that Spark adds.
    """

    fields: Mapping[str, Option]
    aliases: Mapping[str, str] = {}
    elsewhere: tuple[str, ...] = ("mode",)
    of_spark: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All allowed options, each once."""
        read = (name for each in self.fields.values() for name in each.names)
        return tuple(dict.fromkeys((*self.elsewhere, *read, *self.of_spark)))

    def read(self, options: Mapping[str, str]) -> dict[str, Any]:
        """The value of each field. Raises `ValueError` with the option, its value and what is allowed."""
        given = OptionReader(options, self.aliases)
        given.refuse_others(self.names)
        return {field: option.read(given) for field, option in self.fields.items()}


def special(read: Callable[[OptionReader], Any], *names: str) -> Option:
    """Options with their own function."""
    return Option(names, read)


def text(name: str, default: str | None = None) -> Option:
    return Option((name,), lambda given: given.text(name, default))


def needed(name: str, what: str) -> Option:
    """A text that must be given. what: what to give, for the error."""
    return Option((name,), lambda given: given.needed(name, what))


def number(name: str, default: int | None, least: int = 0, most: int = BIGINT_MAX) -> Option:
    return Option((name,), lambda given: given.number(name, default, least, most))


def duration_ms(name: str, default: int, least: int = 0, most: int = BIGINT_MAX) -> Option:
    """Milliseconds."""
    return Option((name,), lambda given: given.duration_ms(name, default, least, most))


def time_ms(name: str) -> Option:
    """Epoch milliseconds, or None."""
    return Option((name,), lambda given: given.time_ms(name))


def flag(name: str, *, default: bool) -> Option:
    return Option((name,), lambda given: given.flag(name, default))


def choice(name: str, default: str, allowed: Collection[str]) -> Option:
    return Option((name,), lambda given: given.choice(name, default, allowed))


# ---- The server, which all sources and the sink share ----

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
