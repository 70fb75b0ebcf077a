from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config.config_def import LONG_MAX
from spark_kafka_sink.config.durations import TimeText, milliseconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15m", 900_000),
        ("500ms", 500),
        ("500", 500),
        ("0", 0),
        (" 2MIN ", 120_000),
        ("3h", 10_800_000),
        ("1d", 86_400_000),
        ("4s", 4_000),
        ("1999us", 1),
        ("1000000us", 1_000),
        ("1000m", 60_000_000),
        ("1000min", 60_000_000),
        ("1000h", 3_600_000_000),
        ("1000d", 86_400_000_000),
        ("1000s", 1_000_000),
        ("9223372036854775807d", LONG_MAX),
    ],
)
def test_times_are_in_milliseconds(text, expected):
    """A number has a unit, or is in ms; the result is rounded down."""
    assert expected == milliseconds(text)


@pytest.mark.parametrize(
    "text", ["", "m", "1.5m", "-5s", "+5s", "5 s", "5w", "1h 5m", "1" * 20, "٣s"]
)
def test_other_texts_are_rejected(text):
    """Fractions, signs, blanks and unknown units are errors."""
    assert "must be a time such as 15m or 500ms" == TimeText().problem(text)
    with pytest.raises(ValueError, match="must be a time such as 15m or 500ms"):
        milliseconds(text)


def test_a_time_has_no_problem():
    """A time is valid; the documentation lists the units."""
    assert TimeText().problem("15m") is None
    assert "a time with a unit (us, ms, s, m, min, h or d), or in ms" == str(TimeText())


@given(st.text())
def test_any_text_is_a_time_or_rejected(text):
    """No text raises another error, or gives a time that is out of range."""
    problem = TimeText().problem(text)
    if problem is None:
        assert 0 <= milliseconds(text) <= LONG_MAX
    else:
        assert "must be a time such as 15m or 500ms" == problem
