"""The life cycle of plug-ins: created, configured, used and closed once, as Java's are."""

from __future__ import annotations

import logging
import threading

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config.plug_ins import PlugIns, plug_in_settings, takes
from spark_kafka_sink.config.plugin_reference import SERIALIZERS, PluginReference
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF, ProducerConfig
from spark_kafka_sink.config.security_settings import SECURITY_CONFIG_DEF
from spark_kafka_sink.errors import ConfigError, InvalidPartitionError, SerializationError
from spark_kafka_sink.producer import kafka_producer, producer_core
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.producer.records.serializers import resolve_serializer
from tests.support.producer.sending import PARTITIONS, TIMEOUT, records_of, sending_producer
from tests.support.security.secured import sasl

SERVERS = {"bootstrap.servers": "127.0.0.1:9"}


class _PlugIn:
    """A plug-in that records the calls of its life cycle, and raises in the given ones."""

    def __init__(self, name, life, fails=()):
        self.name, self.life, self.fails = name, life, fails

    def _note(self, what):
        self.life.append((self.name, what))
        if what in self.fails:
            raise RuntimeError(f"{what} of {self.name}")

    def configure(self, settings):
        self._note("configure")

    def close(self):
        self._note("close")


class _Serializer(_PlugIn):
    def serialize(self, topic, headers, data):
        headers.append((self.name, topic.encode()))
        return str(data).encode()


class _Partitioner(_PlugIn):
    def partition(self, *of_record):
        self.seen = of_record
        return 1


class _Interceptor(_PlugIn):
    def on_acknowledgement(self, metadata, error, headers=()):
        self.life.append((self.name, tuple(headers)))


class _Reporter(_PlugIn):
    def init(self, metrics):
        self._note("init")

    def metric_change(self, metric):
        pass

    def metric_removal(self, metric):
        pass


def _all_kinds(life, fails=()):
    return {
        "partitioner.class": _Partitioner("partitioner", life, fails),
        "interceptor.classes": [_Interceptor(name, life, fails) for name in ("first", "second")],
        "key.serializer": _Serializer("key", life, fails),
        "value.serializer": _Serializer("value", life, fails),
        "metric.reporters": [_Reporter("reporter", life, fails)],
    }


NAMES = ["partitioner", "first", "second", "key", "value", "reporter"]


@pytest.mark.parametrize("fails", [(), ("close",)], ids=["well", "closing fails"])
def test_every_plug_in_is_configured_and_closed_once(broker, fails):
    """Plug-ins are configured before their first use, and closed even if closing another fails."""
    life = []
    producer = sending_producer(broker, **_all_kinds(life, fails))
    assert [(name, "configure") for name in NAMES] + [("reporter", "init")] == life
    life.clear()
    producer.close()
    producer.close()
    assert sorted((name, "close") for name in NAMES) == sorted(life)


def test_a_failed_close_is_logged_by_name(broker, caplog):
    """The producer still closes, and the log says which plug-in failed to."""
    life = []
    with caplog.at_level(logging.WARNING):
        sending_producer(broker, **_all_kinds(life, ("close",))).close()
    failures = [entry for entry in caplog.records if "could not close plug-in _" in entry.message]
    assert [True] * 5 == [bool(entry.exc_info) for entry in failures]


def test_an_interrupted_close_closes_the_others():
    """The interrupt is raised after all plug-ins have been closed."""
    life = []

    class Interrupted(_PlugIn):
        def close(self):
            super().close()
            raise KeyboardInterrupt

    plug_ins = PlugIns()
    for one in (_PlugIn("a", life), Interrupted("b", life), _PlugIn("c", life)):
        plug_ins.load(PluginReference(target=one), "a.setting")
    life.clear()
    with pytest.raises(KeyboardInterrupt):
        plug_ins.close()
    plug_ins.close()
    assert [("a", "close"), ("b", "close"), ("c", "close")] == life


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=8))
def test_each_object_is_closed_once_in_the_order_of_creation(uses):
    """An object used twice, such as for keys and values, is closed once."""
    life = []
    objects = [_PlugIn(name, life) for name in range(4)]
    plug_ins = PlugIns()
    for which, fails in uses:
        if fails:
            objects[which].fails = ("close",)
        plug_ins.load(PluginReference(target=objects[which]), "a.setting")
    life.clear()
    plug_ins.close()
    plug_ins.close()
    assert [(which, "close") for which in dict.fromkeys(which for which, _ in uses)] == life


@pytest.mark.parametrize("setting", list(_all_kinds([])))
def test_a_plug_in_that_cannot_be_imported_is_named_with_its_setting(setting):
    """The setting is named because several settings may refer to one module."""
    sentence = f"^{setting}: 'no_such_module:plug_in' cannot be imported: ModuleNotFoundError: "
    with pytest.raises(ConfigError, match=sentence):
        KafkaProducer({**SERVERS, setting: "no_such_module:plug_in"})


@pytest.mark.parametrize("broken", ["value.serializer", "metric.reporters", "interceptor.classes"])
def test_a_producer_that_cannot_be_created_closes_its_configured_plug_ins(broken):
    """If a plug-in cannot be configured, no producer is created and no plug-in is left open."""
    life = []
    settings = _all_kinds(life)
    culprit = settings[broken][-1] if isinstance(settings[broken], list) else settings[broken]
    culprit.fails = ("configure",)
    sentence = rf"{broken}: .* could not be configured: RuntimeError: configure of {culprit.name}"
    with pytest.raises(ConfigError, match=sentence):
        KafkaProducer({**SERVERS, **settings})
    configured = {name for name, what in life if what == "configure"}
    assert sorted(configured) == sorted(name for name, what in life if what == "close")


def test_a_failure_after_configuring_plug_ins_closes_them(monkeypatch):
    """A failure after all plug-ins have been configured leaves none of them open."""

    def fail(*_: object, **__: object) -> None:
        raise ConfigError("no such trust store")

    monkeypatch.setattr(kafka_producer, "ThreadedCore", fail)
    life = []
    with pytest.raises(ConfigError, match="no such trust store"):
        KafkaProducer({**SERVERS, **_all_kinds(life)})
    closed = [name for name, what in life if what == "close"]
    assert ["partitioner", "first", "second", "key", "value"] == closed


@pytest.mark.parametrize(
    ("module", "part"),
    [
        (producer_core, "BufferPool"),
        (kafka_producer, "RecordPreparation"),
        (threading.Thread, "start"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_failure_after_starting_a_reporter_closes_all_plug_ins(monkeypatch, module, part):
    """A failure after a reporter has started leaves neither it nor another plug-in open."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(module, part, fail)
    life = []
    with pytest.raises(RuntimeError, match="no such luck"):
        KafkaProducer({**SERVERS, **_all_kinds(life)})
    closed = [name for name, what in life if what == "close"]
    assert ["reporter", "partitioner", "first", "second", "key", "value"] == closed


def test_plug_ins_get_the_settings():
    """Plug-ins get Kafka's setting names with effective values, without security settings."""
    settings = plug_in_settings(
        ProducerConfig.from_mapping(
            {**SERVERS, "linger.ms": "7", "client.id": "me", **sasl("PLAIN", "user", "secret")}
        )
    )
    assert (7, "me", -1) == (settings["linger.ms"], settings["client.id"], settings["acks"])
    assert "secret" not in repr(dict(settings))
    without_security = set(PRODUCER_CONFIG_DEF.names) - set(SECURITY_CONFIG_DEF.names)
    assert without_security <= set(settings)
    with pytest.raises(TypeError):
        settings["linger.ms"] = 8


@pytest.mark.parametrize("is_key", [True, False])
def test_is_key_is_passed_only_to_a_configure_that_accepts_it(is_key):
    """`is_key` is passed only if `configure` takes it, as in Java's `configure(configs, isKey)`."""
    configured = []

    class Asking:
        def configure(self, settings, is_key):
            configured.append((settings["linger.ms"], is_key))

        def __call__(self, value):
            return value

    reference = SERIALIZERS.read(Asking())
    resolve_serializer(reference, is_key=is_key, plug_ins=PlugIns({"linger.ms": 7}))
    assert [(7, is_key)] == configured


def test_serializers_can_add_headers(broker):
    """The key's serializer comes before the value's, and each sees the headers so far."""
    settings = {"key.serializer": _Serializer("k", []), "value.serializer": _Serializer("v", [])}
    with sending_producer(broker, **settings) as producer:
        producer.send("one", 5, key=6, headers=[("own", None)]).result(TIMEOUT)
        producer.send("one", 7).result(TIMEOUT)
    first, second = records_of(broker)
    assert (b"5", b"6") == (first.value, first.key)
    assert [("own", None), ("k", b"one"), ("v", b"one")] == list(first.headers)
    assert [("v", b"one")] == list(second.headers)


def test_a_function_can_accept_headers_by_name(broker):
    """A plain function needs no class, and the caller's list of headers is not changed."""

    def tagging(value, headers, topic):
        headers[:] = [("topic", topic.encode())]
        return value

    own = [("h", b"1")]
    with sending_producer(broker, **{"value.serializer": tagging}) as producer:
        producer.send("one", b"v", headers=own).result(TIMEOUT)
    [record] = records_of(broker)
    assert [("topic", b"one")] == list(record.headers)
    assert [("h", b"1")] == own


def test_invalid_headers_from_a_serializer_are_rejected(broker):
    """Invalid headers raise an error in `send`, and nothing is sent."""

    def spoiling(value, headers):
        headers.append(("name", 1))
        return value

    with (
        sending_producer(broker, **{"value.serializer": spoiling}) as producer,
        pytest.raises(TypeError, match="the value of header 'name' must be bytes or None"),
    ):
        producer.send("one", b"v")
    assert [] == records_of(broker)


def test_an_error_in_a_serializers_method_is_the_cause():
    """The error of a serializer's method names topic and part; null is not passed to it."""

    class Failing:
        def serialize(self, topic, headers, data):
            raise ValueError("no")

    serialize = resolve_serializer(SERIALIZERS.read(Failing()), is_key=True).serialize
    with pytest.raises(
        SerializationError, match=r"topic 't': .* cannot convert a key of type int"
    ) as caught:
        serialize(3, "t", [])
    assert isinstance(caught.value.__cause__, ValueError)
    assert serialize(None, "t", []) is None


def test_a_partitioner_sees_the_record_and_the_cluster(broker):
    """A partitioner gets key and value, as objects and as bytes, and the cluster metadata."""
    partitioner = _Partitioner("p", [])
    settings = {"key.serializer": "string", "value.serializer": "json"}
    with sending_producer(broker, **{"partitioner.class": partitioner, **settings}) as producer:
        assert 1 == producer.send("t", [1], key="k").result(TIMEOUT).partition
        *record, cluster = partitioner.seen
    assert ["t", "k", b"k", [1], b"[1]"] == record
    assert PARTITIONS == cluster.partition_count("t")
    assert len(cluster.nodes) == 1


def test_a_partitioner_is_used_for_the_rows_of_a_table(broker):
    """Keys and values of columns are bytes, and the cluster metadata is available as well."""
    partitioner = _Partitioner("p", [])
    with sending_producer(broker, **{"partitioner.class": partitioner}) as producer:
        table = pa.table({"value": ["a", "b"], "key": ["k", None]})
        assert {("t", 1)} == set(producer.send_arrow(table, topic="t").result(TIMEOUT))
        *record, cluster = partitioner.seen
    assert ["t", None, None, b"b", b"b"] == record
    assert PARTITIONS == cluster.partition_count("t")


@pytest.mark.parametrize("answer", ["1", 2**40, None, PARTITIONS])
def test_the_error_for_an_invalid_partition_names_the_class(broker, answer):
    """The record fails with an error that names the class."""

    class Lost:
        def partition(self, *of_record):
            return answer

    with sending_producer(broker, **{"partitioner.class": Lost}) as producer:
        error = producer.send("t", b"v").exception(TIMEOUT)
        assert isinstance(error, InvalidPartitionError)
        with pytest.raises(InvalidPartitionError, match="Lost"):
            producer.send_arrow(pa.table({"value": ["a"]}), topic="t")


def test_interceptors_get_the_headers_of_a_record_with_its_outcome(broker):
    """Interceptors get the headers as sent, or as given for records that were not sent."""
    life = []
    settings = {
        "interceptor.classes": [_Interceptor("i", life)],
        "value.serializer": _Serializer("v", []),
        "max.request.size": 1_000,
    }
    with sending_producer(broker, **settings) as producer:
        life.clear()
        producer.send("one", "short", headers=[("own", b"1")]).result(TIMEOUT)
        producer.send("one", "x" * 2_000, headers=[("own", b"2")]).exception(TIMEOUT)
        # The network thread calls for the second record, and this thread for the third.
        producer.flush()
        with pytest.raises(ValueError, match="topic"):
            producer.send("", "v", headers=[("own", b"3")])
        producer.send("one", "no headers of its own").result(TIMEOUT)
    added = ("v", b"one")
    assert [
        (("own", b"1"), added),
        (("own", b"2"),),
        (("own", b"3"),),
        (added,),
    ] == [headers for _, headers in life if headers != "close"]


def test_a_function_without_a_signature_gets_no_extra_arguments():
    """A function without a signature, such as some written in C, takes no extra arguments."""
    assert not takes(max, "headers")
    assert takes(lambda headers: headers, "headers")
