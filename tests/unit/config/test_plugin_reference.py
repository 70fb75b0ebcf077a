from __future__ import annotations

import pickle
import sys
import types

import pytest

from spark_kafka_sink.config.plugin_reference import (
    ASSIGNORS,
    DESERIALIZERS,
    INTERCEPTORS,
    PARTITIONERS,
    REPORTERS,
    SERIALIZERS,
    PluginReference,
)
from spark_kafka_sink.errors import ConfigError

KINDS = [SERIALIZERS, DESERIALIZERS, PARTITIONERS, ASSIGNORS, INTERCEPTORS, REPORTERS]


class Shouting:
    """A serializer defined by a user."""

    def __call__(self, value):
        """Return the upper-case text as bytes."""
        return value.upper().encode()


def problem(kind, value):
    with pytest.raises(ValueError, match=r"must be|Java") as caught:
        kind.read(value)
    return str(caught.value)


@pytest.fixture
def plugin_module(monkeypatch):
    module = types.ModuleType("plugins_of_a_user")
    module.Shouting = Shouting
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.parametrize("kind", [SERIALIZERS, DESERIALIZERS, PARTITIONERS, ASSIGNORS, REPORTERS])
def test_built_in_plugins_have_short_names(kind):
    """Each short name refers to a built-in plug-in; surrounding spaces are ignored."""
    assert [PluginReference(built_in=name) for name in kind.names] == [
        kind.read(f" {name} ") for name in kind.names
    ]


@pytest.mark.parametrize(
    ("java", "name"),
    [
        ("ByteArraySerializer", "bytes"),
        ("ByteBufferSerializer", "bytes"),
        ("BytesSerializer", "bytes"),
        ("StringSerializer", "string"),
        ("ShortSerializer", "int16"),
        ("IntegerSerializer", "int32"),
        ("LongSerializer", "int64"),
        ("FloatSerializer", "float32"),
        ("DoubleSerializer", "float64"),
        ("BooleanSerializer", "boolean"),
        ("UUIDSerializer", "uuid"),
        ("VoidSerializer", "void"),
    ],
)
def test_kafkas_serializer_classes_are_accepted(java, name):
    """A Kafka serializer class refers to the built-in serializer with the same output."""
    given = f"org.apache.kafka.common.serialization.{java}"
    assert PluginReference(built_in=name) == SERIALIZERS.read(given)
    reader = PluginReference(built_in=name)
    assert reader == DESERIALIZERS.read(given.replace("Serializer", "Deserializer"))


@pytest.mark.parametrize(
    ("java", "name"),
    [
        ("RangeAssignor", "range"),
        ("RoundRobinAssignor", "roundrobin"),
        ("StickyAssignor", "sticky"),
        ("CooperativeStickyAssignor", "cooperative-sticky"),
    ],
)
def test_kafkas_assignor_classes_are_accepted(java, name):
    """A Kafka assignor class refers to the built-in assignor of its name in requests."""
    given = f"org.apache.kafka.clients.consumer.{java}"
    assert PluginReference(built_in=name) == ASSIGNORS.read(given)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("", "default"),
        ("consistent_random", "crc32"),
        ("org.apache.kafka.clients.producer.RoundRobinPartitioner", "round_robin"),
        ("org.apache.kafka.clients.producer.internals.DefaultPartitioner", "default"),
    ],
)
def test_partitioner_names_of_other_clients_are_accepted(given, name):
    """Partitioner names of other clients, and an empty one, refer to built-in partitioners."""
    assert PluginReference(built_in=name) == PARTITIONERS.read(given)


@pytest.mark.parametrize("kind", KINDS)
def test_a_custom_plugin_is_imported(kind, plugin_module):
    """`package.module:attribute` is imported, for every kind of plug-in."""
    reference = kind.read(f"{plugin_module.__name__}:Shouting")
    assert PluginReference(import_path="plugins_of_a_user:Shouting") == reference
    assert Shouting is reference.load("a.setting")


def test_a_nested_attribute_is_imported(plugin_module):
    """The attribute after the colon may contain dots."""
    plugin_module.names = types.SimpleNamespace(inner=Shouting)
    assert Shouting is SERIALIZERS.read("plugins_of_a_user:names.inner").load("a.setting")


@pytest.mark.parametrize("given", [Shouting, Shouting(), len, str.encode])
def test_an_object_is_used_as_the_plugin_itself(given):
    """A class, an object or a function is used as the plug-in itself."""
    assert given is SERIALIZERS.read(given).load("a.setting")


def test_a_parsed_reference_is_returned_unchanged():
    """A parsed reference is returned unchanged."""
    reference = PluginReference(built_in="json")
    assert reference is SERIALIZERS.read(reference)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no_such_module_anywhere:x", "ModuleNotFoundError: No module named"),
        ("plugins_of_a_user:Nothing", "AttributeError: module 'plugins_of_a_user' has no"),
    ],
)
@pytest.mark.usefixtures("plugin_module")
def test_a_failed_import_is_an_error(path, reason):
    """A failed import raises ConfigError with setting, path, reason and cause."""
    with pytest.raises(ConfigError) as caught:
        SERIALIZERS.read(path).load("a.setting")
    assert str(caught.value).startswith(f"a.setting: '{path}' cannot be imported: {reason}")
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "given", ["com.example.Mine", "org.apache.kafka.common.metrics.X$Y", "my_package.plug_ins.Mine"]
)
def test_other_java_classes_are_rejected(kind, given):
    """A Java class without a counterpart is rejected, and so is a Python one without a colon."""
    assert problem(kind, given).startswith(
        "names a Java class, which is not supported, or has no ':' before its attribute: use "
    )


@pytest.mark.parametrize("given", ["stringg", "a:b:c", "a b:c", "1a:b", ":x", "x:", "x.:y", "a-b"])
def test_the_error_for_an_unknown_name_lists_the_choices(given):
    """The error for an unknown name lists the valid choices."""
    assert (
        f"must be one of {', '.join(PARTITIONERS.names)}, "
        "'package.module:attribute' of a partitioner, or the object itself"
        == problem(PARTITIONERS, given)
    )


def test_interceptors_have_no_short_names():
    """The error for an interceptor offers no short names, since none is built in."""
    assert "must be 'package.module:attribute' of an interceptor, or the object itself" == (
        problem(INTERCEPTORS, "log")
    )


@pytest.mark.parametrize("given", [None, True, 1, 1.5, b"string"])
def test_a_value_of_an_unsupported_type_is_rejected(given):
    """None, numbers and bytes are rejected."""
    assert problem(SERIALIZERS, given).startswith("must be one of bytes, string, ")


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        (PluginReference(built_in="json"), "'json'"),
        (PluginReference(import_path="a.b:c"), "'a.b:c'"),
        (PluginReference(target=len), "builtins.len"),
        (PluginReference(target=Shouting), f"{__name__}.Shouting"),
        (PluginReference(target=Shouting()), f"{__name__}.Shouting"),
    ],
)
def test_the_text_of_a_reference_is_its_name_or_type(reference, text):
    """Names are shown as they are, but objects by type, since their repr may contain secrets."""
    assert (text, f"PluginReference({text})") == (str(reference), repr(reference))


@pytest.mark.parametrize("reference", [SERIALIZERS.read("json"), SERIALIZERS.read("a.b:c")])
def test_a_reference_can_be_pickled(reference):
    """A reference by name has the same value and hash after pickling."""
    copy = pickle.loads(pickle.dumps(reference))  # noqa: S301 -- our own bytes
    assert {reference} == {copy}
