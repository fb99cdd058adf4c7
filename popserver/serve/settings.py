"""Reads the settings of a command that needs the server's code."""

from __future__ import annotations

import argparse
import sys
from typing import Any

OK, REFUSED, USAGE = 0, 1, 2  # exit codes


def read_config(arguments: argparse.Namespace) -> Any:
    """The settings from command line, environment and file. If some are wrong, print a sentence for each; None."""
    from pydantic import ValidationError

    from popserver.config import FILE, SECRET, Config

    given = {
        name: value for name, value in vars(arguments).items() if name in Config.model_fields and value is not None
    }
    try:
        return Config(**given)
    except ValidationError as error:
        for mistake in error.errors():
            name = ".".join(map(str, mistake["loc"]))
            # Sentences about several settings name them. Values of settings that may have secrets are not shown.
            shows = name in Config.model_fields and name not in SECRET
            where = f"{name}={mistake['input']!r}: " if shows else f"{name}: " if name else ""
            print(f"popmq: {where}{mistake['msg'].removeprefix('Value error, ')}", file=sys.stderr)
        return None
    except (ValueError, OSError) as error:
        print(f"popmq: {FILE} cannot be read ({error}); correct it, or remove it", file=sys.stderr)
        return None
