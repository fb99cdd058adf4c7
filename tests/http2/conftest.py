"""A certificate for the door."""

from __future__ import annotations

from pathlib import Path

import pytest

from popserver.front.source import Source
from tests.support.certificates import Authority
from tests.support.tls_server import certified


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def source(authority: Authority) -> Source:
    """A certificate for localhost and 127.0.0.1."""
    listening = certified(authority, "tls")
    assert listening.certificate is not None
    return listening.certificate
