from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config.config_def import LONG_MAX
from spark_kafka_sink.config.offset_specs import (
    Earliest,
    GlobalTimestamp,
    Latest,
    Position,
    SpecificOffsets,
    Timestamps,
    batch_range,
    stream_start,
)
from spark_kafka_sink.config.source_table import SOURCE_OPTIONS_DEF
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


#: What the offsets of a stream's start, a batch's start and a batch's end may be: all of the value,
#: and the number of a partition.
STREAM_START = (
    (
        'earliest, latest (the default) or JSON such as {"topicA": {"0": 23, "1": -2}, "topicB": '
        '"latest"}'
    ),
    "an integer from 0 to 2^63 - 1, -2 (earliest) or -1 (latest)",
)
BATCH_START = (
    'earliest (the default) or JSON such as {"topicA": {"0": 23, "1": -2}, "topicB": "earliest"}',
    "an integer from 0 to 2^63 - 1 or -2 (earliest)",
)
BATCH_END = (
    'latest (the default) or JSON such as {"topicA": {"0": 23, "1": -1}, "topicB": "latest"}',
    "an integer from 0 to 2^63 - 1 or -1 (latest)",
)


def batch(**given):
    return batch_range(SOURCE_OPTIONS_DEF.parse(given))


def stream(**given):
    return stream_start(SOURCE_OPTIONS_DEF.parse(given))


def refusal(given, parse=batch):
    with pytest.raises(ConfigError) as caught:
        parse(**given)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", Earliest()),
        (" LATEST ", Latest()),
        ('{"a":{"0":23,"1":-1}}', SpecificOffsets({A0: 23, A1: -1})),
        ('{"a":{"0":-2}}', SpecificOffsets({A0: -2})),
        ('{"b":"Earliest","a":{"0":7},"c":"latest"}', SpecificOffsets({A0: 7}, {"b": -2, "c": -1})),
    ],
)
def test_a_stream_starts_at_the_given_offsets(text, expected):
    """A stream starts at earliest, latest or offsets by partition."""
    assert expected == stream(startingOffsets=text).spec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("latest", Latest()),
        ('{"a":{"0":23,"1":-1}}', SpecificOffsets({A0: 23, A1: -1})),
        ('{"a":{"0":23},"b":"latest"}', SpecificOffsets({A0: 23}, {"b": -1})),
    ],
)
def test_a_batch_ends_at_the_given_offsets(text, expected):
    """A batch ends at latest or offsets by partition."""
    assert expected == batch(endingOffsets=text)[1].spec


def test_errors_about_defaults_name_the_options_of_offsets():
    """A start or an end that is not set comes from the option that would set it most simply."""
    assert (
        Position(Earliest(), "startingOffsets", ()),
        Position(Latest(), "endingOffsets", ()),
    ) == batch()
    assert Position(Latest(), "startingOffsets", ()) == stream()


def test_timestamps_take_precedence_over_offsets():
    """One timestamp for all partitions comes first, then timestamps by partition, then offsets."""
    by_partition = '{"a":{"0":7}}'
    start, end = batch(
        startingTimestamp="5",
        startingOffsetsByTimestamp="malformed",
        startingOffsets="malformed",
        endingOffsetsByTimestamp=by_partition,
        endingOffsets="earliest",
    )
    assert (
        Position(
            GlobalTimestamp(5),
            "startingTimestamp",
            ("startingOffsetsByTimestamp", "startingOffsets"),
        )
        == start
    )
    assert Position(Timestamps({A0: 7}), "endingOffsetsByTimestamp", ("endingOffsets",)) == end


@pytest.mark.parametrize(
    ("parse", "name", "values", "numbers"),
    [
        (stream, "startingOffsets", *STREAM_START),
        (batch, "startingOffsets", *BATCH_START),
        (batch, "endingOffsets", *BATCH_END),
    ],
    ids=["stream's start", "batch's start", "batch's end"],
)
def test_malformed_offsets_are_rejected_with_what_is_accepted_there(parse, name, values, numbers):
    """The error lists the words and the numbers that the option accepts in this place."""
    assert (
        f"{name} is not JSON (Expecting value: line 1 column 1 (char 0)): write {values}, "
        "not 'first'" == refusal({name: "first"}, parse)
    )
    for number in (-3, LONG_MAX + 1):
        text = f'{{"a":{{"0":{number}}}}}'
        assert (
            f"{name} has {number} for a-0, which must be {numbers}: write {values}, not {text!r}"
            == refusal({name: text}, parse)
        )


@pytest.mark.parametrize("name", ["startingOffsetsByTimestamp", "endingOffsetsByTimestamp"])
def test_malformed_timestamps_are_rejected(name):
    """The error for malformed timestamps shows an example; -1 and -2 mean nothing here."""
    assert (
        f"{name} has -1 for a-0, which must be an integer from 0 to 2^63 - 1: write JSON such as "
        '{"topicA": {"0": 1700000000000}}, not \'{"a":{"0":-1}}\''
        == refusal({name: '{"a":{"0":-1}}'})
    )


@pytest.mark.parametrize("name", ["startingTimestamp", "endingTimestamp"])
@pytest.mark.parametrize(
    ("value", "problem"),
    [("-1", "must be at least 0"), ("now", "must be a 64-bit integer without a unit")],
)
def test_an_invalid_timestamp_is_rejected(name, value, problem):
    """A timestamp is a number of milliseconds since 1970."""
    assert f"{name} {problem}, not {value!r}" == refusal({name: value})


def test_an_unknown_strategy_is_rejected():
    """The error for an unknown strategy lists the known ones."""
    assert (
        "startingOffsetsByTimestampStrategy must be one of: error, latest, not 'earliest'"
        == refusal({"startingOffsetsByTimestampStrategy": "earliest"})
    )


def test_a_batch_must_not_start_at_the_latest_offsets():
    """A batch that starts at latest would read nothing; the error lists what is accepted."""
    values, _ = BATCH_START
    assert (
        "startingOffsets must not be latest in a batch, which would read nothing: write "
        f"{values}" == refusal({"startingOffsets": "latest"})
    )


def test_no_partition_of_a_batch_may_start_at_its_latest_offset():
    """The error names the first partition that starts at -1, and lists what is accepted."""
    _, numbers = BATCH_START
    assert (
        "startingOffsets must not be latest (-1) for a-1 in a batch, which would read nothing: "
        f"write {numbers}" == refusal({"startingOffsets": '{"a":{"0":-2,"1":-1}}'})
    )


def test_a_batch_must_not_end_at_the_earliest_offsets():
    """A batch that ends at earliest would read nothing; the error lists what is accepted."""
    values, _ = BATCH_END
    assert (
        "endingOffsets must not be earliest, since the batch would read nothing: write "
        f"{values}" == refusal({"endingOffsets": "earliest"})
    )


def test_no_partition_of_a_batch_may_end_at_its_earliest_offset():
    """The error names the first partition that ends at -2, and lists what is accepted."""
    _, numbers = BATCH_END
    assert (
        "endingOffsets must not be earliest (-2) for a-1, since the batch would read nothing: "
        f"write {numbers}" == refusal({"endingOffsets": '{"a":{"0":-1,"1":-2}}'})
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"startingOffsets": '{"a":{"0":7},"b":"latest"}'},
            "startingOffsets must not be latest (-1) for b in a batch, which would read nothing: w",
        ),
        (
            {"endingOffsets": '{"a":{"0":7},"b":"earliest"}'},
            "endingOffsets must not be earliest (-2) for b, since the batch would read nothing: w",
        ),
    ],
    ids=["start", "end"],
)
def test_no_topic_of_a_batch_may_read_nothing(given, message):
    """A word for a whole topic is refused where it would be refused for a partition."""
    assert refusal(given).startswith(message)


def test_the_partitions_of_a_topic_with_a_word_are_not_compared():
    """They are not known before the cluster is asked; those of other topics are."""
    offsets, word = '{"a":{"0":7},"b":{"0":1}}', '{"a":{"0":9},"b":"%s"}'
    batch(startingOffsets=offsets, endingOffsets=word % "latest")
    batch(startingOffsets=word % "earliest", endingOffsets='{"a":{"0":9},"b":{"4":1}}')
    message = "endingOffsets is 6 for a-0, before startingOffsets, which is 9"
    end = '{"a":{"0":6},"b":{"0":1}}'
    assert message == refusal({"startingOffsets": word % "earliest", "endingOffsets": end})
    end = '{"a":{"1":9},"b":"latest"}'
    assert "it lacks a-0 and the read does not cover a-1" in refusal(
        {"startingOffsets": word % "earliest", "endingOffsets": end}
    )


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(name):
    """The ending options are errors in a stream."""
    assert f"{name} is for batches: a stream has no end; remove it" == refusal({name: "5"}, stream)


@pytest.mark.parametrize("kind", ["Offsets", "OffsetsByTimestamp"])
def test_a_batch_must_not_end_before_it_starts(kind):
    """The error names the partition, and both ends."""
    assert f"ending{kind} is 5 for a-0, before starting{kind}, which is 6" == refusal(
        {f"starting{kind}": '{"a":{"0":6}}', f"ending{kind}": '{"a":{"0":5}}'}
    )
    start, end = batch(**{f"starting{kind}": '{"a":{"0":5}}', f"ending{kind}": '{"a":{"0":5}}'})
    assert start.spec == end.spec


@pytest.mark.parametrize(("start", "end"), [(6, -1), (-2, 5), (-2, -1)])
def test_offsets_that_stand_for_others_are_not_compared(start, end):
    """What -1 and -2 stand for is not known yet."""
    first, last = batch(
        startingOffsets=json.dumps({"a": {"0": start}}), endingOffsets=json.dumps({"a": {"0": end}})
    )
    assert (SpecificOffsets({A0: start}), SpecificOffsets({A0: end})) == (first.spec, last.spec)


@pytest.mark.parametrize(
    ("kind", "stand_in"),
    [("Offsets", "; -1 stands for the latest offset"), ("OffsetsByTimestamp", "")],
)
def test_start_and_end_must_name_the_same_partitions(kind, stand_in):
    """The error names the partitions that only one has, and what stands for an end there."""
    assert (
        f"ending{kind} must name exactly the partitions that are read, but it lacks a-0 and the "
        f"read does not cover a-1{stand_in}"
        == refusal({f"starting{kind}": '{"a":{"0":5}}', f"ending{kind}": '{"a":{"1":5}}'})
    )


@given(st.dictionaries(st.integers(0, 99), st.integers(0, LONG_MAX), min_size=1))
def test_any_offsets_survive_a_round_trip(offsets):
    """Offsets that are written as JSON are parsed as they were."""
    text = json.dumps({"a": offsets})
    expected = {TopicPartition("a", number): offset for number, offset in offsets.items()}
    start, end = batch(startingOffsets=text, endingOffsets=text)
    assert SpecificOffsets(expected) == start.spec == end.spec
