"""Brokers on one Postgres, per test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.several_brokers import SeveralBrokers, several_brokers


@pytest.fixture
async def servers(postgres_url: str) -> AsyncIterator[SeveralBrokers]:
    async with several_brokers(postgres_url) as several:
        yield several


@pytest.fixture
async def lone_server(postgres_url: str) -> AsyncIterator[SeveralBrokers]:
    async with several_brokers(postgres_url, 1) as several:
        yield several
