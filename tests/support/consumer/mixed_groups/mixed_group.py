"""A group with members of three clients that join, leave, stall, freeze and are killed.

While they do, a producer writes numbered records: record `n` to partition `n % PARTITIONS`, at
offset `n // PARTITIONS`. In the end

- every record was returned by some member, and everything is committed,
- in each generation, a partition was owned by one member,
- what our members returned of a partition had no gaps between its assignment and its revocation.

librdkafka does not tell the generation, so its members count only for the first point.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import ConsumerGroupTopicPartitions, Producer

from tests.support.consumer.mixed_groups.member_log import LogReader
from tests.support.kafka.kafka_files import KAFKA_3, KAFKA_4, java_command, kafka_jars
from tests.support.kafka.prepared_release import quick_options
from tests.support.kafka.process_leash import ProcessLeash
from tests.support.kafka.real_kafka import start_kafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tests.support.kafka.real_kafka import KafkaCluster

PARTITIONS = 7
ASSIGNORS = ("range", "cooperative-sticky", "roundrobin")
#: What can be given instead of an assignor: all members have the consumer protocol (KIP-848), or
#: each one of both, as during a migration.
CONSUMER, EITHER = "consumer protocol", "either protocol"
_JAVA_ASSIGNORS = {
    "range": "RangeAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
    "roundrobin": "RoundRobinAssignor",
}
_HERE = Path(__file__).parent
_MODULES = "tests.support.consumer.mixed_groups"
_MOST_MEMBERS = 5
_RECORDS_PER_SECOND = 500
#: Seconds between two disturbances, at least and at most.
_PAUSES = (0.3, 2.0)
#: Seconds of a freeze and of a stall, at least and at most: around the timeouts below.
_FREEZES = (0.2, 9.0)
_STALLS = (1.0, 9.0)
#: Seconds of a freeze and of a stall in a script: more than the timeouts below.
_FREEZE_SECONDS = 5.0
_STALL = (0.5, 6.0)
#: A member that never stalls.
_NO_STALL = (1e9, 0.0)
_MAX_POLL_MS = 5000
_CLASSIC = {"session.timeout.ms": 4000, "heartbeat.interval.ms": 500}
#: Seconds; much more than a busy machine needs.
_PATIENCE = 180
_ADMIN_SECONDS = 120
_BROKER = {
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "4000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
}


class Kind(StrEnum):
    """The client of a member."""

    OURS = "ours"
    CONFLUENT = "confluent-kafka"
    JAVA = "Java"


class Action(StrEnum):
    """What happens to a member; a new one joins, or joins and stalls soon."""

    JOIN = "join"
    STALL = "stall"
    LEAVE = "leave"
    KILL = "kill"
    FREEZE = "freeze"


#: Disturbances, one after the other.
Script = tuple[tuple[Action, Kind], ...]
#: Joins and freezes are twice as frequent as the others.
_RANDOM_ACTIONS = (*(Action.JOIN, Action.FREEZE) * 2, Action.LEAVE, Action.KILL)


@dataclass(slots=True)
class MixedReport:
    """What happened in a run, and what went wrong."""

    seed: int
    version: str
    #: Or CONSUMER, or EITHER.
    assignor: str
    records: int = 0
    duplicates: int = 0
    #: Of our members and those of Java.
    generations: int = 0
    events: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return a summary of a few lines, beginning with the seed."""
        events = ", ".join(f"{count} x {what}" for what, count in sorted(self.events.items()))
        return "\n".join(
            [
                f"mixed group on Kafka {self.version} with {self.assignor}, seed {self.seed}",
                f"  {self.records:,} records, {self.duplicates:,} of them again",
                f"  {self.generations} generations",
                f"  {events}",
                *(f"  PROBLEM: {problem}" for problem in self.problems),
            ]
        )


@dataclass
class _Member:
    name: str
    kind: Kind
    process: subprocess.Popen[bytes]
    log: LogReader
    errors: Path
    thaw_at: float | None = None
    #: It was told to end, or was killed.
    is_ended: bool = False
    is_reported: bool = False
    is_killed: bool = False
    events: list[dict[str, Any]] = field(default_factory=list)

    def has(self, event: str, first: int = 0) -> bool:
        """Return whether it has written such an event, after the `first` ones."""
        return any(each["event"] == event for each in self.events[first:])


def run_mixed_groups(
    *,
    seed: int,
    seconds: float,
    version: str,
    say: Callable[[str], None],
) -> list[MixedReport]:
    """Run a group of each assignor with random disturbances, one after the other.

    These are all assignors of the version, and both ways with the new protocol. Raises
    KafkaUnavailableError.
    """
    assignors = ASSIGNORS if version == KAFKA_3 else (*ASSIGNORS, CONSUMER, EITHER)
    return _run(
        seed, version, assignors, lambda group, _: group.run(seconds / len(assignors)), say=say
    )


def run_scripts(*, seed: int, version: str, scripts: Mapping[str, Script]) -> list[MixedReport]:
    """Run a group of each assignor with its script, one after the other.

    The seed decides the members' settings. Raises KafkaUnavailableError.
    """
    return _run(seed, version, scripts, lambda group, assignor: group.follow(scripts[assignor]))


def _run(
    seed: int,
    version: str,
    assignors: Iterable[str],
    disturb: Callable[[MixedGroup, str], None],
    *,
    say: Callable[[str], None] = lambda _: None,
) -> list[MixedReport]:
    reports = []
    with (
        tempfile.TemporaryDirectory() as java_classes,
        start_kafka(version, overrides=_BROKER) as kafka,
    ):
        _compile_java_member(java_classes)
        for assignor in assignors:
            report = MixedReport(seed, version, assignor)
            with MixedGroup(kafka, report, java_classes) as group:
                disturb(group, assignor)
            say(f"  {assignor}: {report.records:,} records, {len(report.problems)} problems")
            reports.append(report)
    return reports


def _compile_java_member(directory: str) -> None:
    jars = os.pathsep.join(map(str, kafka_jars(KAFKA_4).glob("*.jar")))
    compiler = [java_command(), "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    subprocess.run(  # noqa: S603  # our own command
        [*compiler, "-cp", jars, "-d", directory, str(_HERE / "GroupMember.java")],
        check=True,
        stdin=subprocess.DEVNULL,
    )


class MixedGroup:
    """One group and its members; a context manager that kills what is left of them."""

    def __init__(self, kafka: KafkaCluster, report: MixedReport, java_classes: str) -> None:
        """Create the topic; `run` starts the members."""
        self._java_classes = java_classes
        self._kafka = kafka
        self._report = report
        self._chance = random.Random(f"{report.seed} {report.assignor}")
        self._topic = kafka.create_topic(PARTITIONS)
        self._group = f"mixed-{self._topic}"
        self._producer = Producer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "enable.idempotence": True,
                "log_level": 0,
            }
        )
        self._members: list[_Member] = []
        self._seen: Counter[int] = Counter()
        self._started = 0.0
        self._stack = ExitStack()
        self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._leash = ProcessLeash()
        self._stack.callback(self._leash.close)

    def __enter__(self) -> Self:
        """Return the group itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the members that still run."""
        for member in self._members:
            if member.process.poll() is None:
                member.process.kill()
            member.process.wait()
            member.log.close()
        self._stack.close()

    def run(self, seconds: float) -> None:
        """Run the group with faults for some seconds, then let it finish, and check everything."""
        for kind in Kind:
            self._join(kind, self._random_stall())
        self._started = next_at = time.monotonic()
        while (now := time.monotonic()) < self._started + seconds:
            self._write(now)
            if now >= next_at:
                self._disturb()
                next_at = now + self._chance.uniform(*_PAUSES)
            self._look(now)
            time.sleep(0.02)
        self._finish()
        self._check()

    def follow(self, script: Script) -> None:
        """Run the group with these disturbances, let it finish, and check everything.

        Each one has taken effect when the next one comes: other members read what the killed one
        has read, and the new ones read, too.
        """
        self._started = time.monotonic()
        for kind in Kind:
            self._join(kind)
        self._wait_until_all_read()
        for action, kind in script:
            if action is Action.JOIN:
                self._join(kind)
            elif action is Action.STALL:
                self._join(kind, _STALL)
                joined = self._members[-1]
                self._wait_and_write(lambda: joined.has("stalled"), f"{joined.name} to stall")  # noqa: B023
            else:
                member = next(member for member in self._live if member.kind is kind)
                self._strike(member, action, _FREEZE_SECONDS)
            self._wait_until_all_read()
        self._finish()
        self._check()

    def _wait_until_all_read(self) -> None:
        """Write on until each live member is awake and has read, and each partition was read."""
        known = {member.name: len(member.events) for member in self._members}
        first = self._report.records

        def all_have_read() -> bool:
            return self._seen.keys() >= set(range(first, first + PARTITIONS)) and all(
                member.thaw_at is None and member.has("records", known[member.name])
                for member in self._live
            )

        self._wait_and_write(all_have_read, "all members to read")

    def _wait_and_write(self, condition: Callable[[], bool], what: str) -> None:
        def is_fulfilled() -> bool:
            self._write(time.monotonic())
            return condition()

        self._wait(is_fulfilled, what)

    # --- disturbances

    @property
    def _live(self) -> list[_Member]:
        return [member for member in self._members if not member.is_ended]

    def _random_stall(self) -> tuple[float, float]:
        """Return when a new member stalls, if it does, and for how long."""
        chance = self._chance
        return (
            (chance.uniform(1, 20), chance.uniform(*_STALLS))
            if chance.random() < 0.4
            else _NO_STALL
        )

    def _join(self, kind: Kind, stall: tuple[float, float] = _NO_STALL) -> None:
        chance = self._chance
        name = f"{len(self._members)} ({kind})"
        stall_after, stall_seconds = stall
        settings: dict[str, Any] = {
            "bootstrap.servers": self._kafka.bootstrap_servers,
            "group.id": self._group,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "max.poll.interval.ms": _MAX_POLL_MS,
            **self._protocol(kind),
        }
        test = {
            "topic": self._topic,
            "stall_after": stall_after,
            "stall_seconds": stall_seconds,
            "commits": chance.choice(["automatic", "synchronous", "asynchronous"]),
            "arrow": chance.random() < 0.3,
        }
        if kind is Kind.OURS:
            settings |= {"auto.commit.interval.ms": 300, "max.poll.records": 100}
        if kind is Kind.JAVA:
            command = _java_member(self._java_classes, settings, test)
        else:
            module = "our_member" if kind is Kind.OURS else "confluent_member"
            arguments = json.dumps({**settings, "test": test})
            command = [sys.executable, "-m", f"{_MODULES}.{module}", arguments]
        log, errors = self._directory / f"{name}.log", self._directory / f"{name}.err"
        with log.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(  # noqa: S603  # our own command
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        self._leash.hold(process.pid, self._directory / "none")
        self._members.append(_Member(name, kind, process, LogReader(log), errors))
        self._report.events[f"{kind} joins"] += 1

    def _protocol(self, kind: Kind) -> dict[str, Any]:
        assignor = self._report.assignor
        if assignor == EITHER:
            assignor = self._chance.choice([CONSUMER, "cooperative-sticky"])
            if kind is Kind.CONFLUENT:
                # As a leader, librdkafka adds the members' user data to their assignments, which
                # Kafka takes for those of an unknown assignor that it cannot upgrade.
                assignor = CONSUMER
        if assignor == CONSUMER:
            return {"group.protocol": "consumer"}
        return {"partition.assignment.strategy": assignor, **_CLASSIC}

    def _disturb(self) -> None:
        live = self._live
        awake = [member for member in live if member.thaw_at is None]
        action = self._chance.choice(_RANDOM_ACTIONS)
        if action is Action.JOIN or len(awake) < 2:
            if len(live) < _MOST_MEMBERS:
                # Ours are most of them.
                kinds = [Kind.OURS, Kind.OURS, Kind.CONFLUENT, Kind.JAVA]
                self._join(self._chance.choice(kinds), self._random_stall())
            return
        self._strike(self._chance.choice(awake), action, self._chance.uniform(*_FREEZES))

    def _strike(self, member: _Member, action: Action, freeze_seconds: float) -> None:
        self._report.events[f"{member.kind}: {action}"] += 1
        if action is Action.FREEZE:
            member.process.send_signal(signal.SIGSTOP)
            member.thaw_at = time.monotonic() + freeze_seconds
        else:
            member.is_ended = True
            member.is_killed = action is Action.KILL
            member.process.send_signal(signal.SIGKILL if member.is_killed else signal.SIGTERM)

    def _look(self, now: float) -> None:
        """Resume frozen members, read what they have written, and find those that have failed."""
        for member in self._members:
            if member.thaw_at is not None and now >= member.thaw_at:
                member.thaw_at = None
                member.process.send_signal(signal.SIGCONT)
            for event in member.log.new_events():
                member.events.append(event)
                if event["event"] == "records":
                    self._seen.update(event["numbers"])
                elif event["event"] in {"stalled", "poll_failed", "commit_failed"}:
                    self._report.events[f"{member.kind}: {event['event']}"] += 1
            if not member.is_ended and member.process.poll() is not None:
                member.is_ended = True
                self._failed(member)

    def _failed(self, member: _Member) -> None:
        if member.is_reported:
            return
        member.is_reported = True
        said = member.errors.read_text(errors="replace")[-3000:]
        self._report.problems.append(
            f"member {member.name} ended with {member.process.returncode}:\n{said}"
        )

    # --- writing

    def _write(self, now: float) -> None:
        due = int((now - self._started) * _RECORDS_PER_SECOND)
        while self._report.records < due:
            number = self._report.records
            self._producer.produce(self._topic, f"{number}", partition=number % PARTITIONS)
            self._report.records += 1
        self._producer.poll(0)

    # --- the end

    def _finish(self) -> None:
        """Make the members read the rest, commit and leave."""
        if self._producer.flush(_PATIENCE):
            raise TimeoutError("not all records were written")
        if not any(member.kind is Kind.OURS for member in self._live):
            self._join(Kind.OURS)
        self._wait(lambda: len(self._seen) == self._report.records, "all records to be read")
        # Who has read them may have lost them since, so that another member reads them again.
        self._wait(lambda: not self._not_committed(), "all offsets to be committed")
        for member in self._live:
            if member.thaw_at is None:
                # One that has just begun would not handle the signal.
                self._wait(lambda: bool(member.events), f"{member.name} to join", member)  # noqa: B023
        self._wait(lambda: not any(it.thaw_at for it in self._members), "thawing")
        for member in self._live:
            member.is_ended = True
            member.process.send_signal(signal.SIGTERM)
        self._wait(
            lambda: all(member.process.poll() is not None for member in self._members),
            "all members to leave",
        )

    def _wait(
        self, condition: Callable[[], bool], what: str, member: _Member | None = None
    ) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not condition() and (member is None or not member.is_ended):
            now = time.monotonic()
            if now > deadline:
                self._report.problems.append(f"timed out waiting for {what}")
                return
            self._look(now)
            time.sleep(0.05)
        self._look(time.monotonic())

    def _check(self) -> None:
        report = self._report
        missing = sorted(set(range(report.records)) - set(self._seen))
        if missing:
            report.problems.append(f"{len(missing)} records are missing, from {missing[:10]}")
        report.duplicates = self._seen.total() - len(self._seen)
        if not missing and (behind := self._not_committed()):
            report.problems.append(f"not committed: {behind}")
        for member in self._members:
            is_closed = any(event["event"] == "closed" for event in member.events)
            # One that was still starting has handled no signal.
            if member.events and not (is_closed or member.is_killed):
                self._failed(member)
            if member.kind is Kind.OURS:
                report.problems += gaps(member.name, member.events)
        owners = owners_by_generation({it.name: it.events for it in self._members})
        report.generations = len({generation for generation, _ in owners})
        report.problems += [
            f"partition {partition} has several owners in generation {generation}: {sorted(names)}"
            for (generation, partition), names in sorted(owners.items())
            if len(names) > 1
        ]

    def _not_committed(self) -> dict[int, tuple[int, int]]:
        asked = [ConsumerGroupTopicPartitions(self._group)]
        [future] = self._kafka.admin.list_consumer_group_offsets(asked).values()
        answers = future.result(_ADMIN_SECONDS).topic_partitions
        committed = {each.partition: each.offset for each in answers}
        ends = self._kafka.end_offsets(self._topic)
        return {
            partition: (committed.get(partition, -1), end)
            for partition, end in ends.items()
            if committed.get(partition, -1) != end and end
        }


def _java_member(classes: str, settings: dict[str, Any], test: dict[str, Any]) -> list[str]:
    options = dict(settings)
    if (assignor := settings.get("partition.assignment.strategy")) is not None:
        name = f"org.apache.kafka.clients.consumer.{_JAVA_ASSIGNORS[assignor]}"
        options["partition.assignment.strategy"] = name
    # An archive can be used only if its class path comes first.
    path = os.pathsep.join([f"{kafka_jars(KAFKA_4)}/*", classes])
    return [
        java_command(),
        *quick_options(KAFKA_4),
        *("-Xmx128m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", path, "GroupMember"),
        *(test["topic"], str(test["stall_after"]), str(test["stall_seconds"])),
        *(f"{key}={value}" for key, value in options.items()),
    ]


def owners_by_generation(
    events: dict[str, list[dict[str, Any]]],
) -> dict[tuple[int, int], set[str]]:
    """Return who has owned, or read, each partition in each generation, as far as it is known."""
    owners: dict[tuple[int, int], set[str]] = defaultdict(set)
    for name, written in events.items():
        for event in written:
            generation = event.get("generation")
            if generation is None or generation < 0:
                continue
            if event["event"] == "assigned":
                for partition in event["partitions"]:
                    owners[generation, partition].add(name)
            elif event["event"] == "records":
                owners[generation, event["partition"]].add(name)
    return owners


def gaps(name: str, events: list[dict[str, Any]]) -> list[str]:
    """Return where a member has skipped or repeated records, or returned some of others."""
    found = []
    #: The next number of each partition; None at the beginning.
    owned: dict[int, int | None] = {}
    for event in events:
        match event["event"]:
            case "assigned":
                owned |= dict.fromkeys(event["added"])
                if sorted(owned) != event["partitions"]:
                    found.append(f"{name} has {event['partitions']}, but was told {sorted(owned)}")
            case "revoked" | "lost":
                for partition in event["partitions"]:
                    owned.pop(partition, None)
            case "records":
                partition, numbers = event["partition"], event["numbers"]
                if partition not in owned:
                    found.append(f"{name} has read partition {partition} of another member")
                    continue
                expected = owned[partition]
                first = numbers[0] if expected is None else expected
                if numbers != list(range(first, first + PARTITIONS * len(numbers), PARTITIONS)):
                    found.append(
                        f"{name} has read {numbers[:3]}... of partition {partition}, not {first}"
                    )
                owned[partition] = numbers[-1] + PARTITIONS
    return found
