"""Inspect and change consumer groups: their members, committed offsets and lag.

This is `pykafka-groups`, or `python -m spark_kafka_sink.groups`. Its commands are:

    list            show the consumer groups of a cluster
    describe        show one group: its members, and committed offset, end and lag by partition
    reset-offsets   set committed offsets of a group without members
    delete-offsets  delete committed offsets of a group
    delete          delete groups without members, with their offsets

The last three only print what they would change, unless they are given `--execute`. They decide as
Kafka's own kafka-consumer-groups.sh does (ConsumerGroupCommand, OffsetsUtils), except that
partitions that do not exist are errors before anything is changed. The lag is the number of offsets
between the committed offset and the end of the partition (its high watermark), as Kafka's own tool
counts it.

Exit codes: 0 done; 1 the cluster refused all or a part of it, a group, topic or partition does not
exist, the group has members, or the end of a partition is not known; 2 wrong usage or settings;
4 the output could not be written, and the error says if a change was made; 130 interrupted by
Ctrl-C; 141 the reader of the output has ended, as `head` does: a change was made nevertheless. With
`--json` the result is one JSON object on standard output; each error is one sentence on standard
error. The output never contains a secret, nor control characters from data that others have
written.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.admin import terminal
from spark_kafka_sink.admin.admin_client import AdminClient
from spark_kafka_sink.admin.driver_client import DriverClient
from spark_kafka_sink.admin.values import OffsetSpec
from spark_kafka_sink.config.admin_config import ADMIN_CONFIG_DEF, AdminConfig
from spark_kafka_sink.config.durations import duration_ns
from spark_kafka_sink.display import counted
from spark_kafka_sink.errors import AdminError, BrokerError, ConfigError, KafkaError
from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.version import add_version, program_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from spark_kafka_sink.admin.values import (
        ConsumerGroupDescription,
        ConsumerGroupListing,
        ListedOffset,
    )

_EXAMPLES: Final = {
    "list": "",
    "describe": "billing --json",
    "reset-offsets": "billing --topic orders --to-earliest",
    "delete-offsets": "billing --topic orders:0,1",
    "delete": "billing --execute",
}
#: The states of a group without members.
_INACTIVE: Final = {"Empty", "Dead"}
_NO_GROUP: Final = ErrorCode.GROUP_ID_NOT_FOUND.name
#: What brokers answer if a group has got members meanwhile.
_HAS_MEMBERS: Final = {ErrorCode.UNKNOWN_MEMBER_ID.name, ErrorCode.NON_EMPTY_GROUP.name}
#: Timestamps are 64-bit numbers of milliseconds; negative ones mean something else to brokers.
_LAST_TIMESTAMP: Final = 2**63 - 1
_DRY_RUN: Final = "nothing has been changed; --execute does it"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    return terminal.run_command(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = terminal.parse_arguments(_parser(), arguments)
    terminal.log_to_standard_error()
    try:
        config = AdminConfig.from_mapping(
            terminal.connection_settings(options, ADMIN_CONFIG_DEF, "spark-kafka-sink-groups")
        )
    except (ConfigError, OSError) as error:
        return terminal.fail(error, terminal.WRONG_USAGE)
    limit = terminal.TimeLimit.of(options.timeout, time.monotonic)
    try:
        _reach(config, limit)
        with AdminClient(config) as admin:
            code: int = options.run(admin, options, limit)
    except ConfigError as error:
        # What only a connection shows, such as a truststore that cannot be read.
        return terminal.fail(error, terminal.WRONG_USAGE)
    except AdminError as error:
        [*errors] = error.errors.values()
        return terminal.fail(errors[0] if len(errors) == 1 else error, terminal.REFUSED)
    except KafkaError as error:
        return terminal.fail(error, terminal.REFUSED)
    return code


def _reach(config: AdminConfig, limit: terminal.TimeLimit) -> None:
    """Wait for the cluster, and report on standard error why the wait takes longer."""

    def report(error: KafkaError) -> None:
        terminal.complain(f"waiting for up to {limit.seconds:.0f} s (--timeout): {error}")

    with DriverClient(config) as client:
        client.reach(timeout=limit.left(), on_wait=report)


# --- usage


def _examples(program: str, *names: str) -> str:
    lines = [
        f"  {program} {name} --bootstrap-server localhost:9092 {_EXAMPLES[name]}".rstrip()
        for name in names
    ]
    return "\n".join(["examples:", *lines])


def _parser() -> argparse.ArgumentParser:
    program = program_name("pykafka-groups", "spark_kafka_sink.groups")
    parser = argparse.ArgumentParser(
        prog=program,
        description="Inspect and change consumer groups: their members, offsets and lag.\n"
        "Exit codes: 0 done; 1 refused by the cluster, or no such group; 2 wrong usage or\n"
        "settings; 4 output not written; 130 Ctrl-C; 141 the reader of the output has ended.",
        epilog=_examples(program, *_EXAMPLES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_version(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(
        name: str,
        run: Callable[[AdminClient, argparse.Namespace, terminal.TimeLimit], int],
        text: str,
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog=_examples(program, name),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(run=run)
        terminal.add_connection_options(sub)
        terminal.add_output_options(sub)
        return sub

    command("list", _list, "show the consumer groups of a cluster")
    described = command("describe", _describe, "show the members and the lag of one group")
    described.add_argument("group", metavar="GROUP", type=group_id, help="its group.id")
    _add_reset_options(
        command("reset-offsets", _reset_offsets, "set committed offsets of a group without members")
    )
    _add_delete_offsets_options(
        command("delete-offsets", _delete_offsets, "delete committed offsets of a group")
    )
    _add_delete_options(command("delete", _delete, "delete groups without members"))
    return parser


# --- list


def _list(admin: AdminClient, options: argparse.Namespace, limit: terminal.TimeLimit) -> int:
    groups = admin.list_consumer_groups(timeout=limit.left())
    rows = [
        (group.group_id, terminal.shown(group.state), terminal.shown(group.type))
        for group in groups
    ]
    lines = (
        terminal.table(("group", "state", "type"), rows)
        if rows
        else ["there are no consumer groups"]
    )
    terminal.say(
        lines, {"groups": [_listing_json(group) for group in groups]}, as_json=options.json
    )
    return terminal.OK


def _listing_json(group: ConsumerGroupListing) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "state": group.state or None,
        "type": group.type or None,
        "is_simple": group.is_simple,
    }


# --- describe


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """How far a group has read one partition, and the member that reads it."""

    partition: TopicPartition
    committed_offset: int | None
    end_offset: int | None
    member_id: str | None

    @property
    def lag(self) -> int | None:
        """The number of offsets that the group has still to read; None if it is not known."""
        if self.committed_offset is None or self.end_offset is None:
            return None
        return max(0, self.end_offset - self.committed_offset)

    @property
    def numbers(self) -> tuple[int | None, int | None, int | None]:
        return self.committed_offset, self.end_offset, self.lag


def _describe(admin: AdminClient, options: argparse.Namespace, limit: terminal.TimeLimit) -> int:
    group = admin.describe_consumer_groups([options.group], timeout=limit.left())[options.group]
    committed = admin.list_consumer_group_offsets(options.group, timeout=limit.left())
    owners = {
        partition: member.member_id for member in group.members for partition in member.assignment
    }
    partitions = sorted({*committed, *owners})
    code = terminal.OK
    try:
        ends = admin.list_offsets(
            dict.fromkeys(partitions, OffsetSpec.LATEST), timeout=limit.left()
        )
    except AdminError as error:
        ends, code = error.results, terminal.REFUSED
        for partition, reason in error.errors.items():
            terminal.complain(f"warning: the end of {partition} is not known: {reason}")
    progress = [_progress(partition, committed, ends, owners) for partition in partitions]
    terminal.say(_as_text(group, progress), _as_json(group, progress), as_json=options.json)
    return code


def _progress(
    partition: TopicPartition,
    committed: dict[TopicPartition, OffsetAndMetadata],
    ends: dict[TopicPartition, ListedOffset],
    owners: dict[TopicPartition, str],
) -> _Progress:
    return _Progress(
        partition=partition,
        committed_offset=committed[partition].offset if partition in committed else None,
        end_offset=ends[partition].offset if partition in ends else None,
        member_id=owners.get(partition),
    )


def _total_lag(progress: Iterable[_Progress]) -> int | None:
    """Return the lag of all partitions; None if that of any partition is not known."""
    lags = [row.lag for row in progress]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if len(known) == len(lags) else None


def _as_text(group: ConsumerGroupDescription, progress: Sequence[_Progress]) -> list[str]:
    assignor = f", assignor {group.partition_assignor}" if group.partition_assignor else ""
    total = _total_lag(progress)
    summary = (
        f"group {group.group_id}: {group.state}, {group.type.lower()} protocol{assignor}, "
        f"coordinator {group.coordinator}, total lag {'unknown' if total is None else total}"
    )
    lines = [summary]
    if group.members:
        rows = [
            (
                member.member_id,
                member.client_id,
                member.host,
                terminal.shown(", ".join(map(str, member.assignment))),
            )
            for member in group.members
        ]
        lines += ["", *terminal.table(("member", "client id", "host", "partitions"), rows)]
    else:
        lines += ["", "it has no members"]
    if progress:
        of_partitions = [
            (str(row.partition), *map(terminal.shown, row.numbers), terminal.shown(row.member_id))
            for row in progress
        ]
        lines += [
            "",
            *terminal.table(("partition", "committed", "end", "lag", "member"), of_partitions),
        ]
    else:
        lines += ["", "it has committed no offsets"]
    return lines


def _as_json(group: ConsumerGroupDescription, progress: Sequence[_Progress]) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "state": group.state,
        "type": group.type,
        "is_simple": group.is_simple,
        "partition_assignor": group.partition_assignor or None,
        "coordinator": group.coordinator._asdict(),
        "total_lag": _total_lag(progress),
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": [partition._asdict() for partition in member.assignment],
            }
            for member in group.members
        ],
        "partitions": [
            {
                **row.partition._asdict(),
                "committed_offset": row.committed_offset,
                "end_offset": row.end_offset,
                "lag": row.lag,
                "member_id": row.member_id,
            }
            for row in progress
        ],
    }


# --- usage of the commands that change groups


def group_id(text: str) -> str:
    """Return the id of a group that the command line has; raises ArgumentTypeError."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8") from None
    return text


def _add_reset_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="GROUP", type=group_id, help="its group.id")
    scope = parser.add_mutually_exclusive_group(required=True)
    _add_topic_option(scope)
    scope.add_argument(
        "--all-topics",
        action="store_true",
        help="all partitions of which the group has committed offsets",
    )
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--to-earliest", action="store_true", help="the start of each partition")
    to.add_argument("--to-latest", action="store_true", help="the end of each partition")
    to.add_argument(
        "--to-offset",
        type=int,
        metavar="OFFSET",
        help="this offset, or the start or end of a partition that does not reach to it",
    )
    to.add_argument(
        "--to-datetime",
        type=_timestamp,
        metavar="TIME",
        help="the first record that is not older, such as 2026-03-01T12:00:00.000 (in UTC, or "
        "with an offset such as +01:00); without one the end",
    )
    to.add_argument(
        "--by-duration",
        type=_milliseconds,
        metavar="DURATION",
        help="the first record that is not older than this ISO 8601 duration, such as P1DT12H",
    )
    to.add_argument(
        "--shift-by",
        type=int,
        metavar="N",
        help="the committed offset plus N, which may be negative",
    )
    _add_mode_options(parser)


def _add_delete_offsets_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="GROUP", type=group_id, help="its group.id")
    _add_topic_option(parser, required=True)
    _add_mode_options(parser)


def _add_delete_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("groups", metavar="GROUP", nargs="+", type=group_id, help="a group.id")
    _add_mode_options(parser)


def _add_topic_option(parser: argparse._ActionsContainer, *, required: bool = False) -> None:
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        required=required,
        type=_topic,
        metavar="TOPIC[:PARTITION,...]",
        dest="topics",
        help="a topic, or some of its partitions; may be repeated",
    )


def _add_mode_options(parser: argparse.ArgumentParser) -> None:
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--dry-run", action="store_true", help="only print what would be done (the default)"
    )
    mode.add_argument("--execute", action="store_true", help="do it")


def _topic(text: str) -> tuple[str, frozenset[int] | None]:
    """Return a topic and the numbers of its partitions, or None for all of them."""
    topic, separator, numbers = text.partition(":")
    parts = numbers.split(",") if separator else []
    if not group_id(topic) or not all(part.isascii() and part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not TOPIC or TOPIC:PARTITION,...")
    return topic, frozenset(map(int, parts)) if separator else None


def _timestamp(text: str) -> int:
    """Return milliseconds since 1970 of a time in ISO 8601; without an offset it is in UTC."""
    try:
        moment = datetime.fromisoformat(text) if "T" in text else None
    except ValueError:
        moment = None
    if moment is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2026-03-01T12:00:00.000")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime.fromtimestamp(0, UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def _milliseconds(text: str) -> int:
    duration = duration_ns(text)
    if duration is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an ISO 8601 duration such as P1DT12H")
    return duration // 1_000_000


# --- what the commands have in common


def _described(
    admin: AdminClient, group: str, limit: terminal.TimeLimit
) -> ConsumerGroupDescription | KafkaError:
    """Return what the group is, or GROUP_ID_NOT_FOUND if it does not exist."""
    try:
        return admin.describe_consumer_groups([group], timeout=limit.left())[group]
    except AdminError as error:
        reason: KafkaError = error.errors[group]
        if _named(reason) == _NO_GROUP:
            return reason
        raise


def _named(error: KafkaError) -> str | None:
    return error.name if isinstance(error, BrokerError) else None


def _members_error(group: str, state: str | None = None) -> KafkaError:
    detail = "" if state is None else f" (its state is {state})"
    return KafkaError(f"group {group!r} has members{detail}; stop its consumers, and try again")


def _partitions(
    admin: AdminClient,
    topics: Iterable[tuple[str, frozenset[int] | None]],
    limit: terminal.TimeLimit,
) -> list[TopicPartition]:
    """Return the partitions that `--topic` names; raises KafkaError if one does not exist."""
    selected = list(topics)
    described = admin.describe_topics({topic for topic, _ in selected}, timeout=limit.left())
    partitions = set()
    for topic, numbers in selected:
        existing = {partition.partition for partition in described[topic].partitions}
        for number in sorted(existing if numbers is None else numbers):
            if number not in existing:
                raise KafkaError(
                    f"topic {topic!r} has no partition {number}: it has "
                    f"{counted(len(existing), 'partition')}"
                )
            partitions.add(TopicPartition(topic, number))
    return sorted(partitions)


def _offsets(
    admin: AdminClient, partitions: Iterable[TopicPartition], spec: int, limit: terminal.TimeLimit
) -> dict[TopicPartition, int]:
    offsets = admin.list_offsets(dict.fromkeys(partitions, spec), timeout=limit.left())
    return {partition: listed.offset for partition, listed in offsets.items()}


def _report(
    options: argparse.Namespace, heading: Sequence[str], rows: Sequence[Sequence[str]], done: str
) -> list[str]:
    """Return the table, and whether that has been done or would be."""
    return [*terminal.table(heading, rows), "", done if options.execute else _DRY_RUN]


# --- reset-offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reset:
    """A partition, its committed offset, and the one that takes its place."""

    partition: TopicPartition
    old_offset: int | None
    new_offset: int
    end_offset: int
    #: Why the new offset is another one than the option says; None if it is not.
    note: str | None

    @property
    def old_lag(self) -> int | None:
        """The lag before the reset; None if there is no committed offset."""
        return None if self.old_offset is None else max(0, self.end_offset - self.old_offset)

    @property
    def new_lag(self) -> int:
        return max(0, self.end_offset - self.new_offset)


def _reset_offsets(
    admin: AdminClient, options: argparse.Namespace, limit: terminal.TimeLimit
) -> int:
    """Set committed offsets of a group, or print the new ones; return the exit code."""
    now_ms = time.time_ns() // 1_000_000
    group = _described(admin, options.group, limit)
    if isinstance(group, KafkaError):
        # As in Kafka's tool: committed offsets create a group.
        if options.all_topics:
            raise group
    elif group.state not in _INACTIVE:
        raise _members_error(options.group, group.state)
    committed = admin.list_consumer_group_offsets(options.group, timeout=limit.left())
    partitions = (
        sorted(committed) if options.all_topics else _partitions(admin, options.topics, limit)
    )
    since_ms = options.to_datetime
    if options.by_duration is not None:
        since_ms = now_ms - options.by_duration
    resets = _planned(admin, options, partitions, committed, limit, since_ms=since_ms)
    for reset in resets:
        if reset.note is not None:
            terminal.complain(f"note: {reset.note}")
    code = terminal.OK
    if options.execute:
        done = _execute(admin, options.group, resets, limit)
        code = terminal.OK if len(done) == len(resets) else terminal.REFUSED
        resets = done
    rows = [
        (
            str(reset.partition),
            *map(
                terminal.shown, (reset.old_offset, reset.new_offset, reset.old_lag, reset.new_lag)
            ),
        )
        for reset in resets
    ]
    heading = ("partition", "old offset", "new offset", "old lag", "new lag")
    lines = (
        _report(options, heading, rows, f"the offsets of group {options.group} are set")
        if rows
        else [f"group {options.group} has committed no offsets"]
    )
    answer = {
        "group_id": options.group,
        "executed": options.execute,
        "partitions": [_reset_json(reset) for reset in resets],
    }
    has_changed = options.execute and bool(resets)
    terminal.say(lines, answer, as_json=options.json, has_changed=has_changed)
    return code


def _planned(
    admin: AdminClient,
    options: argparse.Namespace,
    partitions: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    limit: terminal.TimeLimit,
    *,
    since_ms: int | None,
) -> list[_Reset]:
    """Return the new offset of each partition; raises KafkaError if there is none."""
    old = {
        partition: committed[partition].offset for partition in partitions if partition in committed
    }
    starts = _offsets(admin, partitions, OffsetSpec.EARLIEST, limit)
    ends = _offsets(admin, partitions, OffsetSpec.LATEST, limit)
    if since_ms is not None:
        offsets = _offsets(admin, partitions, min(max(0, since_ms), _LAST_TIMESTAMP), limit)
    elif options.shift_by is not None:
        for partition in partitions:
            if partition not in old:
                raise KafkaError(
                    f"the offset of {partition} cannot be shifted: group {options.group!r} has not "
                    "committed one"
                )
        offsets = {partition: offset + options.shift_by for partition, offset in old.items()}
    elif options.to_offset is not None:
        offsets = dict.fromkeys(partitions, options.to_offset)
    else:
        offsets = starts if options.to_earliest else ends
    resets = []
    for partition in partitions:
        offset, note = _in_range(
            partition,
            offsets[partition],
            starts[partition],
            ends[partition],
            is_time=since_ms is not None,
        )
        resets.append(
            _Reset(
                partition=partition,
                old_offset=old.get(partition),
                new_offset=offset,
                end_offset=ends[partition],
                note=note,
            )
        )
    return resets


def _in_range(
    partition: TopicPartition, offset: int, start: int, end: int, *, is_time: bool
) -> tuple[int, str | None]:
    """Return the offset to commit, and why it is not the wanted one (OffsetsUtils)."""
    if is_time:
        # Kafka's tool takes the answer for a time as it is: the offset may be just deleted.
        if offset >= 0:
            return offset, None
        return end, f"{partition} has no record from that time on; its offset is the end, {end}"
    if offset > end:
        return end, f"{partition} ends at offset {end}, which is taken instead of {offset}"
    if offset < start:
        return start, f"{partition} starts at offset {start}, which is taken instead of {offset}"
    return offset, None


def _execute(
    admin: AdminClient, group: str, resets: Sequence[_Reset], limit: terminal.TimeLimit
) -> list[_Reset]:
    """Commit the offsets, and return those that the coordinator accepted."""
    offsets = {reset.partition: reset.new_offset for reset in resets}
    try:
        admin.alter_consumer_group_offsets(group, offsets, timeout=limit.left())
    except AdminError as error:
        if any(_named(reason) in _HAS_MEMBERS for reason in error.errors.values()):
            raise _members_error(group) from error
        if not error.results:
            raise
        for reason in error.errors.values():
            terminal.complain(f"error: {reason}")
        return [reset for reset in resets if reset.partition not in error.errors]
    return list(resets)


def _reset_json(reset: _Reset) -> dict[str, Any]:
    return {
        **reset.partition._asdict(),
        "old_offset": reset.old_offset,
        "new_offset": reset.new_offset,
        "end_offset": reset.end_offset,
        "old_lag": reset.old_lag,
        "new_lag": reset.new_lag,
        "note": reset.note,
    }


# --- delete-offsets


def _delete_offsets(
    admin: AdminClient, options: argparse.Namespace, limit: terminal.TimeLimit
) -> int:
    """Delete committed offsets of a group, or print them; return the exit code."""
    group = _described(admin, options.group, limit)
    if isinstance(group, KafkaError):
        raise group
    committed = admin.list_consumer_group_offsets(options.group, timeout=limit.left())
    partitions = _partitions(admin, options.topics, limit)
    read = {partition.topic for member in group.members for partition in member.assignment}
    for topic in sorted(read & {partition.topic for partition in partitions}):
        raise KafkaError(
            f"group {options.group!r} has members that read topic {topic!r}; stop them, and try "
            "again"
        )
    code = terminal.OK
    if options.execute:
        try:
            admin.delete_consumer_group_offsets(options.group, partitions, timeout=limit.left())
        except AdminError as error:
            if not error.results:
                raise
            code = terminal.REFUSED
            for reason in error.errors.values():
                terminal.complain(f"error: {reason}")
            partitions = [partition for partition in partitions if partition not in error.errors]
    offsets = {
        partition: committed[partition].offset if partition in committed else None
        for partition in partitions
    }
    rows = [(str(partition), terminal.shown(offset)) for partition, offset in offsets.items()]
    done = f"the offsets of group {options.group} are deleted"
    answer = {
        "group_id": options.group,
        "executed": options.execute,
        "partitions": [
            {**partition._asdict(), "old_offset": offset} for partition, offset in offsets.items()
        ],
    }
    lines = _report(options, ("partition", "old offset"), rows, done)
    has_changed = options.execute and bool(partitions)
    terminal.say(lines, answer, as_json=options.json, has_changed=has_changed)
    return code


# --- delete


def _delete(admin: AdminClient, options: argparse.Namespace, limit: terminal.TimeLimit) -> int:
    """Delete groups with their offsets, or print them; return the exit code."""
    group_ids = list(dict.fromkeys(options.groups))
    errors: dict[str, KafkaError] = {}
    try:
        described = admin.describe_consumer_groups(group_ids, timeout=limit.left())
    except AdminError as error:
        described, errors = error.results, dict(error.errors)
    for group, description in described.items():
        if description.state not in _INACTIVE:
            errors[group] = _members_error(group, description.state)
    groups = [group for group in group_ids if group not in errors]
    counts = {
        group: len(admin.list_consumer_group_offsets(group, timeout=limit.left()))
        for group in groups
    }
    if options.execute:
        try:
            admin.delete_consumer_groups(groups, timeout=limit.left())
        except AdminError as error:
            for group, reason in error.errors.items():
                is_used = _named(reason) in _HAS_MEMBERS
                errors[group] = _members_error(group) if is_used else reason
            groups = [group for group in groups if group not in errors]
    for group in group_ids:
        if group in errors:
            terminal.complain(f"error: {errors[group]}")
    rows = [(group, described[group].state, str(counts[group])) for group in groups]
    lines = (
        _report(options, ("group", "state", "offsets"), rows, "the groups are deleted")
        if rows
        else ["no groups have been deleted" if options.execute else "there is nothing to delete"]
    )
    answer = {
        "executed": options.execute,
        "groups": [
            {"group_id": group, "state": state, "offsets": counts[group]}
            for group, state, _ in rows
        ],
    }
    has_changed = options.execute and bool(groups)
    terminal.say(lines, answer, as_json=options.json, has_changed=has_changed)
    return terminal.REFUSED if errors else terminal.OK


if __name__ == "__main__":
    sys.exit(main())
