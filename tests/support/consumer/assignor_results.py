"""What Java's assignors and ours assign to the groups of `assignor_cases`.

The main program writes the golden files, with the results of Java's classes:

    python -m tests.support.consumer.assignor_results
"""

from __future__ import annotations

import json
import lzma
import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.assignors.assignment_strategies import assignor_instances
from spark_kafka_sink.consumer.assignors.partition_assignor import (
    Assignment,
    Cluster,
    GroupSubscription,
    Subscription,
    deserialize_assignment,
    deserialize_subscription,
    serialize_assignment,
    serialize_subscription,
)
from spark_kafka_sink.model import ConsumerGroupMetadata, TopicPartition
from tests.support.consumer.assignor_cases import (
    changed_encodings,
    partitions_of,
    random_cases,
    random_encodings,
    words_of,
)
from tests.support.kafka.java_tools import run_java_tool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

GOLDEN = Path(__file__).parents[2] / "unit" / "consumer" / "assignors" / "golden"
JAVA = GOLDEN / "AssignorGoldens.java"
#: The number of golden cases of each assignor with one round, and with several.
SINGLE = 500
SEVERAL = 150
_SEED = 881


def run_java(cases: Iterable[dict]) -> list:
    """Return the results of Java's classes; raises KafkaUnavailableError if there is no Java."""
    output = run_java_tool(str(JAVA), stdin="".join(json.dumps(case) + "\n" for case in cases))
    return [json.loads(line) for line in output.splitlines()]


class OurGroup:
    """A group whose members all use our classes; one leader assigns round after round."""

    def __init__(self, assignor: str) -> None:
        """Start with a new leader, and no member that has an assignment."""
        self._name = assignor
        [self._leader] = assignor_instances([assignor])
        self._joined: dict[str, tuple] = {}
        self._generation = 0

    def subscriptions(self, given: dict) -> dict[str, Subscription]:
        """Return what the leader receives from the members of a round."""
        return {member["id"]: self._subscription(member) for member in given["members"]}

    def _subscription(self, member: dict) -> Subscription:
        data = member.get("data")
        sent = Subscription(
            topics=tuple(member["topics"]),
            user_data=None if data is None else bytes.fromhex(data),
            owned_partitions=tuple(partitions_of(member.get("owned", ""))),
            generation_id=member.get("generation", -1),
            rack_id=member.get("rack"),
        )
        if member.get("carry") and member["id"] in self._joined:
            own, last, generation = self._joined[member["id"]]
            sent = replace(
                sent,
                user_data=own.subscription_user_data(frozenset(sent.topics)),
                owned_partitions=last.partitions if self._name == "cooperative-sticky" else (),
                generation_id=generation,
            )
        received = deserialize_subscription(serialize_subscription(sent))
        return replace(received, group_instance_id=member.get("instance"))

    def assign(self, given: dict) -> dict[str, str]:
        """Return the partitions of each member of a round."""
        cluster = Cluster(
            {name: tuple(map(frozenset, racks)) for name, racks in given["topics"].items()}
        )
        group_subscription = GroupSubscription(self.subscriptions(given))
        assigned = self._leader.assign(cluster, group_subscription).assignments
        return {member: words_of(assignment.partitions) for member, assignment in assigned.items()}

    def receive(self, result: Mapping[str, str]) -> None:
        """Pass assignments to the members, which ends the round."""
        self._generation += 1
        for member, words in result.items():
            sent = Assignment(tuple(partitions_of(words)))
            received = deserialize_assignment(serialize_assignment(sent))
            [own] = assignor_instances([self._name])
            own.on_assignment(received, ConsumerGroupMetadata("group", self._generation, member))
            self._joined[member] = (own, received, self._generation)


def differences(case: dict, results: Sequence) -> list[str]:
    """Return where our results differ from those of Java, or are wrong where those of Java are.

    Java's classes fail on some groups, or break their promises; ours must keep them nevertheless.
    """
    group = OurGroup(case["assignor"])
    withholds = case["assignor"] == "cooperative-sticky"
    found = []
    for number, (given, expected) in enumerate(zip(case["rounds"], results, strict=False)):
        subscriptions = group.subscriptions(given)
        actual = group.assign(given)
        faults = faults_of(given, subscriptions, actual, withholds=withholds)
        found += [f"round {number}: {it}" for it in faults]
        if isinstance(expected, str):
            # Java has raised this exception.
            return found
        if not java_is_wrong(given, subscriptions, expected, withholds=withholds):
            found += [
                f"round {number}, {member}: {words!r} in Java, {actual[member]!r} here"
                for member, words in expected.items()
                if words != actual[member]
            ]
        group.receive(expected)
    return found


def java_is_wrong(
    given: dict,
    subscriptions: Mapping[str, Subscription],
    result: Mapping[str, str],
    *,
    withholds: bool,
) -> bool:
    """Return whether Java assigns a partition wrongly, or withholds it for a wrong member."""
    assigned = sum(len(partitions_of(words)) for words in result.values())
    some_want_nothing = not all(it.topics for it in subscriptions.values())
    if withholds and some_want_nothing and assigned < len(_assignable(given)):
        return True
    return bool(faults_of(given, subscriptions, result, withholds=withholds))


def faults_of(
    given: dict,
    subscriptions: Mapping[str, Subscription],
    result: Mapping[str, str],
    *,
    withholds: bool,
) -> list[str]:
    """Return what is wrong with an assignment: partitions assigned twice, not at all, or wrongly.

    If it `withholds` partitions, one that a member still owns may be assigned to none.
    """
    faults = []
    left = _assignable(given)
    for member, words in result.items():
        for topic_partition in partitions_of(words):
            if topic_partition.topic not in subscriptions[member].topics:
                faults.append(f"{member} does not want {topic_partition}")
            if topic_partition not in left:
                faults.append(f"{topic_partition} does not exist, or is assigned twice")
            left.discard(topic_partition)
    if withholds:
        left = left.difference(*(it.owned_partitions for it in subscriptions.values()))
    return faults + [f"{topic_partition} is not assigned" for topic_partition in left]


def _assignable(given: dict) -> set[TopicPartition]:
    return {
        TopicPartition(topic, number)
        for topic in {topic for member in given["members"] for topic in member["topics"]}
        for number in range(len(given["topics"].get(topic, ())))
    }


def protocol_cases(rng: random.Random, *, count: int) -> list[dict]:
    """Return values to encode, and bytes of Java to decode, most of them changed."""
    encodings = random_encodings(rng, count)
    encoded = [
        bytes.fromhex(data)
        for result in run_java(encodings)
        for data in (*result["subscription"], *result["assignment"])
    ]
    return encodings + changed_encodings(rng, encoded)


def read_golden(name: str) -> list[tuple[dict, list]]:
    """Return the cases of a golden file, each with the result of Java."""
    with lzma.open(GOLDEN / f"{name}.jsonl.xz", "rt", encoding="utf-8") as lines:
        return [tuple(json.loads(line)) for line in lines]


def write_golden(name: str, cases: Sequence[dict]) -> None:
    """Write a golden file: a line for each case, with the result of Java."""
    lines = [
        json.dumps(pair, separators=(",", ":"), ensure_ascii=False) + "\n"
        for pair in zip(cases, run_java(cases), strict=True)
    ]
    packed = lzma.compress("".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME)
    (GOLDEN / f"{name}.jsonl.xz").write_bytes(packed)


def main() -> None:
    """Write all golden files."""
    write_golden("protocol", protocol_cases(random.Random(_SEED), count=40))
    for assignor, cases in random_cases(_SEED, SINGLE, SEVERAL).items():
        write_golden(assignor, cases)


if __name__ == "__main__":
    main()
