"""Inspect consumer groups: their members, and the lag of each partition.

This is `pykafka-groups`, or `python -m spark_kafka_sink.groups`. Its commands are:

    list      show the consumer groups of a cluster
    describe  show one group: its members, and the committed offset, end and lag of each partition

Neither changes anything. The lag is the number of offsets between the committed offset and the end
of the partition (its high watermark), as Kafka's own tool counts it.

Exit codes: 0 done; 1 the cluster refused, the group does not exist, or the end of a partition is
not known; 2 wrong usage; 130 interrupted by Ctrl-C. With `--json` the result is one JSON object on
standard output; errors are one sentence on standard error. The output never contains a secret, nor
control characters from data that others have written.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.admin.client.admin_client import AdminClient
from spark_kafka_sink.admin.driver_client import DriverClient
from spark_kafka_sink.admin.values.offsets import OffsetSpec
from spark_kafka_sink.cluster_command import (
    OK,
    REFUSED,
    WRONG_USAGE,
    add_connection_options,
    add_output_options,
    complain,
    connection_settings,
    fail,
    interrupted,
    log_to_standard_error,
    say,
)
from spark_kafka_sink.command_line import add_version, program_name
from spark_kafka_sink.config.admin.admin_config import AdminConfig
from spark_kafka_sink.config.admin.admin_settings import ADMIN_CONFIG_DEF
from spark_kafka_sink.errors import AdminError, ConfigError, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from spark_kafka_sink.admin.values.groups import ConsumerGroupDescription, ConsumerGroupListing
    from spark_kafka_sink.admin.values.offsets import ListedOffset
    from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition

_EXAMPLES: Final = {"list": "", "describe": "billing --json"}
_NONE: Final = "-"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        return _main(arguments)
    except KeyboardInterrupt:
        return interrupted()


def _main(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    log_to_standard_error()
    try:
        config = AdminConfig.from_mapping(
            connection_settings(options, ADMIN_CONFIG_DEF, "spark-kafka-sink-groups")
        )
    except (ConfigError, OSError) as error:
        return fail(error, WRONG_USAGE)
    try:
        _reach(config, options.timeout)
        with AdminClient(config) as admin:
            code: int = options.run(admin, options)
    except AdminError as error:
        [*errors] = error.errors.values()
        return fail(errors[0] if len(errors) == 1 else error, REFUSED)
    except KafkaError as error:
        return fail(error, REFUSED)
    return code


def _reach(config: AdminConfig, seconds: float) -> None:
    """Wait for the cluster, and report on standard error why the wait takes longer."""

    def report(error: KafkaError) -> None:
        complain(f"waiting for up to {seconds:.0f} s (--timeout): {error}")

    with DriverClient(config) as client:
        client.reach(timeout=seconds, on_wait=report)


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
        description="Inspect consumer groups: their members, and the lag of each partition.\n"
        "Exit codes: 0 done; 1 refused by the cluster, or no such group; 2 wrong usage.",
        epilog=_examples(program, "list", "describe"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_version(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(
        name: str, run: Callable[[AdminClient, argparse.Namespace], int], text: str
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
    described.add_argument(
        "group", metavar="GROUP", type=_group_id, help="the group.id of the consumers"
    )
    return parser


def _group_id(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8") from None
    return text


# --- list


def _list(admin: AdminClient, options: argparse.Namespace) -> int:
    found = admin.list_consumer_groups(timeout=options.timeout)
    rows = [(it.group_id, it.state or _NONE, it.type or _NONE) for it in found]
    lines = _table(("group", "state", "type"), rows) if rows else ["there are no consumer groups"]
    say(lines, {"groups": [_listing_json(it) for it in found]}, as_json=options.json)
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

    place: TopicPartition
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
        """The committed offset, the end and the lag."""
        return self.committed_offset, self.end_offset, self.lag


def _describe(admin: AdminClient, options: argparse.Namespace) -> int:
    timeout = options.timeout
    group = admin.describe_consumer_groups([options.group], timeout=timeout)[options.group]
    committed = admin.list_consumer_group_offsets(options.group, timeout=timeout)
    owners = {place: member.member_id for member in group.members for place in member.assignment}
    places = sorted({*committed, *owners})
    code = OK
    try:
        ends = admin.list_offsets(dict.fromkeys(places, OffsetSpec.LATEST), timeout=timeout)
    except AdminError as error:
        ends, code = error.results, REFUSED
        for place, reason in error.errors.items():
            complain(f"warning: the end of {place} is not known: {reason}")
    progress = [_progress(place, committed, ends, owners) for place in places]
    say(_as_text(group, progress), _as_json(group, progress), as_json=options.json)
    return code


def _progress(
    place: TopicPartition,
    committed: dict[TopicPartition, OffsetAndMetadata],
    ends: dict[TopicPartition, ListedOffset],
    owners: dict[TopicPartition, str],
) -> _Progress:
    return _Progress(
        place=place,
        committed_offset=committed[place].offset if place in committed else None,
        end_offset=ends[place].offset if place in ends else None,
        member_id=owners.get(place),
    )


def _total_lag(progress: Iterable[_Progress]) -> int:
    return sum(it.lag or 0 for it in progress)


def _as_text(group: ConsumerGroupDescription, progress: Sequence[_Progress]) -> list[str]:
    assignor = f", assignor {group.partition_assignor}" if group.partition_assignor else ""
    summary = (
        f"group {group.group_id}: {group.state}, {group.type.lower()} protocol{assignor}, "
        f"coordinator {group.coordinator}, total lag {_total_lag(progress)}"
    )
    lines = [summary]
    if group.members:
        rows = [
            (it.member_id, it.client_id, it.host, ", ".join(map(str, it.assignment)) or _NONE)
            for it in group.members
        ]
        lines += ["", *_table(("member", "client id", "host", "partitions"), rows)]
    else:
        lines += ["", "it has no members"]
    if progress:
        of_partitions = [
            (str(it.place), *map(_shown, it.numbers), it.member_id or _NONE) for it in progress
        ]
        lines += ["", *_table(("partition", "committed", "end", "lag", "member"), of_partitions)]
    else:
        lines += ["", "it has committed no offsets"]
    return lines


def _shown(number: int | None) -> str:
    return _NONE if number is None else str(number)


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
                "member_id": it.member_id,
                "group_instance_id": it.group_instance_id,
                "client_id": it.client_id,
                "host": it.host,
                "partitions": [place._asdict() for place in it.assignment],
            }
            for it in group.members
        ],
        "partitions": [
            {
                **it.place._asdict(),
                "committed_offset": it.committed_offset,
                "end_offset": it.end_offset,
                "lag": it.lag,
                "member_id": it.member_id,
            }
            for it in progress
        ],
    }


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with the columns aligned; the last one may have any width."""
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (heading, *rows)
    ]


if __name__ == "__main__":
    sys.exit(main())
