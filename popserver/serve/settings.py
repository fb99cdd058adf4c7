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

    from popserver.config import FILE, Config, sentences_of

    sentences = _misspelled(os.environ, Config.model_fields)
    try:
        config = Config(**given)
    except ValidationError as error:
        raise WrongSettings(sentences + sentences_of(error)) from None
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
