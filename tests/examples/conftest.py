"""What the tests of the examples may ask for."""

from __future__ import annotations

import os

import pytest

from popclient.spark import JavaMissing
from popclient.spark.java import java_home


@pytest.fixture
def java() -> None:
    try:
        java_home()
    except JavaMissing as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"spark: {missing}")
