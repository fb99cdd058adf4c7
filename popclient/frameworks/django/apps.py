"""The Django application and its settings."""

from __future__ import annotations

from collections.abc import Mapping

from django.apps import AppConfig
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from popclient import ClientConfig


def config() -> ClientConfig:
    """The settings POPMQ, a dict with fields of ClientConfig; without it the environment and the defaults count.

    Raises ImproperlyConfigured, which names the field.
    """
    given = getattr(settings, "POPMQ", {})
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"POPMQ is {given!r}; it must be a dict with fields of popclient.ClientConfig")
    try:
        return ClientConfig(**given)
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"POPMQ: {error}") from None


class PopMQConfig(AppConfig):
    """Checks the settings when Django starts."""

    name = "popclient.frameworks.django"
    label = "popmq"
    verbose_name = "PopMQ"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Raises ImproperlyConfigured for settings that no client could be made with."""
        config()
