"""How errors leave the package for Spark: their words, and their traceback."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from io import BytesIO
from pickle import PickleError
from traceback import format_exception_only

import pytest
from pyspark.taskcontext import TaskContext
from pyspark.util import handle_worker_exception

from spark_kafka_sink.errors import (
    AuthenticationError,
    BrokerError,
    ConfigError,
    DeliveryError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
    RecordTooLargeError,
)
from spark_kafka_sink.spark import user_errors
from spark_kafka_sink.spark.sink.writers import RefusedWriteError
from spark_kafka_sink.spark.user_errors import (
    HIDE_TRACEBACK,
    SIMPLIFIED_TRACEBACK,
    for_user,
    in_words_of_options,
    raising_for_user,
    with_task,
)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Restore the environment, which a worker's error changes."""
    given = {
        name: value
        for name, value in os.environ.items()
        if name != HIDE_TRACEBACK and not name.startswith("PYTHON_WORKER_FACTORY_")
    }
    monkeypatch.setattr(user_errors.os, "environ", given)
    return given


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Raise max.request.size.", "Raise kafka.max.request.size."),
        ("(bootstrap.servers)", "(kafka.bootstrap.servers)"),
        ("kafka.acks requires enable.idempotence", "kafka.acks requires kafka.enable.idempotence"),
        ("with acks=0 there", "with kafka.acks=0 there"),
        ("no more retries", "no more retries"),
        ("kafka.max.request.size is 3", "kafka.max.request.size is 3"),
        ("unknown option 'max.request.size'", "unknown option 'max.request.size'"),
        ("the topic's compression.type", "the topic's compression.type"),
        ("the topic's max.message.bytes", "the topic's max.message.bytes"),
        ("the brokers' transaction.max.timeout.ms", "the brokers' transaction.max.timeout.ms"),
        ("isolation.level", "kafka.isolation.level"),
        ("my.client.id.x", "my.client.id.x"),
        ("topic 'my linger.ms'", "topic 'my linger.ms'"),
        ("topic 'x' (\"it's linger.ms\")", "topic 'x' (\"it's linger.ms\")"),
        ("key b'a linger.ms': linger.ms", "key b'a linger.ms': kafka.linger.ms"),
        (r"='a\' linger.ms\" x' linger.ms", r"='a\' linger.ms\" x' kafka.linger.ms"),
        ("topic 'it's linger.ms'", "topic 'it's linger.ms'"),
        ("the topic's x and linger.ms, 'x'", "the topic's x and kafka.linger.ms, 'x'"),
        ("the brokers' x, linger.ms, 'x'", "the brokers' x, kafka.linger.ms, 'x'"),
        ("linger.ms doesn't: linger.ms isn't", "kafka.linger.ms doesn't: kafka.linger.ms isn't"),
    ],
)
def test_settings_are_named_as_options(text, expected):
    """A setting of the client gets its prefix once; a setting of a topic or broker has none."""
    assert expected == in_words_of_options(text)
    assert expected == in_words_of_options(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("row 1, topic 't': x", "row 1 of task 3, topic 't': x"),
        ("among rows 1 to 5 were", "among rows 1 to 5 of task 3 were"),
        ("from row 7 on", "from row 7 of task 3 on"),
        ("5 rows were written", "5 rows were written"),
        ("row 0, topic 'row 1 linger.ms'", "row 0 of task 3, topic 'row 1 linger.ms'"),
        ('topic "it\'s row 1", row 0', 'topic "it\'s row 1", row 0 of task 3'),
        ("the topic's x, row 0, 'x'", "the topic's x, row 0 of task 3, 'x'"),
    ],
)
def test_rows_are_those_of_a_task(text, expected):
    """Each place of a row names the task, once."""
    assert expected == with_task(text, 3)
    assert expected == with_task(expected, 3)


def test_an_error_in_a_task_keeps_its_type_and_its_fields(monkeypatch):
    """Only the message of an error changes."""
    monkeypatch.setattr(TaskContext, "_taskContext", None)  # each new one becomes the current one
    context = TaskContext()
    context._partitionId = 3
    monkeypatch.setattr(TaskContext, "get", classmethod(lambda _: context))
    error = RecordTooLargeError("too large", row=1, topic="t", advice="Raise max.request.size")

    assert error is for_user(error)
    assert "row 1 of task 3, topic 't': too large. Raise kafka.max.request.size" == str(error)
    assert (1, "t") == (error.row, error.topic)


@pytest.mark.parametrize("variable", ["PYTHON_WORKER_FACTORY_SECRET", "PYTHON_UNIX_DOMAIN_ENABLED"])
def test_a_worker_is_asked_to_hide_the_traceback(environment, variable):
    """In a process that Spark started for Python, an error asks for its message alone."""
    environment[variable] = "x"
    for_user(ConfigError("wrong"))
    assert "1" == environment[HIDE_TRACEBACK]


def test_no_other_process_is_changed(environment):
    """In a user's own process, the environment stays as it is."""
    for_user(ConfigError("wrong"))
    assert HIDE_TRACEBACK not in environment


def failed(error, cause):
    """Return an error with a traceback and a cause that has one, too."""
    error.__cause__ = cause
    for each in (cause, error):
        with suppress(type(each)):
            raise each
    return error


def of_user_code(cause):
    """Return the error of a function for tokens that raised this cause."""
    error = failed(NetworkError("no token"), cause)
    error.is_from_user_code = True
    return error


@pytest.mark.parametrize(
    "error",
    [
        failed(KafkaError("This is a bug"), OSError("reset")),
        of_user_code(FileNotFoundError("/tokens/team-a.jwt")),
        failed(KafkaTimeoutError("no topic"), of_user_code(FileNotFoundError("/tokens/a.jwt"))),
        failed(DeliveryError("failed"), ZeroDivisionError("a bug of ours")),
        failed(NetworkError("late"), failed(TimeoutError(), TypeError("a bug of ours"))),
        failed(AuthenticationError("no token"), RuntimeError("a provider of the user's")),
        RefusedWriteError.of(failed(NetworkError("lost"), LookupError("a bug of ours"))),
        RefusedWriteError.of(failed(KafkaError("This is a bug"), OSError("reset"))),
    ],
    ids=repr,
)
def test_an_error_that_may_be_a_bug_keeps_its_causes(environment, error):
    """An error whose reason is in code has its traceback and its causes."""
    environment["PYTHON_WORKER_FACTORY_SECRET"] = "x"  # noqa: S105 - not a secret
    cause = error.__cause__
    assert cause is for_user(error).__cause__
    assert (error.__traceback__ is not None) or isinstance(error, RefusedWriteError)
    assert cause.__traceback__ is not None
    assert HIDE_TRACEBACK not in environment


@pytest.mark.parametrize("is_worker", [True, False])
def test_pyspark_reports_the_causes_of_what_may_be_a_bug(environment, is_worker):
    """A worker of Spark does not simplify the traceback; another process is left unchanged."""
    environment[SIMPLIFIED_TRACEBACK] = "1"
    if is_worker:
        environment["PYTHON_WORKER_FACTORY_SECRET"] = "x"  # noqa: S105 - not a secret
    out = BytesIO()
    try:
        raise for_user(failed(NetworkError("no token"), KeyError("a key of the user's")))
    except NetworkError as error:
        handle_worker_exception(error, out)

    assert is_worker == (b'KeyError: "a key of the user\'s"' in out.getvalue())
    assert is_worker == (SIMPLIFIED_TRACEBACK not in environment)


@pytest.mark.parametrize(
    "error",
    [
        failed(NetworkError("refused"), ConnectionRefusedError("refused")),
        failed(NetworkError("no answer"), failed(TimeoutError(), asyncio.CancelledError())),
        failed(ConfigError("not JSON"), ValueError("not JSON")),
        RefusedWriteError.of(BrokerError("none", code=3, name="UNKNOWN_TOPIC_OR_PARTITION")),
        RefusedWriteError.of(failed(ConfigError("not JSON"), ValueError("not JSON"))),
    ],
    ids=repr,
)
def test_an_error_of_the_world_has_no_traceback(environment, error):
    """An error in options, or of the network or the cluster, is a sentence alone."""
    environment["PYTHON_WORKER_FACTORY_SECRET"] = "x"  # noqa: S105 - not a secret
    found = for_user(error)
    assert (None, None) == (found.__cause__, found.__traceback__)
    assert "1" == environment[HIDE_TRACEBACK]


def test_other_errors_pass_a_method_unchanged(environment):
    """An error that is not a KafkaError leaves a method as it was raised."""
    environment["PYTHON_WORKER_FACTORY_SECRET"] = "x"  # noqa: S105 - not a secret

    @raising_for_user
    def fail():
        raise ValueError("max.request.size")

    with pytest.raises(ValueError, match=r"^max\.request\.size$"):
        fail()
    assert HIDE_TRACEBACK not in environment


def test_a_method_raises_its_error_without_a_cause(environment):
    """A KafkaError leaves a method in the user's words, and without what caused it."""

    @raising_for_user
    def fail():
        raise ConfigError("max.request.size") from ValueError("inner")

    with pytest.raises(ConfigError, match=r"^kafka\.max\.request\.size$") as caught:
        fail()
    assert caught.value.__cause__ is None


def test_a_refused_write_is_shown_as_its_error():
    """Spark's line for a refused write has the name and the sentence of the error alone."""
    refused = for_user(RefusedWriteError.of(BrokerError("no right", code=29, name="NO_RIGHT")))

    assert isinstance(refused, PickleError)
    assert ["spark_kafka_sink.errors.BrokerError: no right\n"] == format_exception_only(refused)
