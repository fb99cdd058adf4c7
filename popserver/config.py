"""The server's settings: command line before environment (`POPMQ_…`) before `popmq.toml` before default."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from popserver.durations import parse_duration_ms

FILE = Path("popmq.toml")


class Config(BaseSettings):
    """What `popmq serve` can be told. Durations are written 500ms, 10s, 5m, 12h."""

    model_config = SettingsConfigDict(env_prefix="POPMQ_", toml_file=FILE, extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8081, ge=0, le=65_535)
    database_url: str = "sqlite:///popmq.db"
    durability: Literal["full", "relaxed"] = "full"
    auto_create: bool | None = None  # None: topics and groups make themselves on a loopback server only
    min_invisible: int = Field(default=10_000, ge=0)  # ms
    retention: int = Field(default=72 * 3_600_000, ge=0)  # ms; 0 keeps messages for ever
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"
    drain_timeout: int = Field(default=30_000, ge=0)  # ms

    @field_validator("min_invisible", "retention", "drain_timeout", mode="before")
    @classmethod
    def _read_duration(cls, value: Any) -> Any:
        return parse_duration_ms(value) if isinstance(value, str) else value

    @property
    def creates_on_the_way(self) -> bool:
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
    """Settings that are what they were given as: no environment and no file has a say."""

    model_config = SettingsConfigDict(toml_file=None)

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_others: Any, **_named: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
