"""The options of a read compared with Spark's own source; see golden/SourceGoldens.java."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_kafka_sink.config.durations import milliseconds
from spark_kafka_sink.config.offset_specs import (
    Earliest,
    GlobalTimestamp,
    Latest,
    SpecificOffsets,
    Timestamps,
)
from spark_kafka_sink.config.source_options import SourceOptions
from spark_kafka_sink.errors import ConfigError

GOLDEN = json.loads((Path(__file__).parent / "golden" / "spark_source_options.json").read_text())
#: For each set of options, what Spark's source makes of it in a batch and in a stream.
CASES = list(zip(GOLDEN["cases"][::2], GOLDEN["cases"][1::2], strict=True))

#: JSON that Spark's source accepts and we reject, and why.
STRICTER_JSON = {
    # Spark's source fails later, or reads from somewhere else.
    *("null", '{"t":{"0":-3}}', '{"t":{"0":null}}', '{"t":{"-1":1}}', '{"a b":{"0":1}}'),
    # Rounded by Spark, or wrapped around.
    *('{"t":{"0":1.5}}', '{"t":{"0":1.0}}', '{"t":{"0":9223372036854775808}}'),
    # Spark takes the last one.
    *('{"t":{"0":1},"t":{"0":2}}', '{"t":{"0":1,"0":2}}'),
    # Spark ignores the plus, and the rest.
    *('{"t":{"+1":1}}', '{"t":{"0":1}} x'),
}
#: Timestamps that mean other offsets in Kafka's protocol, in which users cannot mean them.
NEGATIVE_TIMESTAMPS = {
    *('{"t":{"0":23,"1":-1}}', '{"t":{"0":-2},"u":{"7":0}}', '{"t":{"0":-1}}', '{"t":{"0":-2}}')
}
#: Values that Spark's source accepts and we reject, in batches and streams, and why.
STRICTER = {
    "startingOffsets": STRICTER_JSON,
    "endingOffsets": STRICTER_JSON,
    "startingOffsetsByTimestamp": STRICTER_JSON | NEGATIVE_TIMESTAMPS,
    "endingOffsetsByTimestamp": STRICTER_JSON | NEGATIVE_TIMESTAMPS,
    "startingTimestamp": {"-1"},
    "endingTimestamp": {"-1"},
    "assign": {
        # Nothing would ever be read.
        *("{}", '{"t":[]}', '{"t":[-1]}'),
        # As in the JSON of offsets.
        *('{"t":[1.5]}', '{"t":[null]}', '{"t":[2147483648]}'),
        *('{"t":[0,0]}', '{"t":[0],"t":[1]}'),
    },
    # No broker has such a topic.
    "subscribe": {"a b"},
    # No micro-batch would read anything.
    "maxOffsetsPerTrigger": {"0", "-1"},
    # Negative numbers that mean nothing.
    "minOffsetsPerTrigger": {"-1"},
    "maxTriggerDelay": {"-5s", "-1"},
    "kafkaConsumer.pollTimeoutMs": {"0", "-1"},
    "fetchOffset.numRetries": {"-1"},
    "fetchOffset.retryIntervalMs": {"-1"},
    # Spark's source fails when its consumers start.
    "kafka.isolation.level": {"x", "false"},
}
#: Options that Spark's source does not parse in a batch.
NOT_PARSED_IN_A_BATCH = {
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
}
#: Values that Spark's source rejects and we accept, and why.
LAXER = {
    # We trim all values.
    *(" 5 ", " true", " latest"),
    # It changes nothing.
    "false",
}
LAXER_OPTIONS = {
    *("minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger", "minOffsetsPerTrigger"),
    *("fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "kafkaConsumer.pollTimeoutMs"),
    *("failOnDataLoss", "includeHeaders", "startingOffsetsByTimestampStrategy"),
    "kafka.enable.auto.commit",
}


def parse(case):
    """Parse the options of a case; None if they are rejected."""
    try:
        return SourceOptions.from_mapping(
            {"kafka.bootstrap.servers": "127.0.0.1:9", **case["options"]},
            is_stream=case["is_stream"],
        )
    except ConfigError:
        return None


def is_laxer(options):
    """Return whether one of the listed exceptions makes us accept the options."""
    return any(name in LAXER_OPTIONS and value in LAXER for name, value in options.items())


def is_stricter(options, *, is_stream, is_well_formed):
    """Return whether one of the listed exceptions makes us reject the options."""
    return any(
        value in STRICTER.get(name, ())
        or (not is_stream and name in NOT_PARSED_IN_A_BATCH and not is_well_formed)
        # Spark's source rejects the other two ending options in a stream, and forgot this one.
        or (is_stream and name == "endingTimestamp")
        for name, value in options.items()
    )


def plain(spec):
    """Return a start or an end as the golden file has it."""
    match spec:
        case Earliest():
            return "EarliestOffset"
        case Latest():
            return "LatestOffset"
        case GlobalTimestamp(timestamp):
            return {"GlobalTimestamp": timestamp}
        case SpecificOffsets(numbers):
            return {"SpecificOffset": {str(key): value for key, value in numbers.items()}}
        case Timestamps(numbers):
            return {"SpecificTimestamp": {str(key): value for key, value in numbers.items()}}


@pytest.mark.parametrize(
    ("batch", "stream"), CASES, ids=[str(each["options"]) for each, _ in CASES]
)
def test_options_are_accepted_exactly_if_spark_accepts_them(batch, stream):
    """Options are accepted exactly if Spark's source does so, with the listed exceptions."""
    options = batch["options"]
    laxer = is_laxer(options)
    for case in (batch, stream):
        stricter = is_stricter(
            options, is_stream=case["is_stream"], is_well_formed=stream["accepted"] or laxer
        )
        made = parse(case)
        assert ((case["accepted"] or laxer) and not stricter) == (made is not None)
        if made is not None and case["accepted"]:
            assert case["start"] == plain(made.starting)
            assert case["is_stream"] or case["end"] == plain(made.ending)


def test_the_listed_exceptions_are_needed():
    """Spark's source accepts each listed value in a batch or in a stream."""
    accepted = {
        (name, value)
        for case in GOLDEN["cases"]
        if case["accepted"]
        for name, value in case["options"].items()
    }
    unneeded = {(name, value) for name in STRICTER for value in STRICTER[name]} - accepted
    assert set() == unneeded


@pytest.mark.parametrize("text", GOLDEN["times"])
def test_times_are_parsed_as_spark_parses_them(text):
    """Times are accepted exactly if Spark accepts them, except for negative ones."""
    expected = GOLDEN["times"][text]
    if expected is None or expected < 0:
        with pytest.raises(ValueError, match="must be a time such as 15m or 500ms"):
            milliseconds(text)
    else:
        assert expected == milliseconds(text)
