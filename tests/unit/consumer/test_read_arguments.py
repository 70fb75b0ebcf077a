"""The checks of the arguments of `read_arrow`, which come before any connection."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime

import pytest

from spark_kafka_sink.config.config_def import LONG_MAX
from spark_kafka_sink.consumer import read_arrow as module
from spark_kafka_sink.consumer.read_arrow import read_arrow
from spark_kafka_sink.errors import ConfigError, SchemaError
from spark_kafka_sink.model import TopicPartition

ZERO = TopicPartition("t", 0)
POSITION = '"earliest", "latest", a datetime, or a mapping of partitions to offsets or datetimes'
TOPIC = "the name of a topic or a TopicPartition, or several of them"
NUMBERS = "an integer from 0 to 2^63 - 1, -2 (earliest) or -1 (latest)"
BAD_NAME = "is not a valid topic name: use up to 249 letters, digits, '.', '_' and '-'"
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 -- refused
NO_ZONE = "must have a time zone, such as datetime(2026, 1, 1, tzinfo=timezone.utc)"


@pytest.fixture(autouse=True)
def _unconnected(monkeypatch):
    """Fail a test that gets as far as a client."""

    def connect(_):
        raise AssertionError("a client was created")

    monkeypatch.setattr(module, "ConsumerClient", connect)


def refusal(kind, given):
    """Return the message of the error that the arguments cause."""
    arguments = {"bootstrap_servers": "127.0.0.1:9092", "topic": "t", **given}
    with pytest.raises(kind) as caught:
        read_arrow(**arguments)
    assert kind is type(caught.value)
    return str(caught.value)


def test_valid_arguments_pass_the_checks():
    """The client is created once all arguments are checked."""
    with pytest.raises(AssertionError, match="a client was created"):
        read_arrow(
            ["127.0.0.1:9092", "127.0.0.1:9093"],
            ("t", TopicPartition("u", 1)),
            start=datetime(2026, 1, 1, tzinfo=UTC),
            end={
                ZERO: -1,
                TopicPartition("t", 1): LONG_MAX,
                TopicPartition("u", 1): datetime(2026, 1, 1, tzinfo=UTC),
            },
            columns=("key", "value"),
            poll_timeout=1,
            settings={"client.id": "me"},
            isolation_level="read_committed",
        )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"bootstrap_servers": b"localhost:9092"},
            "bootstrap_servers must be a str of host:port, or several of them, not bytes",
        ),
        (
            {"bootstrap_servers": None},
            "bootstrap_servers must be a str of host:port, or several of them, not NoneType",
        ),
        (
            {"bootstrap_servers": ["localhost:9092", 9093]},
            "bootstrap_servers must be a str of host:port, or several of them, not list with int",
        ),
        ({"topic": b"t"}, f"topic must be {TOPIC}, not bytes"),
        ({"topic": 1}, f"topic must be {TOPIC}, not int"),
        ({"topic": None}, f"topic must be {TOPIC}, not NoneType"),
        ({"topic": {"t": [0]}}, f"topic must be {TOPIC}, not dict"),
        ({"topic": ["t", b"u"]}, f"topic must be {TOPIC}, not list with bytes"),
        ({"topic": ("t", 0)}, f"topic must be {TOPIC}, not tuple with int"),
        (
            {"topic": TopicPartition(b"t", 0)},
            "topic: the name of a topic must be a str, not bytes",
        ),
        (
            {"topic": [TopicPartition("t", "0")]},
            "topic: the number of a partition must be an int, not str",
        ),
        (
            {"topic": TopicPartition("t", True)},
            "topic: the number of a partition must be an int, not bool",
        ),
        ({"start": 5}, f"start must be {POSITION}, not int"),
        ({"start": None}, f"start must be {POSITION}, not NoneType"),
        ({"end": True}, f"end must be {POSITION}, not bool"),
        ({"end": [5]}, f"end must be {POSITION}, not list"),
        ({"end": date(2026, 1, 1)}, f"end must be {POSITION}, not date"),
        (
            {"start": {"0": 5}},
            "a key of start must be a TopicPartition, or the number of a partition, not str",
        ),
        (
            {"start": {("t", 0): 5}},
            "a key of start must be a TopicPartition, or the number of a partition, not tuple",
        ),
        (
            {"end": {False: 5}},
            "a key of end must be a TopicPartition, or the number of a partition, not bool",
        ),
        (
            {"end": {TopicPartition("t", 0.0): 5}},
            "end: the number of a partition must be an int, not float",
        ),
        ({"start": {0: "5"}}, f"start of t-0 must be {NUMBERS}, or a datetime, not str"),
        ({"start": {ZERO: 5.0}}, f"start of t-0 must be {NUMBERS}, or a datetime, not float"),
        ({"end": {0: True}}, f"end of t-0 must be {NUMBERS}, or a datetime, not bool"),
        ({"end": {0: None}}, f"end of t-0 must be {NUMBERS}, or a datetime, not NoneType"),
        ({"columns": "value"}, "columns must be a list of the names of columns, not str"),
        ({"columns": 1}, "columns must be a list of the names of columns, not int"),
        (
            {"columns": ["key", 1]},
            "columns must be a list of the names of columns, not list with int",
        ),
        ({"include_headers": "false"}, "include_headers must be a bool, not str"),
        ({"include_headers": 1}, "include_headers must be a bool, not int"),
        ({"fail_on_data_loss": None}, "fail_on_data_loss must be a bool, not NoneType"),
        ({"poll_timeout": "60"}, "poll_timeout must be a number of seconds, not str"),
        ({"poll_timeout": True}, "poll_timeout must be a number of seconds, not bool"),
        ({"poll_timeout": None}, "poll_timeout must be a number of seconds, not NoneType"),
    ],
    ids=str,
)
def test_a_wrong_type_is_a_type_error_that_names_the_argument(given, message):
    """The error says what the argument must be, and what it is."""
    assert message == refusal(TypeError, given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"bootstrap_servers": []},
            "bootstrap.servers contains no address: set host:port, or several",
        ),
        (
            {"bootstrap_servers": "localhost"},
            "bootstrap.servers: 'localhost' is not host:port, such as localhost:9092",
        ),
        ({"topic": []}, f"topic is empty: it must be {TOPIC}"),
        ({"topic": ["t", "u", "t"]}, "topic names t twice: remove one of them"),
        ({"topic": [ZERO, ZERO]}, "topic names t-0 twice: remove one of them"),
        (
            {"topic": ""},
            f"topic: '' {BAD_NAME}",
        ),
        (
            {"topic": "a,b"},
            f"topic: 'a,b' {BAD_NAME}",
        ),
        (
            {"topic": TopicPartition("t", -1)},
            "topic: the number of a partition must be 0 or more, not -1",
        ),
        ({"start": "beginning"}, f"start must be {POSITION}, not 'beginning'"),
        ({"end": "5"}, f"end must be {POSITION}, not '5'"),
        ({"start": NAIVE}, f"start {NO_ZONE}"),
        ({"end": {0: NAIVE}}, f"end of t-0 {NO_ZONE}"),
        ({"start": {0: -3}}, f"start of t-0 must be {NUMBERS}, not -3"),
        ({"end": {ZERO: LONG_MAX + 1}}, f"end of t-0 must be {NUMBERS}, not {LONG_MAX + 1}"),
        ({"start": {-1: 5}}, "start: the number of a partition must be 0 or more, not -1"),
        ({"start": {0: 5, ZERO: 6}}, "start names t-0 twice: remove one of them"),
        (
            {"topic": ["t", TopicPartition("u", 0)], "start": {0: 1}},
            "start must have TopicPartitions as keys, since several topics are read",
        ),
        ({"poll_timeout": 0}, "poll_timeout must be greater than 0 seconds, not 0"),
        ({"poll_timeout": -0.5}, "poll_timeout must be greater than 0 seconds, not -0.5"),
        ({"poll_timeout": math.nan}, "poll_timeout must be greater than 0 seconds, not nan"),
        (
            {"settings": [("client.id", "me")]},
            "settings must be a mapping of names to values, not list",
        ),
        ({"settings": ""}, "settings must be a mapping of names to values, not str"),
        ({"settings": {1: "me"}}, "the name of a setting must be a string, not 1"),
        (
            {"settings": {"bootstrap.servers": "localhost:9092"}},
            "bootstrap.servers is given twice: remove one of them",
        ),
        (
            {"settings": {"client.id": "a"}, "client_id": "b"},
            "client.id is given twice: remove one of them",
        ),
        ({"valueFormat": "avro"}, "unknown argument 'valueFormat'; did you mean 'value_format'?"),
        (
            {"onDecodeError": "null"},
            "onDecodeError is not an argument: set it in format_options",
        ),
        ({"fetch_max_bytes": -1}, "fetch.max.bytes must be at least 0, not -1"),
        (
            {"max_partition_fetch_bytes": "1 MB"},
            "max.partition.fetch.bytes must be a 32-bit integer without a unit, not '1 MB'",
        ),
        (
            {"settings": {"fetch.max.bytes": True}},
            "fetch.max.bytes must be a 32-bit integer without a unit, not True",
        ),
    ],
    ids=str,
)
def test_a_wrong_value_is_a_config_error_that_names_the_argument(given, message):
    """The error says what the argument may be."""
    assert message == refusal(ConfigError, given)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["price"], "there is no column 'price'"),
        (["key", "key"], "the column 'key' is selected twice"),
        ([], "no columns are selected"),
    ],
    ids=str,
)
def test_a_wrong_column_is_a_schema_error(columns, message):
    """The error names the column; the columns that there are follow."""
    assert refusal(SchemaError, {"columns": columns}).startswith(message)
