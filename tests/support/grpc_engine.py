"""Which gRPC engine the servers of this test run have: POPMQ_TEST_GRPC_ENGINE=grpcio pytest …

Tests of what only the built-in engine has are marked `builtin`, with the reason. They are skipped with the other one,
with which all tests count as heavy: CI passes a part of them.
"""

from __future__ import annotations

import os
from typing import cast

import pytest

from popserver.config import Config, GivenConfig
from popserver.transport.listen import Engine

ENGINE = cast("Engine", os.environ.get("POPMQ_TEST_GRPC_ENGINE", "builtin"))
ENGINES: tuple[Engine, ...] = ("builtin", "grpcio")
# For processes that tests start.
SETTING = {} if ENGINE == "builtin" else {"POPMQ_GRPC_ENGINE": ENGINE}


class ChosenEngine:
    """A pytest plugin."""

    def pytest_configure(self) -> None:
        assert ENGINE in ENGINES, f"POPMQ_TEST_GRPC_ENGINE={ENGINE}: choose one of {', '.join(ENGINES)}"
        for config in (Config, GivenConfig):
            config.model_fields["grpc_engine"].default = ENGINE
            config.model_rebuild(force=True)
        os.environ.update(SETTING)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items if ENGINE != "builtin" else ():
            item.add_marker(pytest.mark.full)
            if mark := item.get_closest_marker("builtin"):
                item.add_marker(pytest.mark.skip(reason=f"only the built-in engine: {mark.args[0]}"))
