"""Inspect and repair exactly-once writes.

This is `pykafka-transactions`, or `python -m spark_kafka_sink.transactions`. Its commands are:

    list          show writes, open transactions and blocked consumers, of all prefixes or of one
    describe      show one prefix, with every transaction of its decided and mixed writes
    abort         abort the open transactions of a prefix that belong to no decision
    roll-forward  commit the decided writes of a prefix, as its next start would
    resolve       end a partly visible write: --skip (accept it as it is), --replay (write it again)

The last three change the cluster; with `--dry-run` they only print what they would do. They follow
the same rules as the drivers (`exactly_once.operations`): a decided write is never aborted, an
undecided one never committed.

Exit codes: 0 done, or nothing to do (a cluster without a ledger has nothing to list); 1 the cluster
or the ledger refused, or a ledger entry cannot be read; 2 wrong usage or settings; 3 a partly
visible write has to be resolved, even if ledger entries cannot be read; 4 the output could not be
written, and the error says if a change was made; 130 interrupted by Ctrl-C; 141 the reader of the
output has ended, as `head` does: a change was made nevertheless. `list` and `describe` skip
unreadable entries and report the position and the fault of each as a warning on standard error, and
in `unreadable` of the JSON object. With `--json` the result is one JSON object on standard output;
errors are one sentence on standard error. The output never contains a secret, nor control
characters from data that others have written.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.admin import terminal
from spark_kafka_sink.admin.cluster_check import list_topics, similar_names
from spark_kafka_sink.admin.driver_client import DriverClient
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF, ProducerConfig
from spark_kafka_sink.config.sink_options import DEFAULT_LEDGER_TOPIC
from spark_kafka_sink.errors import (
    BrokerError,
    ConfigError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
)
from spark_kafka_sink.exactly_once import operations, recovery
from spark_kafka_sink.exactly_once.ledger import Budget, Ledger, read_all_prefixes
from spark_kafka_sink.exactly_once.ledger_entries import LedgerState, decided_writes
from spark_kafka_sink.exactly_once.operations import held_back, inspect
from spark_kafka_sink.exactly_once.transactional_ids import check_prefix
from spark_kafka_sink.exactly_once.transactions_report import (
    UNKNOWN_PREFIX,
    as_text,
    describe_producer,
    held_back_json,
    report_json,
    unreadable_json,
)
from spark_kafka_sink.exactly_once.transitions import WriteState
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.version import add_version, program_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NEEDS_AN_OPERATOR: Final = 3
_UNKNOWN_TOPIC: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    return terminal.run_command(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = terminal.parse_arguments(_parser(), arguments)
    terminal.log_to_standard_error()
    try:
        config = ProducerConfig.from_mapping(
            terminal.connection_settings(
                options, PRODUCER_CONFIG_DEF, "spark-kafka-sink-transactions"
            )
        )
        if options.prefix is not None:
            check_prefix(options.prefix)
    except (ConfigError, OSError) as error:
        return terminal.fail(error, terminal.WRONG_USAGE)
    try:
        with DriverClient(config) as admin:
            session = _Session(admin, config, options)
            session.reach()
            code: int = options.run(session)
    except ConfigError as error:
        # What only a connection shows, such as a truststore that cannot be read.
        return terminal.fail(error, terminal.WRONG_USAGE)
    except (KafkaError, IllegalStateError) as error:
        return terminal.fail(error, terminal.REFUSED)
    return code


# --- usage


_EXAMPLES: Final = {
    "list": "[--prefix orders] [--topic events]",
    "describe": "--prefix orders --json",
    "abort": "--prefix orders --dry-run",
    "roll-forward": "--prefix orders --dry-run",
    "resolve": "--prefix orders --write-id QUERY_ID --skip",
}


def _examples(program: str, *names: str) -> str:
    lines = [
        f"  {program} {name} \\\n    --bootstrap-server localhost:9092 {_EXAMPLES[name]}"
        for name in names
    ]
    return "\n".join(["examples:", *lines])


def _parser() -> argparse.ArgumentParser:
    program = program_name("pykafka-transactions", "spark_kafka_sink.transactions")
    parser = argparse.ArgumentParser(
        prog=program,
        description="Inspect and repair exactly-once writes.\nExit codes: 0 done; 1 refused by the "
        "cluster or the ledger; 2 wrong usage or\nsettings; 3 a partly visible write must be "
        "resolved; 4 output not written;\n130 Ctrl-C; 141 the reader of the output has ended.",
        epilog=_examples(program, "list", "describe", "abort", "roll-forward", "resolve"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_version(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(
        name: str, run: Callable[[_Session], int], *, text: str, needs_prefix: bool = True
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
        sub.add_argument(
            "--ledger-topic",
            default=DEFAULT_LEDGER_TOPIC,
            help="the ledgerTopic of the query or job (default: %(default)s)",
        )
        sub.add_argument(
            "--prefix", required=needs_prefix, help="the transactionalIdPrefix of the query or job"
        )
        terminal.add_output_options(sub)
        return sub

    for name, details, text in (
        ("list", False, "show writes, open transactions, and the consumers they hold back"),
        ("describe", True, "show everything about one prefix"),
    ):
        sub = command(name, partial(_show, details=details), text=text, needs_prefix=details)
        sub.add_argument(
            "--topic",
            action="append",
            default=[],
            help="also show what holds back read_committed consumers of this topic",
        )
    changing = [
        command("abort", _abort, text="abort open transactions that belong to no decision"),
        command("roll-forward", _roll_forward, text="commit the decided writes"),
        command("resolve", _resolve, text="resolve a partly visible write"),
    ]
    for sub in changing:
        sub.add_argument("--dry-run", action="store_true", help="only print what would be done")
    changing[-1].add_argument(
        "--write-id", required=True, help="the write: a query id, or the writeId of a job"
    )
    how = changing[-1].add_mutually_exclusive_group(required=True)
    how.add_argument("--skip", action="store_true", help="accept the batch as it is")
    how.add_argument(
        "--replay",
        action="store_true",
        help="have the batch written again; its committed rows will appear twice",
    )
    return parser


# --- commands


class _MissingLedgerError(KafkaError):
    """There is no ledger topic.

    `list` and `describe` treat this as an empty ledger. The commands that change something fail,
    since the decisions could be in a ledger of another name.
    """


class _Session:
    """The cluster, the options and the time budget of one command."""

    def __init__(
        self, admin: DriverClient, config: ProducerConfig, options: argparse.Namespace
    ) -> None:
        self.admin = admin
        self._config = config
        self.options = options
        self.budget = Budget.of(time.monotonic, options.timeout)
        self.name = f"an operator on {platform.node()}, process {os.getpid()}"

    @property
    def now_ms(self) -> int:
        return int(time.time() * 1000)

    @property
    def ledger(self) -> Ledger:
        return Ledger(
            self.admin,
            topic=self.options.ledger_topic,
            prefix=self.options.prefix,
            clock=time.time,
        )

    def reach(self) -> None:
        """Wait for the cluster, and report on standard error why the wait takes longer."""
        seconds = self.budget.left("reaching the cluster")

        def report(error: KafkaError) -> None:
            terminal.complain(f"waiting for up to {seconds:.0f} s (--timeout): {error}")

        self.admin.reach(timeout=seconds, on_wait=report)

    def states(self) -> dict[str, LedgerState]:
        """Read the ledger of one prefix, or of all; raise _MissingLedgerError if there is none."""
        topic, prefix = self.options.ledger_topic, self.options.prefix
        try:
            states = read_all_prefixes(self.admin, topic, self.budget)
        except BrokerError as error:
            if error.name != _UNKNOWN_TOPIC:
                raise
            raise _MissingLedgerError(
                f"the ledger topic {topic!r} does not exist: either there were no exactly-once "
                "writes, or they set another ledgerTopic: pass that with --ledger-topic (default: "
                f"{DEFAULT_LEDGER_TOPIC})"
            ) from error
        if prefix is None:
            return states
        return {prefix: states.get(prefix) or LedgerState(prefix)}

    def partitions(self, topic: str) -> int:
        try:
            return self.admin.partition_count(
                topic, timeout=self.budget.left("looking up a topic"), may_appear=False
            )
        except KafkaTimeoutError as error:
            cause = error.__cause__
            if not isinstance(cause, BrokerError) or cause.name != _UNKNOWN_TOPIC:
                raise
            try:
                similar = similar_names(topic, list_topics(self._config))
            except KafkaError as failure:
                similar = f"the cluster's topics could not be listed ({failure})"
            raise KafkaError(
                f"--topic {topic!r} does not exist in the cluster, or this user may not see it; "
                f"{similar}. --topic is a data topic, to show what holds back its consumers; for "
                f"the ledger use --ledger-topic (default: {DEFAULT_LEDGER_TOPIC})"
            ) from error

    def say(
        self, lines: Sequence[str], answer: dict[str, Any], *, has_changed: bool = False
    ) -> None:
        """Print the result, as text or as JSON; `has_changed` is whether the cluster changed."""
        terminal.say(lines, answer, as_json=self.options.json, has_changed=has_changed)


def _show(session: _Session, *, details: bool) -> int:
    admin, budget = session.admin, session.budget
    try:
        states = session.states()
    except _MissingLedgerError as error:
        terminal.complain(str(error))
        states = {}
    reports = [
        inspect(admin, prefix, state, ledger_topic=session.options.ledger_topic, budget=budget)
        for prefix, state in states.items()
    ]
    partitions = {partition for report in reports for partition in report.partitions}
    for topic in session.options.topic:
        partitions |= {TopicPartition(topic, number) for number in range(session.partitions(topic))}
    unreadable = [(report.prefix, entry) for report in reports for entry in report.unreadable]
    for prefix, entry in unreadable:
        terminal.complain(f"warning: an entry of prefix {prefix} is not shown: {entry}")
    now_ms = session.now_ms
    held = held_back(admin, partitions, now_ms=now_ms, budget=budget)
    session.say(
        as_text(
            reports,
            held,
            now_ms=now_ms,
            details=details,
            topics=session.options.topic,
        ),
        {
            "prefixes": [report_json(report, now_ms=now_ms) for report in reports],
            "held_back": [held_back_json(partition) for partition in held],
            "unreadable": [unreadable_json(prefix, entry) for prefix, entry in unreadable],
        },
    )
    if any(report.needs_an_operator for report in reports):
        return NEEDS_AN_OPERATOR
    return terminal.REFUSED if unreadable else terminal.OK


def _nothing_to_abort(prefix: str, state: LedgerState) -> str:
    return f"nothing to abort under {prefix}" + (f": {UNKNOWN_PREFIX}" if state.is_empty else "")


def _abort(session: _Session) -> int:
    prefix = session.options.prefix
    [state] = session.states().values()
    if session.options.dry_run:
        todo = operations.undecided_open(session.admin, prefix, state, session.budget)
        session.say(
            [
                f"would abort {transaction.transactional_id} "
                f"({describe_producer(transaction.producer)})"
                for transaction in todo
            ]
            or [_nothing_to_abort(prefix, state)],
            {
                "dry_run": True,
                "aborted": [transaction.transactional_id for transaction in todo],
                "failed": {},
            },
        )
        return terminal.OK
    done = operations.abort(
        session.admin,
        session.ledger,
        now_ms=session.now_ms,
        name=session.name,
        budget=session.budget,
    )
    failed = {
        result.transaction.transactional_id: str(result.error) for result in done if result.error
    }
    ended = [result.transaction.transactional_id for result in done if not result.error]
    session.say(
        [
            *(f"aborted {name}" for name in ended),
            *(
                f"could not abort {name}, which remains open until it times out: {why}"
                for name, why in failed.items()
            ),
        ]
        or [_nothing_to_abort(prefix, state)],
        {"dry_run": False, "aborted": ended, "failed": failed},
        has_changed=bool(ended),
    )
    return terminal.REFUSED if failed else terminal.OK


def _roll_forward(session: _Session) -> int:
    prefix = session.options.prefix
    [state] = session.states().values()
    if session.options.dry_run:
        pending = decided_writes(state)
        session.say(
            [
                f"would commit {len(record.winners)} transactions of batch "
                f"{record.write.batch_id} of {write_id}"
                for write_id, record in pending.items()
            ]
            or [f"nothing to roll forward under {prefix}"],
            {"dry_run": True, "rolled_forward": dict.fromkeys(pending, "decided")},
        )
        return terminal.OK
    ends = operations.roll_forward(
        session.admin, session.ledger, now_ms=session.now_ms, budget=session.budget
    )
    session.say(
        [
            recovery.describe_mixed(write_id, record)
            if record.write.state is WriteState.MIXED
            else f"batch {record.write.batch_id} of {write_id} is {record.write.state.value}"
            for write_id, record in ends.items()
        ]
        or [f"nothing to roll forward under {prefix}"],
        {
            "dry_run": False,
            "rolled_forward": {
                write_id: record.write.state.value for write_id, record in ends.items()
            },
        },
        has_changed=bool(ends),
    )
    is_mixed = any(record.write.state is WriteState.MIXED for record in ends.values())
    return NEEDS_AN_OPERATOR if is_mixed else terminal.OK


def _resolve(session: _Session) -> int:
    options = session.options
    [state] = session.states().values()
    known = state.writes.get(options.write_id)
    if known is None:
        raise KafkaError(
            f"the ledger has no write {options.write_id!r} under prefix {options.prefix!r}; "
            "`list` shows those that it has"
        )
    if known.write.state is not WriteState.MIXED:
        raise IllegalStateError(
            f"there is nothing to resolve: batch {known.write.batch_id} of {options.write_id!r} "
            f"is {known.write.state.value}"
        )
    becomes = WriteState.DONE if options.skip else WriteState.VOID
    if not options.dry_run:
        operations.resolve(
            session.ledger,
            options.write_id,
            skip=options.skip,
            now_ms=session.now_ms,
            budget=session.budget,
        )
    verb = "would be" if options.dry_run else "is"
    meaning = (
        "it counts as written as it is"
        if options.skip
        else "the next start writes it again, and its committed rows appear twice"
    )
    session.say(
        [f"batch {known.write.batch_id} of {options.write_id} {verb} {becomes.value}: {meaning}"],
        {
            "dry_run": options.dry_run,
            "write_id": options.write_id,
            "batch_id": known.write.batch_id,
            "state": becomes.value,
        },
        has_changed=not options.dry_run,
    )
    return terminal.OK


if __name__ == "__main__":
    sys.exit(main())
