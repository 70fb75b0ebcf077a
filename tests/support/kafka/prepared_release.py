"""What lets the brokers of a version start within two seconds, made once by a first broker.

Formatting the storage takes a Java process of its own, and most of a broker's start is the loading
of its classes. `python -m tests.support.kafka.prepared_release` prepares all versions before the
tests, and says within seconds if there is no Kafka.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from functools import cache
from pathlib import Path

from tests.support.java.quick_java import java_identity, reading_archive, writing_archive
from tests.support.kafka.kafka_docker import check_docker
from tests.support.kafka.kafka_files import (
    KAFKA_3,
    KAFKA_4,
    cache_directory,
    check_jars,
    java_command,
    kafka_jars,
    locked,
)
from tests.support.kafka.kafka_process import (
    KafkaProcess,
    free_ports,
    kafka_command,
    wait_for_answer,
)
from tests.support.kafka.kafka_properties import Listener, node_properties, to_text
from tests.support.kafka.kafka_unavailable import KafkaFailedError, KafkaUnavailableError, ci_needs

_FORMAT_SECONDS = 120
_READY_SECONDS = 120
_CLASSES = "classes.jsa"
_STORAGE = "storage"
#: Of the files in a formatted storage, the one with the ids of a node.
_IDS = "meta.properties"


def quick_options(version: str) -> list[str]:
    """Return the options with which a version's brokers and tools start quickly."""
    return reading_archive(prepared_release(version) / _CLASSES)


@cache
def prepared_release(version: str) -> Path:
    """Return a directory with what lets brokers of a version start quickly.

    It has the shared archive of the classes that the first broker loaded, and the checkpoint that
    Kafka's tool wrote into its storage, at the place that this version has for it. If it is
    missing, this first broker runs now, for some seconds. Raises KafkaUnavailableError, and
    KafkaFailedError if it does not start.
    """
    jars = kafka_jars(version)
    java = java_command()
    prepared = cache_directory() / f"{version}-ready-{java_identity(java)}"
    with locked(cache_directory()):
        # Another process may have prepared the release while this one waited for the lock.
        if not prepared.is_dir():
            _prepare(java, jars, prepared)
    return prepared


def _prepare(java: str, jars: Path, prepared: Path) -> None:
    with tempfile.TemporaryDirectory(
        prefix=f"{prepared.name}.partial-", dir=prepared.parent
    ) as partial:
        directory = Path(partial, "node")
        kept = Path(partial, "kept")
        directory.mkdir()
        kept.mkdir()
        clients, controller = (f"127.0.0.1:{port}" for port in free_ports(2))
        listener = Listener("CLIENTS", clients, clients)
        properties = node_properties(
            node_id=1,
            clients=listener,
            brokers=listener,
            controller=controller,
            voters={1: controller},
            overrides={"log.dirs": f"{directory}/data"},
        )
        (directory / "server.properties").write_text(to_text(properties))
        _run_format_tool(kafka_command(java, jars, directory, []), directory / "server.properties")
        ids = shutil.ignore_patterns(_IDS)
        shutil.copytree(directory / "data", kept / _STORAGE, ignore=ids)
        command = kafka_command(java, jars, directory, writing_archive(kept / _CLASSES))
        node = KafkaProcess(node_id=1, address=clients, directory=directory, command=command)
        node.start()
        try:
            wait_for_answer(node, _READY_SECONDS)
            node.stop()
        finally:
            node.kill()
        kept.rename(prepared)


def _run_format_tool(command: list[str], properties: Path) -> None:
    # An id may begin with a dash, so it must be in one argument with its option.
    tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={_base64(uuid.uuid4())}"]
    done = subprocess.run(  # noqa: S603  # our own command
        [*command, *tool, f"--config={properties}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_FORMAT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise KafkaFailedError(f"formatting the storage failed:\n{done.stdout}{done.stderr}")


def format_storage(version: str, storage: Path, *, node_id: int, cluster_id: uuid.UUID) -> None:
    """Format a node's storage as Kafka's tool would: with the ids of its own in meta.properties."""
    shutil.copytree(prepared_release(version) / _STORAGE, storage)
    meta = {
        "version": "1",
        "cluster.id": _base64(cluster_id),
        "node.id": str(node_id),
        "directory.id": _base64(uuid.uuid4()),
    }
    (storage / _IDS).write_text(to_text(meta))


def _base64(kafka_id: uuid.UUID) -> str:
    """Encode an id as Kafka does (Uuid.toString)."""
    return base64.urlsafe_b64encode(kafka_id.bytes).rstrip(b"=").decode()


def main() -> int:
    """Prepare all versions; return 1 if that is impossible and CI needs them."""
    if os.environ.get("KAFKA_BOOTSTRAP_SERVERS") or check_docker() is None:
        return 0
    try:
        for version in (KAFKA_4, KAFKA_3):
            # Once for all tests: they take what is cached as it is.
            check_jars(kafka_jars(version))
            prepared_release(version)
    except KafkaUnavailableError as error:
        print(f"Cannot start a real Kafka: {error}", file=sys.stderr)  # noqa: T201
        return int(ci_needs(error, os.environ))
    return 0


if __name__ == "__main__":
    sys.exit(main())
