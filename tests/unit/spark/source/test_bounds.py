from __future__ import annotations

from types import SimpleNamespace

import pytest

from spark_kafka_sink.config.offset_specs import (
    BATCH_START,
    STREAM_START,
    Earliest,
    GlobalTimestamp,
    Latest,
    SpecificOffsets,
    Timestamps,
)
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.spark.source.first_batch import Start
from spark_kafka_sink.spark.source.offsets_json import StreamOffsets
from spark_kafka_sink.spark.source.source_cluster import ending_offsets, starting_offsets

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
BOTH = (A, B)


class _Lookup:
    def __init__(self, matches=None):
        self._matches = matches or {}
        self.asked_times = None

    def earliest(self, partitions):
        return dict.fromkeys(partitions, 2)

    def latest(self, partitions):
        return StreamOffsets(dict.fromkeys(partitions, 9), epochs=dict.fromkeys(partitions, 4))

    def at_times(self, times):
        self.asked_times = times
        return {one: self._matches.get(one) for one in times}


def start_of(spec, lookup=None, strategy="error", accepted=STREAM_START):
    options = SimpleNamespace(
        starting=spec, starting_option="startingOffsets", starting_timestamp_strategy=strategy
    )
    return starting_offsets(options, BOTH, lookup or _Lookup(), accepted)


def end_of(spec, option, lookup=None):
    options = SimpleNamespace(ending=spec, ending_option=option)
    return ending_offsets(options, BOTH, lookup or _Lookup())


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (Earliest(), Start({A: 2, B: 2})),
        (Latest(), Start({A: 9, B: 9}, frozenset(BOTH))),
        (SpecificOffsets({A: 5, B: 0}), Start({A: 5, B: 0}, given=frozenset(BOTH))),
        (SpecificOffsets({A: -1, B: -2}), Start({A: 9, B: 2}, frozenset({A}))),
        (SpecificOffsets({A: -1, B: 6}), Start({A: 9, B: 6}, frozenset({A}), frozenset({B}))),
        (SpecificOffsets({B: 6}, {"a": -2}), Start({A: 2, B: 6}, given=frozenset({B}))),
        (SpecificOffsets({}, {"a": -2, "b": -1}), Start({A: 2, B: 9}, frozenset({B}))),
    ],
)
def test_a_start_has_an_offset_of_each_partition(spec, expected):
    """A start has offsets for all partitions, and records which are the latest, or given."""
    assert expected == start_of(spec)


def test_a_word_for_a_topic_that_is_not_read_is_an_error():
    """The error names the topics, and partitions that have neither a word nor an offset."""
    with pytest.raises(ConfigError, match=r"only topics that are read, but .* not cover x, y$"):
        start_of(SpecificOffsets({A: 1, B: 1}, {"y": -2, "x": -2}))
    with pytest.raises(ConfigError, match="but it lacks b-0"):
        start_of(SpecificOffsets({}, {"a": -2}))


def test_a_latest_offset_has_the_epoch_of_its_leader():
    """The log may be cut before the first record is read; given offsets were in any log."""
    assert {A: 4} == start_of(SpecificOffsets({A: -1, B: 6})).offsets.epochs


@pytest.mark.parametrize("spec", [GlobalTimestamp(77), Timestamps({A: 77, B: 77})])
def test_a_timestamp_starts_at_the_record_that_matches(spec):
    """The start is the first record at or after the timestamp, and not pinned."""
    lookup = _Lookup({A: 4, B: 5})
    assert Start({A: 4, B: 5}) == start_of(spec, lookup)
    assert {A: 77, B: 77} == lookup.asked_times


def test_a_timestamp_without_a_match_is_an_error():
    """With the strategy error, the partition and its timestamp are named."""
    with pytest.raises(
        ConfigError, match=r"no record has the timestamp or a later one in b-0 \(77\)\."
    ):
        start_of(GlobalTimestamp(77), _Lookup({A: 4}))


def test_a_timestamp_without_a_match_may_mean_latest():
    """With the strategy latest, such a partition starts at its latest offset, which is pinned."""
    found = start_of(GlobalTimestamp(77), _Lookup({A: 4}), strategy="latest")
    assert Start({A: 4, B: 9}, frozenset({B})) == found


def test_an_end_without_a_match_is_the_latest_offset():
    """An ending timestamp that no record has reached means the latest offset."""
    assert {A: 4, B: 9} == end_of(GlobalTimestamp(77), "endingTimestamp", _Lookup({A: 4}))
    assert {A: 9, B: 7} == end_of(SpecificOffsets({A: -1, B: 7}), "endingOffsets")


@pytest.mark.parametrize(
    "spec", [SpecificOffsets({A: 5}), Timestamps({A: 5, B: 6, TopicPartition("c", 1): 7})]
)
def test_json_must_name_exactly_the_partitions(spec):
    """A partition that is missing, or one that the read does not have, is an error."""
    with pytest.raises(ConfigError, match=r"^startingOffsets must name exactly the partitions"):
        start_of(spec)


@pytest.mark.parametrize(
    ("resolve", "advice"),
    [
        (
            lambda spec: start_of(spec, accepted=STREAM_START),
            "; -2 stands for the earliest offset; -1 stands for the latest offset",
        ),
        (
            lambda spec: start_of(spec, accepted=BATCH_START),
            "; -2 stands for the earliest offset",
        ),
        (
            lambda spec: end_of(spec, "endingOffsets"),
            "; -1 stands for the latest offset",
        ),
    ],
    ids=["stream's start", "batch's start", "batch's end"],
)
def test_an_error_about_missing_partitions_says_what_stands_for_their_offsets(resolve, advice):
    """It names the numbers that the option accepts in this place."""
    with pytest.raises(ConfigError) as caught:
        resolve(SpecificOffsets({A: 5}))
    assert str(caught.value).endswith(f"but it lacks b-0{advice}")
