"""Reads the settings of a command that needs the server's code."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from popserver.config import Config

OK, REFUSED, USAGE = 0, 1, 2  # exit codes
_PREFIX: Final = "POPMQ_"  # of an option's variable in the environment


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

    sentences = _misspelled(os.environ, Config.model_fields)
    try:
        config = Config(**given)
    except ValidationError as error:
        for mistake in error.errors():
            name = ".".join(map(str, mistake["loc"]))
            # Sentences about several settings name them. Values of settings that may have secrets are not shown.
            shows = name in Config.model_fields and name not in SECRET
            where = f"{name}={mistake['input']!r}: " if shows else f"{name}: " if name else ""
            sentences.append(f"{where}{_words(mistake, name, Config.model_fields)}")
        raise WrongSettings(sentences) from None
    except (ValueError, OSError) as error:
        raise WrongSettings([f"{FILE} cannot be read ({error}); correct it, or remove it"]) from None
    if sentences:
        raise WrongSettings(sentences)
    return config


# How alike a variable's name and an option's must be, from 0 to 1: other programs have variables of this prefix too.
_ALIKE: Final = 0.85


def _misspelled(environment: Iterable[str], known: Iterable[str]) -> list[str]:
    """A sentence for each variable that is almost an option's."""
    options = [*known]
    sentences = []
    for name in sorted(environment):
        option = name.removeprefix(_PREFIX).lower()
        meant = difflib.get_close_matches(option, options, 1, _ALIKE)
        if name.startswith(_PREFIX) and meant and option not in options:
            sentences.append(f"{name}: no such setting; did you mean {_PREFIX}{meant[0].upper()}? Else rename it")
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
        meant = difflib.get_close_matches(name, list(known), 1)
        return f"no such setting{f'; did you mean {meant[0]}?' if meant else ', see popmq serve --help'}"
    wanted = _WANTED.get(mistake["type"])
    if wanted is None:
        return str(mistake["msg"]).removeprefix("Value error, ")
    return wanted.format(**mistake.get("ctx", {}))
