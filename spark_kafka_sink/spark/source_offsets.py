"""The Kafka offsets that a micro-batch has read up to, and their commits to a consumer group.

Before a micro-batch Spark writes `<checkpointLocation>/offsets/<batch id>` (`OffsetSeqLog`): a line
with the version, one with metadata, then one per source with the offset at which the batch ends.
Version 2 prefixes the source's id and a colon. The offset of Spark's Kafka source is
`{"topic": {"partition": offset}}`, and so is that of ours; `-` stands for a source that has no
offset yet. The lines of other sources are skipped: each source has its own format.

The offsets are committed after the micro-batch is written, so that lag monitors see its progress.
Spark itself relies on its checkpoint and never reads the group, so a failed commit is only a
warning, and the next micro-batch makes up for it. A replayed batch commits its offsets again, which
changes nothing.
"""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.config.allow_lists import NotAllowedError, allow_lists, read_named_file
from spark_kafka_sink.errors import BrokerError, ConfigError, KafkaError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.config.sink_options import SinkOptions

logger = logging.getLogger(__name__)

_VERSION_1: Final = "v1"
_VERSION_2: Final = "v2"
_METADATA_LINE: Final = 1
_NOTHING_YET: Final = "-"
_PARTITION: Final = re.compile(r"[0-9]{1,10}")
_MAX_PARTITION: Final = 2**31 - 1
_MAX_OFFSET: Final = 2**63 - 1
#: A line for each source, with 20 bytes or so for each partition.
_MAX_BYTES: Final = 1 << 26
_SCHEME: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
#: The option of the sink that names the group.
_OPTION: Final = "sourceConsumerGroup"
_UNKNOWN_TOPIC: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name
#: Advice for broker errors, by name.
_ADVICE: Final = {
    ErrorCode.UNKNOWN_MEMBER_ID.name: (
        "the group has active members, and Kafka accepts offsets only from them: use a group that "
        "no consumer joins"
    ),
    _UNKNOWN_TOPIC: "{option} requires the stream to read from the cluster that it writes to",
    ErrorCode.GROUP_AUTHORIZATION_FAILED.name: "{option} requires READ on the group",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED.name: (
        "{option} requires READ on the topics of the source"
    ),
}
#: Errors that concern a single topic.
_OF_A_TOPIC: Final = frozenset(
    {
        _UNKNOWN_TOPIC,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED.name,
    }
)


def offsets_directory(checkpoint_location: str | None) -> Path:
    """Return the directory of the offsets, which need not exist yet.

    Raises ConfigError if the location cannot be a local path, or if the environment does not allow
    it. The error shows only the scheme of a URI, since the rest may contain keys.
    """
    if not checkpoint_location:
        raise ConfigError(
            "sourceConsumerGroup requires checkpointLocation as an option of the stream: the "
            "checkpoint has the offsets that each micro-batch has read"
        )
    directory = Path(_local_path(checkpoint_location)) / "offsets"
    try:
        allow_lists().check_path(str(directory))
    except NotAllowedError as error:
        raise ConfigError(f"sourceConsumerGroup: checkpointLocation: {error}") from None
    return directory


def _local_path(checkpoint_location: str) -> str:
    scheme = _SCHEME.match(checkpoint_location)
    if scheme is None:
        return checkpoint_location
    # Hadoop paths are not URLs: they are not percent-encoded.
    path = checkpoint_location[scheme.end() :]
    if path.startswith("///"):
        path = path[2:]
    if scheme[1].lower() != "file" or path.startswith("//"):
        raise ConfigError(
            "sourceConsumerGroup requires a checkpointLocation on a local file system of the "
            f"driver, not on {scheme[1]}:"
        )
    return path


def check_offsets_directory(checkpoint_location: str | None) -> None:
    """Raise ConfigError if the driver cannot read the offsets of a query that has begun."""
    directory = offsets_directory(checkpoint_location)
    if not os.access(directory, os.R_OK | os.X_OK):
        raise ConfigError(
            f"sourceConsumerGroup: the driver cannot read the directory {str(directory)!r}. If "
            "checkpointLocation is on a distributed file system, remove sourceConsumerGroup; if "
            "it is a local path of the driver, prefix it with file:"
        )


def may_have_run(checkpoint_location: str | None) -> bool:
    """Return whether a query may have finished a micro-batch; False only if it certainly has not.

    That is certain only if the query has begun and the driver can read its checkpoint locally.
    """
    try:
        offsets = offsets_directory(checkpoint_location)
    except ConfigError:
        return True
    commits = offsets.with_name("commits")
    try:
        if not offsets.is_dir():
            return True
        return commits.is_dir() and any(file.name.isdecimal() for file in commits.iterdir())
    except OSError:
        # A path without a scheme may belong to another file system; a local one may be unrelated.
        return True


def read_source_offsets(
    checkpoint_location: str | None, batch_id: int
) -> dict[TopicPartition, int]:
    """Read a micro-batch's offsets as `source_offsets` does; raises KafkaError."""
    path = offsets_directory(checkpoint_location) / str(batch_id)
    try:
        return source_offsets(read_named_file(path, max_bytes=_MAX_BYTES).decode())
    except OSError as error:
        raise KafkaError(
            f"could not read the offsets of the batch: {str(path)!r}: {error.strerror}"
        ) from error
    except UnicodeDecodeError:
        raise KafkaError(f"{str(path)!r} is not an offset log of Spark: it is not UTF-8") from None
    except KafkaError as error:
        raise KafkaError(f"{str(path)!r} is not an offset log of Spark: {error}") from error


def source_offsets(text: str) -> dict[TopicPartition, int]:
    """Parse the next offsets of all Kafka sources from a file of the log; raises KafkaError.

    For a partition that two sources read, the lower offset counts: both have read up to it.
    """
    version, *rest = text.split("\n")
    if version not in {_VERSION_1, _VERSION_2}:
        # The path may lead to any file, and its content into a log.
        raise KafkaError(f"it does not begin with {_VERSION_1} or {_VERSION_2}")
    if len(rest) <= _METADATA_LINE:
        raise KafkaError("it ends before the line of the first source")
    offsets: dict[TopicPartition, int] = {}
    has_source = False
    for number, line in enumerate(rest[_METADATA_LINE:], start=_METADATA_LINE + 2):
        offset = line
        if version == _VERSION_2:
            _, colon, offset = line.partition(":")
            if not colon:
                raise KafkaError(f"line {number} has no source id")
        if offset == _NOTHING_YET:
            has_source = True
            continue
        positions = _kafka_offsets(offset, number)
        if positions is None:
            continue
        has_source = True
        for topic_partition, position in positions.items():
            offsets[topic_partition] = min(position, offsets.get(topic_partition, position))
    if not has_source:
        raise KafkaError("none of its sources is Kafka")
    return offsets


def _kafka_offsets(line: str, number: int) -> dict[TopicPartition, int] | None:
    """Parse a source's line; return None if the source is not Kafka."""
    try:
        offset = json.loads(line)
    except (ValueError, RecursionError) as error:
        if line.startswith("{"):
            raise KafkaError(f"line {number} is not valid JSON: {error}") from error
        return None
    if not _is_kafka_offset(offset):
        return None
    positions = {
        TopicPartition(topic, int(partition)): position
        for topic, partitions in offset.items()
        for partition, position in partitions.items()
    }
    for topic_partition, position in positions.items():
        if topic_partition.partition > _MAX_PARTITION or not 0 <= position <= _MAX_OFFSET:
            raise KafkaError(
                f"line {number} has an invalid position: offset {position} of {topic_partition}"
            )
    return positions


def _is_kafka_offset(offset: Any) -> bool:
    return isinstance(offset, dict) and all(
        isinstance(partitions, dict)
        and all(
            # bool is a subclass of int.
            _PARTITION.fullmatch(partition) is not None and type(position) is int
            for partition, position in partitions.items()
        )
        for partitions in offset.values()
    )


# --- commits


def commit_source_offsets(options: SinkOptions, batch_id: int) -> None:
    """Commit a micro-batch's source offsets to the group, if one is set; a failure is logged."""
    group_id = options.source_consumer_group
    if group_id is None:
        return
    try:
        offsets = read_source_offsets(options.checkpoint_location, batch_id)
        refused = _commit(options, group_id, offsets)
    except KafkaError as error:
        _warn(group_id, batch_id, _with_advice(error, _OPTION))
        return
    causes = refusals_text(refused, _OPTION)
    if causes:
        _warn(group_id, batch_id, causes)


def refusals_text(refused: Mapping[TopicPartition, KafkaError], option: str) -> str:
    """Return why offsets were refused, and what to do; empty if none was.

    `option` is the one that names the group.
    """
    # One error of each kind: brokers reject whole topics or the whole request.
    causes: dict[tuple[str, ...], KafkaError] = {}
    for topic_partition, refusal in sorted(refused.items()):
        name = refusal.name if isinstance(refusal, BrokerError) else str(refusal)
        topic = (topic_partition.topic,) if name in _OF_A_TOPIC else ()
        causes.setdefault((name, *topic), refusal)
    return "; ".join(_with_advice(cause, option) for cause in causes.values())


def _commit(
    options: SinkOptions, group_id: str, offsets: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, BrokerError]:
    from spark_kafka_sink.admin.driver_client import DriverClient

    with DriverClient(options.producer) as admin:
        timeout = options.producer.request_timeout_ms / 1000
        return admin.commit_group_offsets(group_id, offsets, timeout=timeout)


def _with_advice(error: KafkaError, option: str) -> str:
    name = error.name if isinstance(error, BrokerError) else None
    if name is None or name not in _ADVICE or (name == _UNKNOWN_TOPIC and option != _OPTION):
        return str(error)
    return f"{error}: {_ADVICE[name].format(option=option)}"


def _warn(group_id: str, batch_id: int, cause: str) -> None:
    logger.warning(
        "batch %d was written, but not all of its source offsets were committed to "
        "sourceConsumerGroup %r; the next batch will make up for it: %s",
        batch_id,
        group_id,
        cause,
    )
