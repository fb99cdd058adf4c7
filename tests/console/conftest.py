"""Sites for the tests of pages."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from tests.console.site import Site, opened
from tests.support.admin_server import AdminServer


@pytest.fixture
def site() -> Iterator[Site]:
    """A console of a server in memory that has no users."""
    with opened() as opened_site:
        yield opened_site


@pytest.fixture
def stored_site(database_url: str) -> Iterator[Site]:
    """The same, once on each database."""
    with opened(database_url) as opened_site:
        yield opened_site


@pytest.fixture
def guarded_site() -> Iterator[Site]:
    """A console of a server that has an admin `root` with the secret `s3cret-key`."""
    with opened(auth=True, admin_access_key="root", admin_secret="s3cret-key") as opened_site:
        yield opened_site


@pytest.fixture
def admin_server(site: Site) -> Iterator[AdminServer]:
    """The administration of the site's server, and a client to make something happen."""
    yield from _desk(site)


@pytest.fixture
def either_admin_server(stored_site: Site) -> Iterator[AdminServer]:
    yield from _desk(stored_site)


def _desk(site: Site) -> Iterator[AdminServer]:
    with grpc.insecure_channel(site.broker.endpoint) as channel:
        yield AdminServer(site.broker, channel)
