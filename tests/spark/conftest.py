"""One Spark for all tests here, and databases with dead letters in them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session; where Spark or Java is missing the test is skipped, or fails in CI."""
    from popclient.spark import JavaMissing, session

    try:
        started = session("popmq-tests", memory="2g")
    except (JavaMissing, ModuleNotFoundError) as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"spark: {missing}")
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def links_end() -> Iterator[None]:
    """A test that reads without a Spark is the process that Spark would end."""
    yield
    module = sys.modules.get("popclient.spark.link")
    for link in [] if module is None else list(module._links.values()):
        link.close()
