"""Fixtures that the Spark tests share: one session, and one cluster. Each is made for the first test that
needs it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import fairlead.spark
from tests.spark.cluster import SHORT_JOBS, Cluster, run_cluster
from tests.spark.driver import MASTER_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLUSTER = pytest.StashKey[Cluster]()

# Jobs of tests are short: without the JVM's slower compiler a start takes half the work. Drivers that tests
# start inherit this.
os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_JOBS)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """FAIRLEAD_SPARK_MASTER chooses another master than `local[2]`, for example `local-cluster[2,1,1024]`."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    master = os.environ.get(MASTER_VARIABLE, "local[2]")
    session = fairlead.spark.session(
        "fairlead-tests", master, config={"spark.sql.warehouse.dir": str(warehouse)}
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def shared_cluster(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Cluster]:
    with run_cluster(tmp_path_factory.mktemp("cluster")) as running:
        pytestconfig.stash[_CLUSTER] = running
        yield running


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """A master and two workers of one core each, with no application. A test that kills workers makes its own
    cluster with `run_cluster`.
    """
    shared_cluster.wait_until_free()
    return shared_cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    running = item.config.stash.get(_CLUSTER, None)
    if report.failed and running is not None and "cluster" in getattr(item, "fixturenames", ()):
        report.sections.append(("logs of the cluster", running.family.report()))
    return report
