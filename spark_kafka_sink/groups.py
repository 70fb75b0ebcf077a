"""Inspect and change consumer groups: their members, committed offsets and lag.

This is `pykafka-groups`, or `python -m spark_kafka_sink.groups`. Its commands are:

    list            show the consumer groups of a cluster
    describe        show one group: its members, and committed offset, end and lag by partition
    reset-offsets   set committed offsets of a group without members
    delete-offsets  delete committed offsets of a group
    delete          delete groups without members, with their offsets

The last three only print what they would change, unless they are given `--execute`. They decide as
Kafka's own kafka-consumer-groups.sh does. The lag is the number of offsets between the committed
offset and the end of the partition (its high watermark), as Kafka's own tool counts it.

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
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.admin.admin_client import AdminClient
from spark_kafka_sink.admin.driver_client import DriverClient
from spark_kafka_sink.admin.values import OffsetSpec
from spark_kafka_sink.cluster_command import (
    OK,
    REFUSED,
    WRONG_USAGE,
    TimeLimit,
    add_connection_options,
    add_output_options,
    complain,
    connection_settings,
    fail,
    log_to_standard_error,
    parse_arguments,
    run_command,
    say,
    shown,
    table,
)
from spark_kafka_sink.command_line import add_version, program_name
from spark_kafka_sink.config.admin_config import ADMIN_CONFIG_DEF, AdminConfig
from spark_kafka_sink.errors import AdminError, ConfigError, KafkaError
from spark_kafka_sink.group_changes import (
    add_delete_offsets_options,
    add_delete_options,
    add_reset_options,
    delete,
    delete_offsets,
    group_id,
    reset_offsets,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from spark_kafka_sink.admin.values import (
        ConsumerGroupDescription,
        ConsumerGroupListing,
        ListedOffset,
    )
    from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition

_EXAMPLES: Final = {
    "list": "",
    "describe": "billing --json",
    "reset-offsets": "billing --topic orders --to-earliest",
    "delete-offsets": "billing --topic orders:0,1",
    "delete": "billing --execute",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    return run_command(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = parse_arguments(_parser(), arguments)
    log_to_standard_error()
    try:
        config = AdminConfig.from_mapping(
            connection_settings(options, ADMIN_CONFIG_DEF, "spark-kafka-sink-groups")
        )
    except (ConfigError, OSError) as error:
        return fail(error, WRONG_USAGE)
    limit = TimeLimit.of(options.timeout, time.monotonic)
    try:
        _reach(config, limit)
        with AdminClient(config) as admin:
            code: int = options.run(admin, options, limit)
    except ConfigError as error:
        # What only a connection shows, such as a truststore that cannot be read.
        return fail(error, WRONG_USAGE)
    except AdminError as error:
        [*errors] = error.errors.values()
        return fail(errors[0] if len(errors) == 1 else error, REFUSED)
    except KafkaError as error:
        return fail(error, REFUSED)
    return code


def _reach(config: AdminConfig, limit: TimeLimit) -> None:
    """Wait for the cluster, and report on standard error why the wait takes longer."""

    def report(error: KafkaError) -> None:
        complain(f"waiting for up to {limit.seconds:.0f} s (--timeout): {error}")

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
        name: str, run: Callable[[AdminClient, argparse.Namespace, TimeLimit], int], text: str
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog=_examples(program, name),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(run=run)
        add_connection_options(sub)
        add_output_options(sub)
        return sub

    command("list", _list, "show the consumer groups of a cluster")
    described = command("describe", _describe, "show the members and the lag of one group")
    described.add_argument("group", metavar="GROUP", type=group_id, help="its group.id")
    add_reset_options(
        command("reset-offsets", _reset, "set committed offsets of a group without members")
    )
    add_delete_offsets_options(
        command("delete-offsets", delete_offsets, "delete committed offsets of a group")
    )
    add_delete_options(command("delete", delete, "delete groups without members"))
    return parser


def _reset(admin: AdminClient, options: argparse.Namespace, limit: TimeLimit) -> int:
    return reset_offsets(admin, options, limit, now_ms=time.time_ns() // 1_000_000)


# --- list


def _list(admin: AdminClient, options: argparse.Namespace, limit: TimeLimit) -> int:
    groups = admin.list_consumer_groups(timeout=limit.left())
    rows = [(group.group_id, shown(group.state), shown(group.type)) for group in groups]
    lines = table(("group", "state", "type"), rows) if rows else ["there are no consumer groups"]
    say(lines, {"groups": [_listing_json(group) for group in groups]}, as_json=options.json)
    return OK


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


def _describe(admin: AdminClient, options: argparse.Namespace, limit: TimeLimit) -> int:
    group = admin.describe_consumer_groups([options.group], timeout=limit.left())[options.group]
    committed = admin.list_consumer_group_offsets(options.group, timeout=limit.left())
    owners = {
        partition: member.member_id for member in group.members for partition in member.assignment
    }
    partitions = sorted({*committed, *owners})
    code = OK
    try:
        ends = admin.list_offsets(
            dict.fromkeys(partitions, OffsetSpec.LATEST), timeout=limit.left()
        )
    except AdminError as error:
        ends, code = error.results, REFUSED
        for partition, reason in error.errors.items():
            complain(f"warning: the end of {partition} is not known: {reason}")
    progress = [_progress(partition, committed, ends, owners) for partition in partitions]
    say(_as_text(group, progress), _as_json(group, progress), as_json=options.json)
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
                shown(", ".join(map(str, member.assignment))),
            )
            for member in group.members
        ]
        lines += ["", *table(("member", "client id", "host", "partitions"), rows)]
    else:
        lines += ["", "it has no members"]
    if progress:
        of_partitions = [
            (str(row.partition), *map(shown, row.numbers), shown(row.member_id)) for row in progress
        ]
        lines += ["", *table(("partition", "committed", "end", "lag", "member"), of_partitions)]
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


if __name__ == "__main__":
    sys.exit(main())
