"""A cluster, with the environments that its machines may have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.cluster.submitting import Submitting
from tests.spark.node_environment import environment_in, wheel_in
from tests.spark.spark_cluster import Cluster, spark_cluster
from tests.support.built_programs import CannotBuild, do_without


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master with two workers."""
    from popclient.spark import JavaMissing
    from popclient.spark.session import java_home

    try:
        java_home()
    except JavaMissing as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"spark: {missing}")
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout's."""
    try:
        return wheel_in(tmp_path_factory.mktemp("wheel"))
    except CannotBuild as reason:
        do_without(str(reason))


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The Python of an environment with PopMQ that every machine has."""
    return environment_in(tmp_path_factory.mktemp("installed") / "environment", wheel)


@pytest.fixture
def submitting(cluster: Cluster) -> Iterator[Submitting]:
    """Drivers of this test in a folder of their own; none is left."""
    folder = cluster.folders.driver / os.urandom(4).hex()
    folder.mkdir()
    with Submitting(cluster, folder) as made:
        yield made
