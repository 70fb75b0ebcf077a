"""Interceptors see everything in order and cannot stop anything."""

from __future__ import annotations

import logging
from dataclasses import FrozenInstanceError, replace

import pytest

from spark_kafka_sink.config.plug_ins import PlugIns
from spark_kafka_sink.config.plugin_reference import INTERCEPTORS, PluginReference
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.producer.records.interceptors import (
    ProducerInterceptor,
    ProducerInterceptors,
    ProducerRecord,
    resolve_interceptors,
)

RECORD = ProducerRecord("t", "secret value", key="secret key", partition=3)


class _Appending(ProducerInterceptor):
    """An interceptor that appends its name to values and records acknowledgements."""

    def __init__(self, name: str, acks: list) -> None:
        self.name = name
        self.acks = acks

    def on_send(self, record):
        return replace(record, value=f"{record.value}+{self.name}")

    def on_acknowledgement(self, metadata, error):
        self.acks.append((self.name, metadata, error))


class _Failing:
    """An interceptor that always raises."""

    def on_send(self, record):
        raise RuntimeError("on_send")

    def on_acknowledgement(self, metadata, error):
        raise RuntimeError("on_acknowledgement")


def test_each_interceptor_gets_the_record_of_the_previous_one():
    """Records pass through the chain in order, and the original record is unchanged."""
    chain = ProducerInterceptors([_Appending("a", []), _Appending("b", [])])
    assert replace(RECORD, value="secret value+a+b") == chain.on_send(RECORD)
    assert "secret value" == RECORD.value


def test_interceptors_get_acknowledgements_in_order():
    """Every interceptor is called for success and failure."""
    acks: list = []
    chain = ProducerInterceptors([_Appending("a", acks), _Appending("b", acks)])
    error = TimeoutError()
    chain.on_acknowledgement("metadata", None)
    chain.on_acknowledgement(None, error)
    assert [
        ("a", "metadata", None),
        ("b", "metadata", None),
        ("a", None, error),
        ("b", None, error),
    ] == acks


def test_an_interceptor_that_raises_in_on_send_is_skipped(caplog):
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
def test_an_interceptor_that_returns_no_record_is_skipped(caplog, returned):
    """A record is not lost if an interceptor forgets to return it."""

    class Forgetful:
        def on_send(self, record):
            return returned

    chain = ProducerInterceptors([Forgetful(), _Appending("b", [])])
    assert "secret value+b" == chain.on_send(RECORD).value
    assert f"returned {type(returned).__name__}, not a ProducerRecord" in caplog.text


def test_an_interceptor_that_raises_does_not_affect_the_others(caplog):
    """Interceptors behind one that raises still receive acknowledgements."""
    acks: list = []
    chain = ProducerInterceptors([_Failing(), _Appending("b", acks)])
    chain.on_acknowledgement(None, None)
    assert [("b", None, None)] == acks
    assert ["an interceptor's on_acknowledgement failed"] == caplog.messages
    assert all(entry.exc_info for entry in caplog.records)


def test_an_interrupt_is_not_swallowed():
    """KeyboardInterrupt passes through, because only `Exception` is caught."""

    class Interrupted:
        def on_send(self, record):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ProducerInterceptors([Interrupted()]).on_send(RECORD)


def test_interceptor_methods_are_optional():
    """An interceptor needs only the methods that it uses, and the base class has no-ops for all."""

    class Listening:
        def on_acknowledgement(self, metadata, error):
            pass

    chain = ProducerInterceptors([Listening(), ProducerInterceptor()])
    assert RECORD is chain.on_send(RECORD)
    chain.on_acknowledgement(None, None)


def test_headers_are_passed_to_interceptors_that_accept_them():
    """An interceptor with a parameter named `headers` gets the headers; others are unaffected."""
    acks: list = []

    class WithHeaders:
        def on_acknowledgement(self, metadata, error, headers):
            acks.append(("with", headers))

    chain = ProducerInterceptors([WithHeaders(), _Appending("b", acks)])
    chain.on_acknowledgement("metadata", None, [("h", b"1")])
    assert [("with", [("h", b"1")]), ("b", "metadata", None)] == acks


def test_an_empty_chain_is_false():
    """The truth value says whether there are any interceptors."""
    assert not ProducerInterceptors()
    assert ProducerInterceptors([ProducerInterceptor()])


def test_a_record_is_frozen():
    """A record cannot be changed after an interceptor has seen it."""
    with pytest.raises(FrozenInstanceError):
        RECORD.value = "other"


def test_a_record_requires_only_a_topic():
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


def test_an_interceptor_can_be_a_class_an_object_or_an_import_path():
    """Classes are instantiated without arguments, in the order of the setting."""
    acks: list = []
    chain = resolve_interceptors(
        references(
            _Appending("a", acks),
            ProducerInterceptor,
            "spark_kafka_sink.producer.records.interceptors:ProducerInterceptor",
            _Appending("b", acks),
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
def test_an_object_that_is_not_an_interceptor_is_rejected(bad, sentence):
    """The error names the setting and what is missing."""
    with pytest.raises(ConfigError, match=sentence):
        resolve_interceptors(references(_Appending("a", []), bad), PlugIns())
