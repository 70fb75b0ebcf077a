"""The values of auto.offset.reset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.consumer.subscription.partition_state import (
    EARLIEST,
    LATEST,
    NONE,
    OffsetReset,
    ResetType,
    parse_offset_reset,
)
from spark_kafka_sink.errors import ConfigError, IllegalStateError

SECOND = 1_000_000_000
NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"), [("earliest", EARLIEST), ("latest", LATEST), ("none", NONE)]
)
def test_names_are_parsed(text, expected):
    """Each of the three names stands for its reset."""
    assert expected == parse_offset_reset(text)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("PT0S", 0),
        ("PT1H", 3_600 * SECOND),
        ("P2D", 2 * 86_400 * SECOND),
        ("P1DT2H3M4.5S", (86_400 + 7_200 + 180 + 4) * SECOND + SECOND // 2),
        ("pt0.000000001s", 1),
        ("PT1,5S", 3 * SECOND // 2),
        ("PT1.S", SECOND),
        ("PT2M-30S", 90 * SECOND),
        ("-PT-1S", SECOND),
        ("+P1D", 86_400 * SECOND),
        ("PT1H-0.5S", 3_600 * SECOND - SECOND // 2),
    ],
)
def test_durations_are_parsed_as_in_java(text, nanoseconds):
    """A duration is read with days, hours, minutes, seconds, fractions and signs."""
    expected = OffsetReset(ResetType.BY_DURATION, nanoseconds)
    assert expected == parse_offset_reset(f"by_duration:{text}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Earliest",
        "LATEST",
        "invalid",
        "by_duration",
        "by_duration:",
        "by_duration:invalid",
        "by_duration:-PT1H",
        "by_duration:PT-1S",
        "by_duration:P",
        "by_duration:PT",
        "by_duration:P1DT",
        "by_duration:P1Y",
        "by_duration:P1W",
        "by_duration:PT1.1234567890S",
        "by_duration:PT1.5H",
        "by_duration:PT.5S",
        "by_duration: PT1H",
        "by_duration:PT1H ",
        "by_duration:PT9223372036854775808S",
        "by_duration:P9223372036854775807D",
        "by_duration:PT\N{ARABIC-INDIC DIGIT ONE}H",
        "PT1H",
    ],
)
def test_anything_else_is_refused(text):
    """Any other text is an error that quotes it and names the values that there are."""
    with pytest.raises(ConfigError, match="'by_duration:'") as raised:
        parse_offset_reset(text)

    assert repr(text) in str(raised.value)


def test_ends_of_the_log_have_timestamps_of_their_own():
    """ListOffsets is asked for -2 for the start of the log, and for -1 for its end."""
    assert -2 == EARLIEST.timestamp(NOW_MS)
    assert -1 == LATEST.timestamp(NOW_MS)


def test_a_duration_reaches_back_from_now():
    """The timestamp of a duration lies that long before the given time."""
    assert NOW_MS - 3_600_000 == parse_offset_reset("by_duration:PT1H").timestamp(NOW_MS)
    assert NOW_MS == parse_offset_reset("by_duration:PT0S").timestamp(NOW_MS)


def test_no_reset_has_no_timestamp():
    """Without a reset there is nothing to ask for."""
    with pytest.raises(IllegalStateError, match="'none'"):
        NONE.timestamp(NOW_MS)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**45))
def test_a_timestamp_is_never_taken_for_an_end_of_the_log(nanoseconds, now_ms):
    """However long the duration, its timestamp is not negative and not after the given time."""
    timestamp = OffsetReset(ResetType.BY_DURATION, nanoseconds).timestamp(now_ms)
    assert 0 <= timestamp <= now_ms


def test_equal_durations_are_equal_resets():
    """Resets are equal if their kinds and durations are."""
    hour = parse_offset_reset("by_duration:PT1H")
    assert hour == parse_offset_reset("by_duration:PT60M")
    assert hour != parse_offset_reset("by_duration:PT1S")
    assert hour != LATEST
    assert "by_duration (3600 s)" == str(hour)
    assert "latest" == str(LATEST)
