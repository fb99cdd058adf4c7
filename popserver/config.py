"""The server's settings. The command line wins over the environment (`POPMQ_…`), then `popmq.toml`, then defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from popport.addresses import is_loopback, path_of
from popserver.model.errors import CannotListen
from popserver.model.times import duration_ms_of
from popserver.transport.listen import PORT_MAX, Engine, Mode, address_of, split_address

FILE = Path("popmq.toml")
OFF = "off"
CHART_SERIES_MAX = 20_000  # each takes about 30 KiB in the database
WORKERS_MAX = 64  # each has five connections to Postgres, which by default takes 100
_OF_NAMES = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-_")
_OF_TLS = frozenset({"tls_cert", "tls_key", "tls_client_ca", "tls_dir"})
SECRET = frozenset(
    {"admin_secret", "alert_secret", "alert_webhook", "database_url", "metrics_token"}
)  # settings whose values are never shown


class Config(BaseSettings):
    """The settings of `popmq serve`. Durations are written like 500ms, 10s, 5m, 12h."""

    model_config = SettingsConfigDict(env_prefix="POPMQ_", toml_file=FILE, extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8081, ge=0, le=PORT_MAX)
    workers: int = Field(default=1, ge=1, le=WORKERS_MAX)  # processes that share the port; more than one: on Postgres
    http: str = "127.0.0.1:8082"  # HOST:PORT of metrics, health and console; "off": none
    http_path: str = ""  # the path below which a proxy has the HTTP port, such as /popmq; empty: its root
    admin: str = ""  # HOST:PORT of the administration, which the port for clients then does not serve; empty: that port
    advertise: str = ""  # this server's HOST:PORT for clients of other servers on the same Postgres
    database_url: str = "sqlite:///popmq.db"
    durability: Literal["full", "relaxed"] = "full"
    auto_create: bool | None = None  # None: create topics and groups on first use only on a loopback address
    min_invisible: int = Field(default=10_000, ge=0)  # ms
    retention: int = Field(default=72 * 3_600_000, ge=0)  # ms; 0: no limit
    max_clock_jump: int = Field(default=3_600_000, ge=0)  # ms; after a longer jump nothing is removed at first; 0: any
    max_delay: int = Field(default=40 * 24 * 3_600_000, ge=0)  # ms; 0: no limit
    transaction_timeout: int = Field(default=6_000, gt=0)  # ms until the first check of a half message
    transaction_check_interval: int = Field(default=30_000, gt=0)  # ms
    transaction_checks: int = Field(default=15, ge=0)  # after this many a half message is discarded
    idempotency_window: int = Field(default=24 * 3_600_000, ge=0)  # ms; 0: idempotency keys are ignored
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"
    drain_timeout: int = Field(default=30_000, ge=0)  # ms
    # ms of service beside other servers before the end. Official clients ask for routes every 30 s, so it is longer.
    handover: int = Field(default=40_000, ge=0)
    grpc_engine: Engine = "builtin"  # what speaks gRPC: the server itself, or gRPC's library
    tls: Mode = "permissive"  # with grpcio: tls if a setting of TLS is given, otherwise plaintext
    tls_cert: Path | None = None  # PEM; with tls_key. None: a self-signed certificate
    tls_key: Path | None = None
    tls_client_ca: Path | None = None  # PEM; clients without a certificate of this CA are refused
    tls_dir: Path | None = None  # for the self-signed certificate; None: beside a SQLite file, otherwise memory
    insecure: bool = False  # allow a public address without authentication
    long_polling: bool = True  # off: a pull waits for at most a second, and is checked once in it
    auth: bool = False  # callers must sign, and may do what policies allow
    auth_max_age: int = Field(default=0, ge=0)  # ms; 0: no limit, because some clients sign local time as UTC
    admin_access_key: str = ""  # with auth, created at the start unless the user exists
    admin_secret: SecretStr = SecretStr("")
    max_send_rate: int = Field(default=0, ge=0)  # messages per second and user, or client without auth; 0: no limit
    max_request_rate: int = Field(default=0, ge=0)  # requests per second, for the same holders; 0: no limit
    max_incoming: int = Field(default=80, ge=1)  # MiB of requests that are arriving or not answered yet
    max_connections: int = Field(default=10_000, ge=2)  # or fewer, if the process may open fewer files
    max_connections_per_address: int = Field(default=0, ge=0)  # 0: half of max_connections
    # Names of the HTTP port besides localhost and addresses, such as that of a proxy; written with commas between them.
    allow_host: Annotated[tuple[str, ...], NoDecode] = ()
    max_http_connections: int = Field(default=256, ge=2)
    max_admin_connections: int = Field(default=256, ge=2)  # of the port of `admin`
    max_metric_series: int = Field(default=50_000, ge=500)
    client_metrics: bool = False  # ask clients for their metrics, and export these
    max_client_metric_series: int = Field(default=20_000, ge=1)  # kept of all clients
    otlp_endpoint: str = ""  # where metrics are pushed: http://HOST:PORT, or https://; empty: nowhere
    otlp_period: int = Field(default=60_000, ge=1_000)  # ms
    metrics_token: SecretStr = SecretStr("")  # of those who may read /metrics; empty: callers of this machine may
    metric_unit_suffix: bool = False  # names of metrics end with their units
    max_chart_series: int = Field(default=1_000, ge=0, le=CHART_SERIES_MAX)  # groups and topics that have charts
    alert_webhook: str = ""  # URL that is told what needs a person; empty: none
    alert_secret: SecretStr = SecretStr("")  # signs what the webhook gets; empty: it is not signed
    console_url: str = ""  # of the console, for links in alerts; empty: that of the HTTP port
    max_watches: int = Field(default=1_000, ge=2)  # health watches, and as many reflection streams
    send_backlog: int = Field(default=128, ge=1)  # MiB of bodies that are not stored yet
    max_undelivered: int = Field(default=96, ge=1)  # MiB of bodies in answers that clients have not read yet
    max_filter_memory: int = Field(default=64, ge=1)  # MiB of filters of running receives and pulls
    max_lite_subscriptions: int = Field(default=250_000, ge=1)  # lite topics of all lite consumers

    @field_validator(
        "min_invisible",
        "retention",
        "max_clock_jump",
        "max_delay",
        "transaction_timeout",
        "transaction_check_interval",
        "idempotency_window",
        "drain_timeout",
        "handover",
        "auth_max_age",
        "otlp_period",
        mode="before",
    )
    @classmethod
    def _read_duration(cls, value: Any) -> Any:
        return duration_ms_of(value)

    @field_validator("advertise")
    @classmethod
    def _check_advertise(cls, value: str) -> str:
        # Written in one way: servers compare addresses as texts, and a manifest writes [10.0.0.7]:8081.
        return address_of(*split_address(value)) if value else value

    @field_validator("admin")
    @classmethod
    def _check_admin_address(cls, value: str) -> str:
        if value:
            split_address(value, port_min=0)
        return value

    @field_validator("http")
    @classmethod
    def _check_http(cls, value: str) -> str:
        if value != OFF:
            split_address(value, port_min=0)
        return value

    @field_validator("http_path")
    @classmethod
    def _check_http_path(cls, value: str) -> str:
        return path_of(value)

    @field_validator("allow_host", mode="before")
    @classmethod
    def _read_names(cls, value: Any) -> Any:
        names = [each.strip() for each in value.split(",")] if isinstance(value, str) else list(value)
        for name in names:
            if not name or not set(name.lower()) <= _OF_NAMES:
                raise ValueError(f"'{name}' is no name of a host; write it without scheme and port, such as mq.example")
        return tuple(each.lower() for each in names)

    @field_validator("otlp_endpoint")
    @classmethod
    def _check_otlp(cls, value: str) -> str:
        scheme, mark, address = value.partition("://")
        if value and (not mark or scheme not in ("http", "https")):
            raise ValueError("write the collector's address as http://HOST:PORT, or https://HOST:PORT for TLS")
        if value:
            split_address(address)
        return value

    @field_validator("alert_webhook", "console_url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        if value:
            at = urlsplit(value)
            if at.scheme not in ("http", "https") or not at.hostname:
                raise ValueError("write the address as http://HOST:PORT/PATH, or https://HOST/PATH")
            if at.username is not None or at.fragment or not value.isascii() or not value.isprintable() or " " in value:
                raise ValueError("leave user, password and # out of the address, and encode other characters with %")
            _ = at.port  # raises ValueError if it is no number up to 65535
        return value

    @model_validator(mode="after")
    def _check_alerts(self) -> Self:
        if self.alert_secret.get_secret_value() and not self.alert_webhook:
            raise ValueError(
                "alert_secret signs what a webhook gets, and there is none; set alert_webhook, or leave it out"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _choose_tls(cls, given: dict[str, Any]) -> dict[str, Any]:
        engine = given.get("grpc_engine", cls.model_fields["grpc_engine"].default)
        if engine == "builtin" or "tls" in given:
            return given
        return {**given, "tls": "tls" if given.keys() & _OF_TLS else "plaintext"}

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if self.grpc_engine == "grpcio" and self.tls == "permissive":
            raise ValueError(
                "grpc_engine=grpcio cannot accept TLS and plaintext on one port, as tls=permissive asks for; set"
                " tls=tls or tls=plaintext, or leave grpc_engine out"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("a certificate and its key belong together: give both tls_cert and tls_key, or neither")
        if self.tls_client_ca is not None and self.tls != "tls":
            raise ValueError(
                f"tls_client_ca has no effect with tls={self.tls}, which accepts plaintext without a certificate;"
                " set tls=tls"
            )
        if self.tls == "plaintext" and (self.tls_cert or self.tls_dir):
            raise ValueError("tls=plaintext uses no certificate; leave tls_cert, tls_key and tls_dir out")
        return self

    @model_validator(mode="after")
    def _check_admin(self) -> Self:
        if bool(self.admin_access_key) != bool(self.admin_secret.get_secret_value()):
            raise ValueError(
                "the first admin needs both: set POPMQ_ADMIN_ACCESS_KEY and POPMQ_ADMIN_SECRET, or neither"
            )
        return self

    @model_validator(mode="after")
    def _check_workers(self) -> Self:
        if self.workers > 1 and self.database_url.startswith("sqlite"):
            raise ValueError(
                f"workers={self.workers} needs Postgres: a SQLite file has one writer, so one process serves it; give"
                " --database-url postgresql://user@host/name, or leave --workers out"
            )
        return self

    @property
    def auto_create_enabled(self) -> bool:
        return is_loopback(self.host) if self.auto_create is None else self.auto_create

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


class GivenConfig(Config):
    """Settings from arguments only, without the environment and `popmq.toml`; without HTTP unless it is asked for."""

    model_config = SettingsConfigDict(toml_file=None)

    http: str = OFF
    max_chart_series: int = Field(default=0, ge=0, le=CHART_SERIES_MAX)

    @field_validator("workers")
    @classmethod
    def _is_one_process(cls, workers: int) -> int:
        if workers > 1:
            raise ValueError("an embedded broker is one process; start several with popmq serve --workers")
        return workers

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_others: Any, **_named: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def check_exposure(host: str, *, has_auth: bool, insecure: bool) -> None:
    """Raise `CannotListen` for a public address without authentication, unless `insecure` allows it.

    `has_auth`: whether callers must authenticate.
    """
    if not (is_loopback(host) or has_auth or insecure):
        raise CannotListen(
            f"will not listen on {host}: everyone who can connect to it could read and delete all messages;"
            " listen on 127.0.0.1, accept only clients with a certificate (--tls tls --tls-client-ca FILE) or only"
            " signed calls (--auth), or give --insecure if only trusted clients can reach this network"
        )


def check_http_exposure(host: str, *, auth: bool, insecure: bool) -> None:
    """Raise `CannotListen` for a public HTTP address without users, unless `insecure` allows it."""
    if not (is_loopback(host) or auth or insecure):
        raise CannotListen(
            f"will not serve HTTP on {host}: everyone who can connect to it could read the names of topics and groups,"
            " and use the console; serve it on 127.0.0.1 (--http 127.0.0.1:8082), let users sign (--auth; callers of"
            " /metrics then need POPMQ_METRICS_TOKEN), or give --insecure if only trusted people can reach this network"
        )


def sentences_of(error: ValidationError) -> list[str]:
    """What is wrong with each wrong setting."""
    sentences = []
    for mistake in error.errors():
        name = ".".join(map(str, mistake["loc"]))
        # Sentences about several settings name them. Values of settings that may have secrets are not shown.
        shows = name in Config.model_fields and name not in SECRET
        where = f"{name}={mistake['input']!r}: " if shows else f"{name}: " if name else ""
        sentences.append(f"{where}{_words(mistake, name, Config.model_fields)}")
    return sentences


# What a setting must be, by pydantic's name of the mistake.
_WANTED = {
    "greater_than": "give more than {gt}",
    "greater_than_equal": "give {ge} or more",
    "less_than": "give less than {lt}",
    "less_than_equal": "give {le} or less",
    "int_parsing": "give a whole number",
    "int_from_float": "give a whole number",
    "int_type": "give a whole number",
    "bool_parsing": "give true or false",
    "bool_type": "give true or false",
    "string_type": "give a text",
    "literal_error": "give {expected}",
}


def _words(mistake: Mapping[str, Any], name: str, known: Iterable[str]) -> str:
    """What is wrong with a setting, and what it must be."""
    if mistake["type"] == "extra_forbidden":
        meant = get_close_matches(name, list(known), 1)
        return f"no such setting{f'; did you mean {meant[0]}?' if meant else ', see popmq serve --help'}"
    wanted = _WANTED.get(mistake["type"])
    if wanted is None:
        return str(mistake["msg"]).removeprefix("Value error, ")
    return wanted.format(**mistake.get("ctx", {}))
