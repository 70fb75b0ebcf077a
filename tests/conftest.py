"""Fixtures for all tests: real Kafka clusters and the Spark session.

Each is started on first use, except the single brokers that parallel processes share.

Tests that use one of them are marked `kafka` or `spark` automatically. Where real Kafka is not
available, they are skipped with the reason; in CI they fail instead, because a suite that never
ran against Kafka proves nothing about it.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests.support import (
    asyncio_debug,  # noqa: F401, before confluent_kafka imports asyncio
    leaks,
)
from tests.support.faults.expected_faults import expected_faults
from tests.support.kafka.group_clusters import GroupClusters
from tests.support.kafka.kafka_files import KAFKA_3, KAFKA_4
from tests.support.kafka.kafka_source_jars import kafka_source_jars
from tests.support.kafka.kafka_unavailable import (
    KafkaUnavailableError,
    SparkSourceUnavailableError,
    skip_or_fail,
)
from tests.support.kafka.real_kafka import KafkaCluster, start_kafka, tested_versions
from tests.support.kafka.single_nodes import SingleNodes
from tests.support.security.certificates import Certificates
from tests.support.security.secured_kafka import create_scram_users, secured_properties
from tests.support.skips import pytest_runtest_makereport  # noqa: F401  pytest calls it
from tests.support.slow_half import (
    FOLDERS,
    SPARK_GROUPS,
    TESTS,
    GroupScheduling,
    group,
    rank,
    slow_files,
)
from tests.support.spark.lineage_backend import LineageBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

# Shells let background jobs ignore Ctrl-C, which some tests send to themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The duration of an example depends on the machine more than on the code. So does the duration of
# an event loop step, which asyncio's debug mode logs as a warning: "Executing ... took".
logging.getLogger("asyncio").addFilter(lambda record: not str(record.msg).startswith("Executing "))
# The programs that tests start are not in development mode, since asyncio would log to the output
# that tests compare how long its steps take. They still warn of what is not closed. The process
# that starts pytest's workers keeps the variables, for them.
if "PYTEST_XDIST_WORKER" in os.environ and os.environ.pop("PYTHONDEVMODE", None):
    os.environ.pop("PYTHONASYNCIODEBUG", None)
    os.environ.setdefault("PYTHONWARNINGS", "default::ResourceWarning")
hypothesis.settings.register_profile("tests", deadline=None, print_blob=True)
# `make test-fast`, which runs many times a day, tries fewer examples than `make test`.
hypothesis.settings.register_profile("quick", deadline=None, print_blob=True, max_examples=20)
hypothesis.settings.load_profile("tests")

#: For each marker, the fixtures whose users get it.
_MARKERS = {
    "kafka": {
        "kafka",
        "kafka_4",
        "own_kafka",
        "kafka_with_acls",
        "secured_kafka",
        "kafka_cluster",
        "kafka_cluster_3",
        "kafka_in_racks",
    },
    "spark": {"spark", "spark_with_source"},
}
#: The markers of the slow half.
_HALF = {"kafka", "slow", "spark"}
_SLOW_FOLDERS = frozenset(TESTS / folder for folder in FOLDERS)
_VERSIONS = tested_versions()
#: For clusters that show little about a version.
_NEWEST_FIRST = [KAFKA_4, pytest.param(KAFKA_3, marks=pytest.mark.soak)]
#: The clusters that the tests of a group share.
_CLUSTERS = GroupClusters()
#: The brokers that the processes of the slow half share.
_SHARED = pytest.StashKey[dict[str, dict[str, str]]]()


def pytest_configure(config: pytest.Config) -> None:
    """Stop the clusters of a group also if the run is interrupted."""
    config.add_cleanup(_CLUSTERS.close)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Hide the collected tests and their modules from the garbage collections of tests.

    They stay until the end, and traversing them takes a fifth of a second each time.
    """
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark each test with what it needs, before `-m` selects tests, and order the slow half.

    Raises UsageError for a test that the slow half would miss, or run in a process of another
    group.
    """
    files = frozenset(slow_files())

    @cache
    def is_in(path: Path, folders: frozenset[Path]) -> bool:
        return not folders.isdisjoint((path, *path.parents))

    for item in items:
        needed = set(getattr(item, "fixturenames", ()))
        markers = [name for name, fixtures in _MARKERS.items() if fixtures & needed]
        if "spark" in markers and group(item.nodeid) not in SPARK_GROUPS:
            raise pytest.UsageError(f"{item.nodeid}: its file must be in GROUPS, with Spark")
        if is_in(item.path, _SLOW_FOLDERS):
            markers.append("slow")
        for marker in markers:
            item.add_marker(marker)
        is_slow = not _HALF.isdisjoint(marker.name for marker in item.iter_markers())
        if is_slow and not is_in(item.path, files):
            raise pytest.UsageError(f"{item.nodeid}: `slow_files` finds no marker in its file")
    yield
    items.sort(key=lambda item: rank(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Stop the clusters of a group after its last test."""
    try:
        return (yield)
    finally:
        if nextitem is None or group(nextitem.nodeid) != group(item.nodeid):
            _CLUSTERS.close()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling | None:
    """Return the scheduler that distributes the slow half by groups."""
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Start the brokers that the processes of the slow half share, and tell each where they are."""
    if node.config.getvalue("dist") != "loadscope":
        return
    if _SHARED not in node.config.stash:
        nodes = SingleNodes()
        node.config.add_cleanup(nodes.close)
        node.config.stash[_SHARED] = nodes.share()
    node.workerinput["single_nodes"] = node.config.stash[_SHARED]


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread or a socket behind, and thus a producer or a broker.

    Fixtures with a larger scope are set up before this one, so what they open is not counted.
    """
    if {"spark", "kafka", "slow"} & {marker.name for marker in request.node.iter_markers()}:
        # Py4J and other clients keep connections and threads for the whole session, and slow tests
        # share brokers that are started while the first of these tests runs.
        yield
        return
    before = leaks.look()
    yield
    assert [] == leaks.left_since(before)


@pytest.fixture(autouse=True)
def _faults_act() -> Iterator[None]:
    """Fail a test that injects a fault which never acts: it might pass without the fault."""
    with expected_faults():
        yield


@pytest.fixture(scope="session")
def single_nodes(request: pytest.FixtureRequest) -> Iterator[SingleNodes]:
    """Yield the brokers that tests share."""
    nodes = SingleNodes(getattr(request.config, "workerinput", {}).get("single_nodes"))
    yield nodes
    nodes.close()


@pytest.fixture(scope="session", params=_VERSIONS)
def kafka(request: pytest.FixtureRequest, single_nodes: SingleNodes) -> KafkaCluster:
    """Return a broker of each supported version in turn; tests must not stop or reconfigure it."""
    return _or_no_kafka(single_nodes.get(request.param))


@pytest.fixture(scope="session")
def kafka_4(single_nodes: SingleNodes) -> KafkaCluster:
    """Return a broker of the newest version, for tests that need only one version."""
    return _or_no_kafka(single_nodes.get(_VERSIONS[0]))


def _or_no_kafka(started: KafkaCluster | KafkaUnavailableError) -> KafkaCluster:
    if isinstance(started, KafkaUnavailableError):
        skip_or_fail(started, os.environ)
    return started


@pytest.fixture(scope="module", params=_NEWEST_FIRST)
def own_kafka(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Yield a module's own broker, which its tests may kill and restart; it creates topics."""
    yield from _own_cluster(request.param, {"auto.create.topics.enable": "true"})


@pytest.fixture(scope="session", params=[KAFKA_4, KAFKA_3])
def kafka_with_acls(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Yield a broker that enforces ACLs; everyone may use a resource without ACLs."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    overrides = {"authorizer.class.name": authorizer, "allow.everyone.if.no.acl.found": "true"}
    yield from _own_cluster(request.param, overrides)


@pytest.fixture(scope="module", params=_NEWEST_FIRST)
def secured_kafka(
    request: pytest.FixtureRequest, certificates: Certificates
) -> Iterator[KafkaCluster]:
    """Yield a module's own broker with the listeners of `secured_properties` and their users."""
    overrides, protocols = secured_properties(certificates)
    for cluster in _own_cluster(request.param, overrides, secured=protocols):
        create_scram_users(cluster)
        yield cluster


@pytest.fixture(scope="module")
def kafka_cluster() -> KafkaCluster:
    """Return three brokers of the newest version; tests may stop and kill them.

    They are in the racks r1 to r3, and their leaders send consumers to a replica in their rack.
    """
    return _three_nodes(KAFKA_4)


@pytest.fixture(scope="module")
def kafka_cluster_3() -> KafkaCluster:
    """Return three brokers like those of `kafka_cluster`, of the oldest supported version."""
    return _three_nodes(KAFKA_3)


@pytest.fixture(scope="module", params=_NEWEST_FIRST)
def kafka_in_racks(request: pytest.FixtureRequest) -> KafkaCluster:
    """Return three brokers like those of `kafka_cluster`; `make soak` has both versions."""
    return _three_nodes(request.param)


def _three_nodes(version: str) -> KafkaCluster:
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    overrides = {
        "broker.rack": "r{node_id}",
        "replica.selector.class": selector,
        # Tests move leaders themselves.
        "auto.leader.rebalance.enable": "false",
    }
    return _CLUSTERS.get(version, lambda: _start(version, overrides, nodes=3))


def _own_cluster(
    version: str,
    overrides: dict[str, str],
    *,
    secured: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[KafkaCluster]:
    with _start(version, overrides, secured=secured) as cluster:
        yield cluster


def _start(version: str, overrides: dict[str, str], **more: Any) -> KafkaCluster:
    try:
        return start_kafka(version, overrides=overrides, **more)
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)


@pytest.fixture
def create_topic(kafka: KafkaCluster) -> Iterator[Callable[..., str]]:
    """Yield a function that creates topics on the `kafka` broker; they are deleted afterwards."""
    created = []

    def create(partitions: int = 1, **options: object) -> str:
        created.append(kafka.create_topic(partitions, **options))
        return created[-1]

    yield create
    kafka.delete_topics(created)


@pytest.fixture
def unused_port() -> Iterator[int]:
    """Yield a loopback port on which nothing listens, reserved for the duration of the test."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Return the certificates for the whole test run."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def lineage_backend() -> Iterator[LineageBackend]:
    """Yield the backend to which the shared Spark session sends lineage events."""
    backend = LineageBackend()
    yield backend
    backend.close()


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory, lineage_backend: LineageBackend
) -> Iterator[SparkSession]:
    """Yield a local Spark session with two task slots, for the whole test run.

    It includes Spark's own Kafka source if that is available, see `spark_with_source`.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Spark's processes have the environment of its start.
    os.environ["OPENLINEAGE_URL"] = lineage_backend.url
    from pyspark.sql import SparkSession  # noqa: PLC0415  # most runs start no Spark

    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.showConsoleProgress", "false")
        .config("spark.jars", ",".join(map(str, _source_jars_or_none())))
        .getOrCreate()
    )
    del os.environ["OPENLINEAGE_URL"]
    yield session
    session.stop()


def _source_jars_or_none() -> list[Path]:
    try:
        return kafka_source_jars()
    except SparkSourceUnavailableError:
        return []


@pytest.fixture(scope="session")
def spark_with_source(spark: SparkSession) -> SparkSession:
    """Return the shared Spark session, which has Spark's own Kafka source."""
    try:
        kafka_source_jars()
    except SparkSourceUnavailableError as error:
        skip_or_fail(error, os.environ)
    return spark
