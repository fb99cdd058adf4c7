"""Reads the settings of a command that needs the server's code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from popserver.config import Config

OK, REFUSED, USAGE = 0, 1, 2  # exit codes


class WrongSettings(Exception):
    """Some settings are wrong; `sentences` has one for each."""

    def __init__(self, sentences: list[str]) -> None:
        super().__init__("; ".join(sentences))
        self.sentences = sentences


def read_config(arguments: argparse.Namespace) -> Config | None:
    """The settings from command line, environment and file. If some are wrong, print a sentence for each; None."""
    try:
        return load_config(given_settings(vars(arguments)))
    except WrongSettings as wrong:
        for sentence in wrong.sentences:
            print(f"popmq: {sentence}", file=sys.stderr)
        return None


def given_settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the command line has."""
    from popserver.config import Config

    return {name: value for name, value in arguments.items() if name in Config.model_fields and value is not None}


def load_config(given: Mapping[str, Any]) -> Config:
    """The settings; `given` ones count before environment and file. Raises `WrongSettings`."""
    from pydantic import ValidationError

    from popserver.config import FILE, SECRET, Config

    try:
        return Config(**given)
    except ValidationError as error:
        sentences = []
        for mistake in error.errors():
            name = ".".join(map(str, mistake["loc"]))
            # Sentences about several settings name them. Values of settings that may have secrets are not shown.
            shows = name in Config.model_fields and name not in SECRET
            where = f"{name}={mistake['input']!r}: " if shows else f"{name}: " if name else ""
            sentences.append(f"{where}{mistake['msg'].removeprefix('Value error, ')}")
        raise WrongSettings(sentences) from None
    except (ValueError, OSError) as error:
        raise WrongSettings([f"{FILE} cannot be read ({error}); correct it, or remove it"]) from None
