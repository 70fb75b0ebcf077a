"""Interceptors see everything in order and cannot stop anything."""

from __future__ import annotations

import logging
from dataclasses import FrozenInstanceError, replace

import pytest

from spark_kafka_sink.config.plugin_reference import INTERCEPTORS, PluginReference
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.producer.records.interceptors import (
    ProducerInterceptor,
    ProducerInterceptors,
    resolve_interceptors,
)
from spark_kafka_sink.producer.records.plugins import PlugIns
from spark_kafka_sink.producer.records.producer_record import ProducerRecord

RECORD = ProducerRecord("t", "secret value", key="secret key", partition=3)


class _Appending(ProducerInterceptor):
    """An interceptor that appends its name to values and records acknowledgements."""

    def __init__(self, name: str, heard: list) -> None:
        self.name = name
        self.heard = heard

    def on_send(self, record):
        return replace(record, value=f"{record.value}+{self.name}")

    def on_acknowledgement(self, metadata, error):
        self.heard.append((self.name, metadata, error))


class _Failing:
    """An interceptor that always raises."""

    def on_send(self, record):
        raise RuntimeError("on_send")

    def on_acknowledgement(self, metadata, error):
        raise RuntimeError("on_acknowledgement")


def test_each_sees_what_the_one_before_it_returned():
    """Records pass through the chain in order, and the original record is unchanged."""
    chain = ProducerInterceptors([_Appending("a", []), _Appending("b", [])])
    assert replace(RECORD, value="secret value+a+b") == chain.on_send(RECORD)
    assert "secret value" == RECORD.value


def test_acknowledgements_are_told_in_order():
    """Every interceptor is called for success and failure."""
    heard: list = []
    chain = ProducerInterceptors([_Appending("a", heard), _Appending("b", heard)])
    error = TimeoutError()
    chain.on_acknowledgement("metadata", None)
    chain.on_acknowledgement(None, error)
    assert [
        ("a", "metadata", None),
        ("b", "metadata", None),
        ("a", None, error),
        ("b", None, error),
    ] == heard


def test_one_that_raises_on_send_is_passed_over(caplog):
    """If one raises, the next one gets the last good record, and the log has no content of it."""
    chain = ProducerInterceptors([_Appending("a", []), _Failing(), _Appending("b", [])])
    assert "secret value+a+b" == chain.on_send(RECORD).value
    (entry,) = caplog.records
    assert logging.WARNING == entry.levelno
    assert (
        "an interceptor's on_send failed and was skipped for topic t, partition 3" == entry.message
    )
    assert entry.exc_info
    assert "secret" not in entry.message


@pytest.mark.parametrize("returned", [None, "record"])
def test_one_that_returns_no_record_is_passed_over(caplog, returned):
    """A record is not lost if an interceptor forgets to return it."""

    class Forgetful:
        def on_send(self, record):
            return returned

    chain = ProducerInterceptors([Forgetful(), _Appending("b", [])])
    assert "secret value+b" == chain.on_send(RECORD).value
    assert f"returned {type(returned).__name__}, not a ProducerRecord" in caplog.text


def test_one_that_raises_keeps_nobody_from_hearing(caplog):
    """Interceptors behind one that raises still receive acknowledgements."""
    heard: list = []
    chain = ProducerInterceptors([_Failing(), _Appending("b", heard)])
    chain.on_acknowledgement(None, None)
    assert [("b", None, None)] == heard
    assert ["an interceptor's on_acknowledgement failed"] == caplog.messages
    assert all(entry.exc_info for entry in caplog.records)


def test_an_interrupt_is_not_swallowed():
    """KeyboardInterrupt passes through, because only `Exception` is caught."""

    class Interrupted:
        def on_send(self, record):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ProducerInterceptors([Interrupted()]).on_send(RECORD)


def test_methods_may_be_missing():
    """An interceptor needs only the methods that it uses, and the base class has no-ops for all."""

    class Listening:
        def on_acknowledgement(self, metadata, error):
            pass

    chain = ProducerInterceptors([Listening(), ProducerInterceptor()])
    assert RECORD is chain.on_send(RECORD)
    chain.on_acknowledgement(None, None)


def test_headers_go_to_those_that_take_them():
    """An interceptor with a parameter named `headers` gets the headers; others are unaffected."""
    heard: list = []

    class WithHeaders:
        def on_acknowledgement(self, metadata, error, headers):
            heard.append(("with", headers))

    chain = ProducerInterceptors([WithHeaders(), _Appending("b", heard)])
    chain.on_acknowledgement("metadata", None, [("h", b"1")])
    assert [("with", [("h", b"1")]), ("b", "metadata", None)] == heard


def test_no_interceptors_are_false():
    """The truth value says whether there are any interceptors."""
    assert not ProducerInterceptors()
    assert ProducerInterceptors([ProducerInterceptor()])


def test_a_record_is_frozen():
    """A record cannot be changed after an interceptor has seen it."""
    with pytest.raises(FrozenInstanceError):
        RECORD.value = "other"


def test_a_record_has_all_but_its_topic_by_default():
    """A record needs only a topic, and is then a tombstone without a key."""
    record = ProducerRecord("t")
    assert (None, None, (), None, None) == (
        record.value,
        record.key,
        record.headers,
        record.partition,
        record.timestamp,
    )


# --- from the configuration


def references(*values: object) -> list[PluginReference]:
    return [INTERCEPTORS.read(value) for value in values]


def test_classes_objects_and_paths_are_interceptors():
    """Classes are instantiated without arguments, in the order of the setting."""
    heard: list = []
    chain = resolve_interceptors(
        references(
            _Appending("a", heard),
            ProducerInterceptor,
            "spark_kafka_sink.producer.records.interceptors:ProducerInterceptor",
            _Appending("b", heard),
        ),
        PlugIns(),
    )
    assert "secret value+a+b" == chain.on_send(RECORD).value
    assert not resolve_interceptors([], PlugIns())


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (
            object(),
            r"interceptor\.classes: .*object is not an interceptor: it has neither on_send nor",
        ),
        (_Appending, r"interceptor\.classes: .*Appending could not be created without arguments"),
    ],
)
def test_what_is_no_interceptor_is_refused(bad, sentence):
    """The error names the setting and what is missing."""
    with pytest.raises(ConfigError, match=sentence):
        resolve_interceptors(references(_Appending("a", []), bad), PlugIns())
