"""The results of Java's own assignors, see golden/AssignorGoldens.java."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.consumer.assignors.assignment_strategies import assignor_instances
from spark_kafka_sink.consumer.assignors.partition_assignor import (
    Assignment,
    Subscription,
    deserialize_assignment,
    deserialize_subscription,
    serialize_assignment,
    serialize_subscription,
)
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.model import ConsumerGroupMetadata
from tests.support.consumer.assignor_cases import ASSIGNORS, STICKY, partitions_of, words_of
from tests.support.consumer.assignor_results import SEVERAL, SINGLE, differences, read_golden

PROTOCOL = read_golden("protocol")
ENCODED = [(case["encode"], result) for case, result in PROTOCOL if "encode" in case]
DECODED = [(bytes.fromhex(case["decode"]), result) for case, result in PROTOCOL if "decode" in case]


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_partitions_are_assigned_as_in_java(assignor):
    """Every member gets the same partitions in the same order, in each round."""
    cases = read_golden(assignor)
    assert SINGLE + (SEVERAL if assignor in STICKY else 0) == len(cases)
    different = {
        index: found
        for index, (case, results) in enumerate(cases)
        if (found := differences(case, results))
    }
    assert {} == different


@pytest.mark.parametrize("assignor", STICKY)
def test_the_goldens_have_failures_of_java(assignor):
    """The golden cases have groups that Java serves in several rounds, and some where it fails."""
    results = [result for _, result in read_golden(assignor)]
    assert sum(len(rounds) > 1 for rounds in results) > SEVERAL / 2
    assert any(isinstance(rounds[-1], str) for rounds in results)


@pytest.mark.parametrize("version", range(4))
def test_messages_are_encoded_as_in_java(version):
    """Subscriptions and assignments have the bytes of Java in every version."""
    for values, encoded in ENCODED:
        data = values.get("data")
        user_data = None if data is None else bytes.fromhex(data)
        partitions = tuple(partitions_of(values["owned"]))
        subscription = Subscription(
            topics=tuple(values["topics"]),
            user_data=user_data,
            owned_partitions=partitions,
            generation_id=values.get("generation", -1),
            rack_id=values.get("rack"),
        )
        assignment = Assignment(partitions, user_data)
        assert (
            encoded["subscription"][version] == serialize_subscription(subscription, version).hex()
        )
        assert encoded["assignment"][version] == serialize_assignment(assignment, version).hex()


@pytest.mark.parametrize("assignor", STICKY)
def test_user_data_are_encoded_as_in_java(assignor):
    """What a sticky assignor sends after an assignment has the bytes of Java."""
    for values, encoded in ENCODED:
        [ours] = assignor_instances([assignor])
        metadata = ConsumerGroupMetadata("group", values.get("generation", -1), "member")
        ours.on_assignment(Assignment(tuple(partitions_of(values["owned"]))), metadata)
        assert encoded["user_data"][assignor] == ours.subscription_user_data(frozenset()).hex()


def hex_or_none(data):
    return None if data is None else data.hex()


def read_subscription(data):
    found = deserialize_subscription(data)
    return {
        "topics": list(found.topics),
        "data": hex_or_none(found.user_data),
        "owned": words_of(found.owned_partitions),
        "generation": found.generation_id,
        "rack": found.rack_id,
    }


def read_assignment(data):
    found = deserialize_assignment(data)
    return {"owned": words_of(found.partitions), "data": hex_or_none(found.user_data)}


@pytest.mark.parametrize("kind", ["subscription", "assignment"])
def test_messages_are_decoded_as_in_java(kind):
    """Bytes of any version are decoded to the values of Java, or refused as they are by Java."""
    read = {"subscription": read_subscription, "assignment": read_assignment}[kind]
    decoded = refused = 0
    for data, result in DECODED:
        expected = result[kind]
        actual, error = read_or_refuse(read, data)
        if error is None:
            assert expected == actual
            decoded += 1
        else:
            assert expected is None or is_lenient(expected, error)
            refused += 1
    assert min(decoded, refused) > len(DECODED) / 10


def read_or_refuse(read, data):
    """Return what was read and None, or None and the text of the DecodeError."""
    try:
        return read(data), None
    except DecodeError as error:
        return None, str(error)


def is_lenient(expected, error):
    """Return whether Java reads what we refuse: text that is not UTF-8, or null with length -2."""
    replaces = "\N{REPLACEMENT CHARACTER}" in str(expected)
    return replaces or (None in expected.values() and "length -" in error)


@pytest.mark.parametrize("read", [deserialize_subscription, deserialize_assignment])
@given(garbage=st.binary(max_size=60))
def test_garbage_is_decoded_or_refused(read, garbage):
    """Any bytes are a message or a DecodeError."""
    for version in (b"", b"\0\0", b"\0\3"):
        with contextlib.suppress(DecodeError):
            read(version + garbage)
