"""Random groups of consumers whose partitions are to be assigned.

A case is what golden/AssignorGoldens.java reads: an assignor, and rounds with the topics, the racks
of their replicas, and the members. Partitions are texts such as "orders 0 1 payments 4".
"""

from __future__ import annotations

import copy
import random
import struct
from typing import TYPE_CHECKING

from spark_kafka_sink.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from random import Random

ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")
#: Those that take account of earlier assignments.
STICKY = ASSIGNORS[2:]
RACKS = ("a", "b", "c")
_NAMES = ("orders", "payments", "t", "clicks.eu", "a", "Users", "x_y", "metrics-1m", "zz", "log")
_CLIENTS = ("consumer-group", "c", "client", "größe", "\U0001f5dd", "app-7")


# --- texts of partitions


def words_of(partitions: Iterable[TopicPartition]) -> str:
    """Format partitions as in the cases."""
    words: list[str] = []
    last = None
    for topic, partition in partitions:
        if topic != last:
            words.append(topic)
            last = topic
        words.append(str(partition))
    return " ".join(words)


def partitions_of(words: str) -> list[TopicPartition]:
    """Parse partitions as in the cases."""
    partitions = []
    topic = ""
    for word in words.split():
        if word[0].isalpha():
            topic = word
        else:
            partitions.append(TopicPartition(topic, int(word)))
    return partitions


# --- random cases


def random_case(rng: Random, assignor: str, *, rounds: int = 1) -> dict:
    """Return a random group; in later rounds members come and go, and the topics change."""
    return {"assignor": assignor, "rounds": list(_random_rounds(rng, assignor, rounds))}


def _random_rounds(rng: Random, assignor: str, count: int) -> Iterator[dict]:
    with_racks = rng.random() < 0.4
    names = rng.sample(_NAMES, rng.randint(1, 8))
    topics = {name: _random_topic(rng, with_racks=with_racks) for name in names}
    style = rng.choice(("same", "same", "some", "any"))
    gone: list[dict] = []
    members = [
        _random_member(rng, names, style, with_racks=with_racks) for _ in range(rng.randint(1, 12))
    ]
    if rng.random() < 0.7:
        _add_claims(rng, assignor, members, topics)
    yield _round(topics, members)
    for _ in range(count - 1):
        members = [
            {key: it[key] for key in ("id", "topics", "rack", "instance") if key in it}
            | {"carry": True}
            for it in members
        ]
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
            _change(rng, topics, members, gone, style, with_racks=with_racks)
        if rng.random() < 0.1:
            member = rng.choice(members)
            _add_claims(rng, assignor, [member], topics)
            member.pop("carry", None)
        yield _round(topics, members)


def _round(topics: dict, members: list[dict]) -> dict:
    return copy.deepcopy({"topics": topics, "members": members})


def _random_topic(rng: Random, *, with_racks: bool) -> list[list[str]]:
    count = rng.choice((0, 1, 2, 3, 4, 5, 6, 8, 12, rng.randint(0, 20)))
    if not with_racks:
        return [[] for _ in range(count)]
    replicas = rng.randint(1, 3)
    return [
        rng.sample(RACKS, replicas) if rng.random() < 0.95 else rng.choices(RACKS, k=replicas)
        for _ in range(count)
    ]


def _random_member(rng: Random, names: Sequence[str], style: str, *, with_racks: bool) -> dict:
    member: dict = {"id": f"{rng.choice(_CLIENTS)}-{rng.randrange(16**6):06x}"}
    member["topics"] = _random_topics(rng, names, style)
    if with_racks and rng.random() < 0.85:
        member["rack"] = rng.choice((*RACKS, *RACKS, "elsewhere", ""))
    if rng.random() < 0.1:
        member["instance"] = f"i{rng.randrange(1000)}"
    return member


def _random_topics(rng: Random, names: Sequence[str], style: str) -> list[str]:
    if style == "same" or (style == "some" and rng.random() < 0.7):
        return sorted(names)
    chosen = rng.sample(names, rng.randint(0 if rng.random() < 0.1 else 1, len(names)))
    if rng.random() < 0.05:
        chosen.append("missing")
    return chosen


def _add_claims(rng: Random, assignor: str, members: list[dict], topics: dict) -> None:
    """Add what members claim to own: mostly consistent, sometimes stale, twice or vanished."""
    chaos = rng.choice((0, 0, 0.1, 0.5))
    every = [TopicPartition(topic, i) for topic, racks in topics.items() for i in range(len(racks))]
    rng.shuffle(every)
    share = rng.choice((0.5, 1, 1))
    claims: dict[int, list[TopicPartition]] = {index: [] for index in range(len(members))}
    weights = [rng.choice((1, 1, 1, 3, 0.1)) for _ in members]
    for topic_partition in every:
        wanting = [
            index
            for index, it in enumerate(members)
            if topic_partition.topic in it["topics"] or rng.random() < chaos / 10
        ]
        if wanting and rng.random() < share:
            owners = rng.choices(wanting, [weights[index] for index in wanting])
            if rng.random() < chaos / 3:
                owners += rng.choices(wanting, k=rng.choice((1, 1, 2)))
            for index in owners:
                claims[index].append(topic_partition)
    newest = rng.randint(1, 9)
    for index, member in enumerate(members):
        owned = claims[index]
        if rng.random() < chaos / 3:
            owned.append(TopicPartition("vanished", rng.randint(0, 3)))
        if rng.random() < chaos / 6:
            topic = rng.choice(list(topics))
            owned.append(TopicPartition(topic, len(topics[topic]) + rng.randint(0, 2)))
        is_stale = rng.random() < chaos
        generation = rng.choice((newest - 1, max(0, newest - 2), -1)) if is_stale else newest
        _claim(rng, assignor, member, owned, generation)


def _claim(
    rng: Random, assignor: str, member: dict, owned: list[TopicPartition], generation: int
) -> None:
    if assignor != "sticky":
        member["owned"] = words_of(owned)
        member["generation"] = generation
        if assignor == "cooperative-sticky" and rng.random() < 0.15:
            # A member that has only version 1 of the subscription.
            member["generation"] = -1
            member["data"] = rng.choice((struct.pack(">i", generation).hex(), "00", ""))
        return
    member["generation"] = rng.choice((generation, generation, -1))
    version = rng.choice((1, 1, 1, 1, 1, 1, 1, 1, 0, None))
    data = (
        rng.randbytes(rng.randint(0, 9))
        if version is None
        else user_data(owned, version, generation)
    )
    if rng.random() < 0.03:
        data = data[: rng.randint(0, len(data))]
    member["data"] = data.hex()


def user_data(owned: Sequence[TopicPartition], version: int, generation: int) -> bytes:
    """Encode the user data of `sticky`, independently of the code under test."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in owned:
        by_topic.setdefault(topic, []).append(partition)
    data = struct.pack(">i", len(by_topic))
    for topic, numbers in by_topic.items():
        name = topic.encode()
        data += struct.pack(
            f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers
        )
    return data + struct.pack(">i", generation) if version else data


def _change(
    rng: Random,
    topics: dict,
    members: list[dict],
    gone: list[dict],
    style: str,
    *,
    with_racks: bool,
) -> None:
    """Change the group or the topics as happens between two rebalances."""
    names = list(topics)
    topic = rng.choice(names)
    match rng.choice(("leave", "join", "return", "subscribe", "grow", "vanish", "shrink")):
        case "leave" if len(members) > 1:
            gone.append(members.pop(rng.randrange(len(members))))
        case "return" if gone:
            members.append(gone.pop(rng.randrange(len(gone))))
        case "subscribe":
            rng.choice(members)["topics"] = _random_topics(rng, names, style)
        case "grow":
            topics[topic] = topics[topic] + _random_topic(rng, with_racks=with_racks)[:5]
        case "vanish":
            topics[topic] = []
        case "shrink" if rng.random() < 0.3:
            topics[topic] = topics[topic][: rng.randint(0, len(topics[topic]))]
        case _ if len(members) < 12:
            members.append(_random_member(rng, names, style, with_racks=with_racks))


def random_cases(seed: int, single: int, several: int) -> dict[str, list[dict]]:
    """Return cases for each assignor; those with several rounds only for the sticky ones."""
    rng = random.Random(seed)
    return {
        assignor: [random_case(rng, assignor) for _ in range(single)]
        + [
            random_case(rng, assignor, rounds=rng.randint(2, 5))
            for _ in range(several if assignor in STICKY else 0)
        ]
        for assignor in ASSIGNORS
    }


# --- the embedded protocol


def random_encodings(rng: Random, count: int) -> list[dict]:
    """Return subscriptions to encode; the partitions serve as an assignment, too."""
    cases = []
    for _ in range(count):
        topics = rng.sample(_NAMES, rng.randint(0, 6))
        owned = [
            TopicPartition(rng.choice(topics), rng.randint(0, 9))
            for _ in range(rng.randint(0, 12) if topics else 0)
        ]
        fields: dict = {"topics": topics, "owned": words_of(owned)}
        if rng.random() < 0.5:
            fields["data"] = rng.randbytes(rng.randint(0, 6)).hex()
        if rng.random() < 0.5:
            fields["generation"] = rng.choice((0, 1, 77, 2**31 - 1, -1))
        if rng.random() < 0.5:
            fields["rack"] = rng.choice((*RACKS, "", "räck"))
        cases.append({"encode": fields})
    return cases


def changed_encodings(rng: Random, encoded: Iterable[bytes]) -> list[dict]:
    """Return the same bytes, and bytes that are truncated, longer, damaged or of other versions."""
    cases = []
    for data in encoded:
        place = rng.randrange(len(data))
        version = rng.choice((-1, -(2**15), 0, 1, 2, 3, 4, 5, 2**15 - 1))
        variants = (
            data,
            data[:place],
            data + rng.randbytes(rng.randint(1, 5)),
            data[:place] + rng.randbytes(1) + data[place + 1 :],
            struct.pack(">h", version) + data[2:],
        )
        cases += [{"decode": variant.hex()} for variant in variants]
    return cases
