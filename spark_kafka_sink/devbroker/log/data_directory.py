"""A data directory: topics and checkpoints on disk, and the directories of the logs.

    .lock                              held while a broker uses the directory
    .kafka_cleanshutdown               exists after a clean shutdown
    recovery-point-offset-checkpoint   offset up to which each log was flushed
    log-start-offset-checkpoint        log start offsets after the start of the first segment
    cleaner-offset-checkpoint          offset up to which each log is compacted
    cluster.json                       topics, their ids and settings, producer ids
    schemas.json                       schemas of the Schema Registry (`registry.schema_store`)
    .reserve                           space to write the files above on a full disk (`Reserve`)
    <topic>-<partition>/               a log (`log_directory`), and partition.metadata

All but `.reserve`, `cluster.json` and `schemas.json` have Kafka's names and formats. These are our
own, and `cluster.json` takes the place of Kafka's metadata log. They are replaced as a whole before
the response to a change is sent:

    {"version": 1, "cluster_id": "...", "next_producer_id": 1000,
     "internal_topic_ids": {"__consumer_offsets": "<uuid>", ...},
     "broker_configs": {"": {...}, "1": {...}},
     "topics": [{"name": "orders", "id": "<uuid>", "configs": {...}, "replicas": [[1], [1]]}]}

A cluster that replicates has these as well, and the logs of its brokers in place of its own:

    metadata.log                       the topics, and all else that the controller decides
    brokers/<id>/                      the directory of a broker

A broker's directory has `meta.properties` in place of `cluster.json`: the cluster and the broker
that it belongs to (`MetaProperties`).

Producer ids below `next_producer_id` may have been assigned. A directory with other files in it but
neither of the two is rejected, so that no foreign files are mistaken for the cluster's. So is one
that another user can change (`private_directory`), or with symbolic links in it. Names that lead to
paths are validated when they are read, before anything is changed.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import os
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink.config.properties import parse_properties
from spark_kafka_sink.devbroker.base.authorizer import Acl
from spark_kafka_sink.devbroker.base.client_quotas import Quotas, entity_of
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.scram_credential import ScramCredential
from spark_kafka_sink.devbroker.base.topic_names import validate_topic_name
from spark_kafka_sink.devbroker.log import disk
from spark_kafka_sink.devbroker.log.files import OpenFiles, read_file, replace_file
from spark_kafka_sink.devbroker.log.log_directory import FileLogDirectory
from spark_kafka_sink.devbroker.log.metadata_log import MetadataLog
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.acl_codes import (
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from spark_kafka_sink.record.private_directory import (
    UnsafeDirectoryError,
    check_private_files,
    make_private_directory,
)
from spark_kafka_sink.security.sasl import SaslMechanism
from spark_kafka_sink.security.scram import HASHES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_LOCK = ".lock"
_CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
#: The names of the checkpoints.
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
_CLUSTER = "cluster.json"
_META_PROPERTIES = "meta.properties"
_META_VERSION = "1"
_SCHEMAS = "schemas.json"
_METADATA_LOG = "metadata.log"
_BROKERS = "brokers"
#: How deep files are: those of a broker's logs, and of the logs of a cluster's brokers.
_BROKER_LEVELS: Final = 2
_CLUSTER_LEVELS: Final = 4
_RESERVE = ".reserve"
_PARTITION_METADATA = "partition.metadata"
#: The epoch of a broker that has none, because it does not replicate.
_NO_EPOCH: Final = -1
_DELETE_SUFFIX = "-delete"
_VERSION = 1
_CHECKPOINT_VERSION = 0
_HEADER_LINES = 2
#: As Kafka writes it: no leading zeros, and at most the digits of an int32.
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
_PARTITION_DIRECTORY = re.compile(rf"(.+)-({_PARTITION.pattern})")
_ID_LINE = "topic_id: "
#: What a stored cluster of any other content raises.
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
_WHOLE_METADATA = re.compile(rf"version: 0\n{_ID_LINE}[\w-]{{22}}\n")
#: Enough for the names and settings of more than a thousand topics. Once a larger file has been
#: written, its size is reserved.
RESERVED_BYTES: Final = 256 * 1024
#: At most this share of the free space is reserved; on a small disk, the rest is for records.
RESERVED_SHARE: Final = 1 / 16
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Reserve:
    """A file of zeros whose disk space is for the operations that free space on a full disk.

    Deleting topics or records begins with writing a file that records the deletion, which itself
    needs space. On a full disk the reserve is removed before the write, and filled again after it.
    """

    def __init__(self, path: Path) -> None:
        """Use the space that an earlier broker has reserved; reserve no more yet."""
        self._path = path
        self._size = path.stat().st_size if path.exists() else 0
        self._largest = RESERVED_BYTES

    def replace_file(self, path: Path, content: bytes) -> None:
        """Replace a file as `files.replace_file` does; on a full disk, use the reserved space."""
        self._largest = max(self._largest, len(content))
        released = 0
        try:
            replace_file(path, content)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            released = self._release()
            replace_file(path, content)
        finally:
            self._fill(released)

    def _release(self) -> int:
        """Release the reserved space, and return its size."""
        released, self._size = self._size, 0
        disk.remove(self._path)
        return released

    def _fill(self, released: int) -> None:
        """Reserve `released` bytes again or, if that is 0, what is missing, limited by the share.

        If the disk has less space than that, the next call continues.
        """
        target = released or min(self._largest, int(self._free_bytes() * RESERVED_SHARE))
        if target <= self._size:
            return
        with suppress(OSError):
            descriptor = disk.open_file(self._path, create=True)
            try:
                while self._size < target:
                    self._size += disk.write(descriptor, bytes(target - self._size), self._size)
            finally:
                os.close(descriptor)

    def _free_bytes(self) -> int:
        """Return the free space of the disk, without the reserved space."""
        disk_space = os.statvfs(self._path.parent)
        return disk_space.f_bavail * disk_space.f_frsize


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTopic:
    """A topic as it is stored."""

    name: str
    topic_id: uuid.UUID
    #: The settings that were set explicitly.
    configs: Mapping[str, str]
    #: The brokers of each partition's replicas.
    replicas: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCluster:
    """A cluster as it is stored."""

    cluster_id: str
    next_producer_id: int = 0
    internal_topic_ids: Mapping[str, uuid.UUID] = field(default_factory=dict)
    #: By name.
    topics: Mapping[str, StoredTopic] = field(default_factory=dict)
    #: Settings that were changed while brokers ran, by the broker's id; empty for all brokers.
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    acls: tuple[Acl, ...] = ()
    client_quotas: Quotas = field(default_factory=dict)
    #: The users of SCRAM, by name and mechanism.
    scram_users: Mapping[tuple[str, SaslMechanism], ScramCredential] = field(default_factory=dict)


class MetaProperties(NamedTuple):
    """The broker that a directory belongs to (Kafka's meta.properties, version 1)."""

    cluster_id: str
    node_id: int


class DataDirectory:
    """The directory of a cluster or of one of its brokers, used by one process at a time."""

    def __init__(self, path: Path, owner: MetaProperties | None = None) -> None:
        """Open and lock the directory, and create it if it does not exist.

        With an `owner` it is that broker's, and otherwise a cluster's. Raises OSError, and
        ConfigError if it belongs to another broker.
        """
        self._identity = _CLUSTER if owner is None else _META_PROPERTIES
        try:
            self.path = path = make_private_directory(path, follow_link=True)
            levels = _CLUSTER_LEVELS if owner is None else _BROKER_LEVELS
            check_private_files(path, levels=levels)
        except UnsafeDirectoryError as error:
            raise ConfigError(
                f"the data directory {path} cannot be used: {error}. Nobody but this user may be "
                "able to change it: use another directory, or remove what is there"
            ) from error
        self.open_files = OpenFiles()
        self._reserve = Reserve(path / _RESERVE)
        is_new = not (path / self._identity).exists()
        if is_new and any(entry.name != _LOCK for entry in path.iterdir()):
            raise ConfigError(
                f"{path} is not empty and has no {self._identity}: use an empty directory, or one "
                "that the broker created"
            )
        self._lock = disk.open_file(path / _LOCK, create=True)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise ConfigError(
                f"{path} is in use by another broker: stop it, or use another directory"
            ) from error
        if owner is not None:
            try:
                self._check_owner(owner)
            except BaseException:
                os.close(self._lock)
                raise

    def close(self) -> None:
        """Close all files and release the directory's lock."""
        self.open_files.close_all()
        os.close(self._lock)

    def _check_owner(self, owner: MetaProperties) -> None:
        """Store the owner of a new directory, or compare that of an existing one."""
        path = self.path / _META_PROPERTIES
        content = read_file(path)
        if content is None:
            lines = {
                "cluster.id": owner.cluster_id,
                "directory.id": base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode(),
                "node.id": owner.node_id,
                "version": _META_VERSION,
            }
            text = "".join(f"{name}={value}\n" for name, value in lines.items())
            self._reserve.replace_file(path, text.encode())
            return
        try:
            found = _decode_meta_properties(content)
        except (ValueError, KeyError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        if found != owner:
            raise ConfigError(
                f"{self.path} belongs to broker {found.node_id} of cluster {found.cluster_id}, and "
                f"this is broker {owner.node_id} of cluster {owner.cluster_id}: use the directory "
                "of this broker, or an empty one"
            )

    def read_clean_shutdown(self) -> int:
        """Return the epoch of the broker that was shut down cleanly, -1 for none.

        As CleanShutdownFileHandler.read: a marker that cannot be read has none. Raises OSError.
        """
        content = read_file(self.path / _CLEAN_SHUTDOWN)
        try:
            return int(json.loads(content or b"")["brokerEpoch"])
        except _MALFORMED:
            return _NO_EPOCH

    def was_shut_down_cleanly(self) -> bool:
        """Return whether the last shutdown was clean, or there was none."""
        marker = self.path / _CLEAN_SHUTDOWN
        return marker.exists() or not (self.path / self._identity).exists()

    def remove_clean_shutdown(self) -> None:
        """Remove the marker of a clean shutdown. Raises OSError."""
        disk.remove(self.path / _CLEAN_SHUTDOWN)
        disk.sync_directory(self.path)

    def mark_clean_shutdown(self, broker_epoch: int = _NO_EPOCH) -> None:
        """Record that all logs are closed (CleanShutdownFileHandler). Raises OSError."""
        content = f'{{"version":0,"brokerEpoch":{broker_epoch}}}'
        self._reserve.replace_file(self.path / _CLEAN_SHUTDOWN, content.encode())

    # The cluster.

    def read_cluster(self) -> StoredCluster | None:
        """Read the stored cluster; None if there is none. Raises ConfigError."""
        path = self.path / _CLUSTER
        content = read_file(path)
        if content is None:
            return None
        try:
            return _decode_cluster(json.loads(content.decode()))
        except _MALFORMED as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error

    def write_cluster(self, cluster: StoredCluster) -> None:
        """Store the cluster. Raises OSError."""
        content = {
            "version": _VERSION,
            "cluster_id": cluster.cluster_id,
            "next_producer_id": cluster.next_producer_id,
            "internal_topic_ids": {
                name: str(topic_id) for name, topic_id in cluster.internal_topic_ids.items()
            },
            "broker_configs": {
                name: dict(configs) for name, configs in cluster.broker_configs.items()
            },
            "topics": [
                {
                    "name": topic.name,
                    "id": str(topic.topic_id),
                    "configs": dict(topic.configs),
                    "replicas": topic.replicas,
                }
                for _, topic in sorted(cluster.topics.items())
            ],
            "acls": [_encode_acl(acl) for acl in cluster.acls],
            "client_quotas": [
                {"entity": dict(entity), "quotas": dict(quotas)}
                for entity, quotas in cluster.client_quotas.items()
            ],
            "scram_users": [
                {
                    "user": user,
                    "mechanism": mechanism,
                    "iterations": credential.iterations,
                    "salt": credential.salt.hex(),
                    "stored_key": credential.stored_key.hex(),
                    "server_key": credential.server_key.hex(),
                }
                for (user, mechanism), credential in cluster.scram_users.items()
            ],
        }
        self._reserve.replace_file(self.path / _CLUSTER, json.dumps(content).encode())

    # The schemas.

    @property
    def schemas_path(self) -> Path:
        """The file of the schemas."""
        return self.path / _SCHEMAS

    def read_schemas(self) -> bytes | None:
        """Return the stored schemas; None if there are none. Raises OSError."""
        return read_file(self.schemas_path)

    def write_schemas(self, content: bytes) -> None:
        """Store the schemas. Raises OSError."""
        self._reserve.replace_file(self.schemas_path, content)

    def metadata_log(self) -> MetadataLog:
        """Return the metadata log of a cluster that replicates. Raises OSError."""
        return MetadataLog(self.path / _METADATA_LOG, self.open_files)

    @property
    def has_brokers(self) -> bool:
        """Whether the directory is that of a cluster that replicates."""
        return (self.path / _BROKERS).exists()

    def broker_path(self, node_id: int) -> Path:
        """Return the path of a broker's directory in that of a cluster that replicates."""
        return self.path / _BROKERS / str(node_id)

    def delete_broker(self, node_id: int) -> None:
        """Delete the directory of a broker that does not run, if there is one. Raises OSError."""
        with suppress(FileNotFoundError):
            disk.remove_directory(self.broker_path(node_id))

    # Logs.

    def log_directory(
        self, topic_partition: TopicPartition, topic_id: uuid.UUID
    ) -> FileLogDirectory:
        """Return the directory of a partition's log.

        Raises OSError.
        """
        path = self._log_path(topic_partition)
        content = _partition_metadata(topic_id)
        directory = FileLogDirectory(path, self.open_files)
        if self._read_partition_metadata(topic_partition) != content:
            replace_file(path / _PARTITION_METADATA, content.encode(), flush=False)
        return directory

    def is_of_another_topic(self, topic_partition: TopicPartition, topic_id: uuid.UUID) -> bool:
        """Return whether an earlier topic of the same name has left its log. Raises OSError."""
        present = self._read_partition_metadata(topic_partition)
        return present != _partition_metadata(topic_id) and bool(_WHOLE_METADATA.fullmatch(present))

    def _read_partition_metadata(self, topic_partition: TopicPartition) -> str:
        content = read_file(self._log_path(topic_partition) / _PARTITION_METADATA)
        return (content or b"").decode("ascii", "replace")

    def delete_logs(self, topic_partitions: Iterable[TopicPartition]) -> list[OSError]:
        """Remove logs; return the errors.

        Each log is first renamed, in one step. After an error, renamed logs are left to
        `remove_deleted`, and the others to a caller that compares `logs` with the topics.
        """
        failed: list[OSError] = []
        doomed: list[Path] = []
        for topic_partition in topic_partitions:
            path = self._log_path(topic_partition)
            target = path.with_name(f"{uuid.uuid4().hex}{_DELETE_SUFFIX}")
            try:
                for entry in path.iterdir():
                    self.open_files.close(entry)
                disk.rename(path, target)
            except OSError as error:
                failed.append(error)
            else:
                doomed.append(target)
        try:
            if doomed:
                disk.sync_directory(self.path)
        except OSError as error:
            return [*failed, error]
        for path in doomed:
            try:
                disk.remove_directory(path)
            except OSError as error:
                failed.append(error)
        return failed

    def remove_deleted(self) -> None:
        """Remove what is left of deleted logs. Raises OSError."""
        for entry in self.path.glob(f"*{_DELETE_SUFFIX}"):
            disk.remove_directory(entry)

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic that have a directory, sorted."""
        return sorted(log.partition for log in self.logs() if log.topic == topic)

    def logs(self) -> set[TopicPartition]:
        """Return all partitions that have a directory."""
        matches = (_PARTITION_DIRECTORY.fullmatch(entry.name) for entry in self.path.iterdir())
        return {TopicPartition(match[1], int(match[2])) for match in matches if match}

    def _log_path(self, topic_partition: TopicPartition) -> Path:
        return self.path / f"{topic_partition.topic}-{topic_partition.partition}"

    # Checkpoints.

    def read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        """Read a checkpoint of the logs' offsets (OffsetCheckpointFile). Raises ConfigError."""
        path = self.path / name
        content = read_file(path)
        if content is None:
            return {}
        try:
            lines = content.decode("ascii").splitlines()
            entries = [line.split(" ") for line in lines[_HEADER_LINES:]]
            offsets = {
                TopicPartition(_topic_name(topic), _partition(partition)): int(offset)
                for topic, partition, offset in entries
            }
            is_whole = (int(lines[0]), int(lines[1])) == (_CHECKPOINT_VERSION, len(offsets))
        except (ValueError, IndexError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        if not is_whole:
            raise ConfigError(f"{path} cannot be read: it is incomplete")
        return offsets

    def write_checkpoint(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace a checkpoint. Raises OSError."""
        lines = [str(_CHECKPOINT_VERSION), str(len(offsets))]
        lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
        self._reserve.replace_file(self.path / name, ("\n".join(lines) + "\n").encode())


def _decode_meta_properties(content: bytes) -> MetaProperties:
    properties = parse_properties(content.decode("latin-1"))
    version = properties["version"]
    if version != _META_VERSION:
        raise ValueError(f"version {version} is not supported")
    return MetaProperties(properties["cluster.id"], int(properties["node.id"]))


def _decode_cluster(content: dict[str, Any]) -> StoredCluster:
    if content["version"] != _VERSION:
        raise ValueError(f"version {content['version']} is not supported")
    return StoredCluster(
        cluster_id=str(content["cluster_id"]),
        next_producer_id=int(content["next_producer_id"]),
        internal_topic_ids={
            _topic_name(name): uuid.UUID(topic_id)
            for name, topic_id in content["internal_topic_ids"].items()
        },
        topics={
            _topic_name(topic["name"]): StoredTopic(
                name=topic["name"],
                topic_id=uuid.UUID(topic["id"]),
                configs={str(key): str(value) for key, value in topic["configs"].items()},
                replicas=tuple(tuple(map(int, replicas)) for replicas in topic["replicas"]),
            )
            for topic in content["topics"]
        },
        broker_configs={
            str(name): {str(key): str(value) for key, value in configs.items()}
            # Directories of earlier releases have none.
            for name, configs in content.get("broker_configs", {}).items()
        },
        acls=tuple(map(_decode_acl, content.get("acls", ()))),
        client_quotas={
            entity_of(stored["entity"]): {
                str(key): float(value) for key, value in stored["quotas"].items()
            }
            for stored in content.get("client_quotas", ())
        },
        scram_users=dict(map(_decode_scram_user, content.get("scram_users", ()))),
    )


def _decode_scram_user(
    stored: dict[str, Any],
) -> tuple[tuple[str, SaslMechanism], ScramCredential]:
    mechanism = SaslMechanism(stored["mechanism"])
    if mechanism not in HASHES:
        raise ValueError(f"{mechanism} is not a mechanism of SCRAM")
    credential = ScramCredential(
        salt=bytes.fromhex(stored["salt"]),
        iterations=int(stored["iterations"]),
        stored_key=bytes.fromhex(stored["stored_key"]),
        server_key=bytes.fromhex(stored["server_key"]),
    )
    return (str(stored["user"]), mechanism), credential


def _encode_acl(acl: Acl) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else value.name
        for name, value in acl._asdict().items()
    }


def _decode_acl(stored: dict[str, str]) -> Acl:
    acl = Acl(
        resource_type=ResourceType[stored["resource_type"]],
        name=stored["name"],
        pattern_type=ResourcePatternType[stored["pattern_type"]],
        principal=stored["principal"],
        host=str(stored["host"]),
        operation=AclOperation[stored["operation"]],
        permission_type=AclPermissionType[stored["permission_type"]],
    )
    try:
        acl.check()
    except RefusedError as error:
        raise ValueError(error.message) from error
    return acl


def _partition_metadata(topic_id: uuid.UUID) -> str:
    """Return the content of the file that says whose log a directory has."""
    encoded = base64.urlsafe_b64encode(topic_id.bytes)[:22].decode()
    return f"version: 0\n{_ID_LINE}{encoded}\n"


def _topic_name(name: str) -> str:
    """Return a stored name; raise ValueError unless it is one of a topic: it becomes a path."""
    try:
        validate_topic_name(name)
    except RefusedError as error:
        raise ValueError(error.message) from error
    return name


def _partition(number: str) -> int:
    if not _PARTITION.fullmatch(number):
        raise ValueError(f"{number!r} is not the number of a partition")
    return int(number)
