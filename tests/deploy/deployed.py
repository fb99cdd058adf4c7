"""`popmq` as the files in deploy/ start it: their words and environment, on free ports."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import popclient.cli
from popserver.config import Config
from tests.support.server_process import POPMQ, clean_environment

DEPLOY = Path(__file__).parents[2] / "deploy"
PREFIX = "POPMQ_"
CREDENTIALS = {
    "POPMQ_AUTH": "true",
    "POPMQ_ADMIN_ACCESS_KEY": "root",
    "POPMQ_ADMIN_SECRET": "a-long-secret-of-the-admin",
}
PATIENCE_S = 60


def check_settings(words: Sequence[str], environment: Mapping[str, str], patch: Any) -> Config:
    """The settings that these words after `popmq` and this environment make. Fails if one of them is not accepted."""
    ours = {name: value for name, value in environment.items() if name.startswith(PREFIX)}
    unknown = {name for name in ours if name.removeprefix(PREFIX).lower() not in Config.model_fields}
    assert not unknown
    arguments = vars(popclient.cli.parser().parse_args(list(words)))
    assert arguments["command"] == "serve"
    given = {name: value for name, value in arguments.items() if name in Config.model_fields and value is not None}
    with patch.context() as within:
        for name in [name for name in os.environ if name.startswith(PREFIX)]:
            within.delenv(name)
        for name, value in ours.items():
            within.setenv(name, value)
        return Config(**given)


@contextmanager
def running(
    words: Sequence[str], environment: Mapping[str, str], folder: Path, popmq: str = POPMQ
) -> Iterator[dict[str, Any]]:
    """The facts of the ready line of a server; it has to stop well."""
    command = [popmq, *words]
    given = {**clean_environment(), "POPMQ_PORT": "0", "POPMQ_HTTP": "127.0.0.1:0", **environment}
    with (folder / "stderr").open("w+") as said:
        process = subprocess.Popen(command, cwd=folder, env=given, stdout=subprocess.PIPE, stderr=said, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (folder / "stderr").read_text()
            yield json.loads(line)
            process.terminate()
            assert process.wait(PATIENCE_S) == 0, (folder / "stderr").read_text()
        finally:
            process.kill()
            process.communicate()
