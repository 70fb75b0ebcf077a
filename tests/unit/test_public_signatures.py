"""The types in public signatures: all are public, and documented calls pass type checkers."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import spark_kafka_sink
import spark_kafka_sink.observability
import spark_kafka_sink.testing
from tests.support.documentation import source_of

if TYPE_CHECKING:
    from collections.abc import Collection

DOORS = (spark_kafka_sink, spark_kafka_sink.testing, spark_kafka_sink.observability)
PUBLIC = {name: getattr(door, name) for door in DOORS for name in door.__all__}
PACKAGE = Path(spark_kafka_sink.__file__).parent
#: The classes of the package, public or not.
OURS = {
    name
    for path in PACKAGE.rglob("*.py")
    for name in re.findall(r"^ *class (\w+)", path.read_text(), re.MULTILINE)
}
#: What users neither call nor read, although its name has no underscore.
NOT_FOR_USERS = {
    "AdminConfig.security",
    "CheckedWrite.options",
    "FaultHook.__init__",
    "FutureRecordMetadata.chunk",
    "FutureRecordMetadata.producer",
    "FutureTableMetadata.__init__",
    "KafkaProducer.append_good",
    "KafkaProducer.sample_keys",
    "KafkaProducer.take_refused",
    "RecordColumns.encoded_headers",
    "RegistryFaultHook.__init__",
    "RequestHeader.versions",
    "SchemaRegistry.__init__",
    "SchemaRegistry.serve",
    # The types of some settings.
    *(f"ProducerConfig.{name}" for name in ("interceptor_classes", "key_serializer")),
    *(f"ProducerConfig.{name}" for name in ("metric_reporters", "partitioner_class")),
    *(f"ProducerConfig.{name}" for name in ("security", "value_serializer")),
    *(f"KafkaConsumerConfig.{name}" for name in ("interceptor_classes", "key_deserializer")),
    *(f"KafkaConsumerConfig.{name}" for name in ("metric_reporters", "security")),
    "KafkaConsumerConfig.partition_assignment_strategy",
    "KafkaConsumerConfig.value_deserializer",
}


def annotations_of(cls: ast.ClassDef) -> dict[str, list[ast.expr | None]]:
    """Return the annotations of the public fields and methods of a class.

    Keywords typed by `Unpack` are left out: callers pass each by its name.
    """
    found: dict[str, list[ast.expr | None]] = {}
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = [node.annotation]
        elif isinstance(node, ast.FunctionDef):
            given = node.args
            parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs]
            found[node.name] = [each.annotation for each in parameters] + [node.returns]
    return {
        name: annotations
        for name, annotations in found.items()
        if not name.startswith("_") or name in {"__init__", "__call__", "__enter__"}
    }


def hidden_types(name: str, source: str, overridden: Collection[str] = ()) -> list[str]:
    """List the classes of ours in the signatures of a public class that users cannot import.

    `overridden` are the members of a base class that users do not see.
    """
    cls = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(cls, ast.ClassDef)
    return [
        f"{name}.{member}: {part.id}"
        for member, annotations in annotations_of(cls).items()
        if member not in overridden and f"{name}.{member}" not in NOT_FOR_USERS
        for annotation in annotations
        if annotation is not None
        for part in ast.walk(annotation)
        if isinstance(part, ast.Name) and part.id in OURS - PUBLIC.keys()
    ]


@pytest.mark.parametrize("name", [name for name, value in PUBLIC.items() if inspect.isclass(value)])
def test_public_signatures_have_only_public_types(name):
    """Users can import every class of the package that a public signature or field names."""
    owners = [
        owner for owner in PUBLIC[name].__mro__ if owner.__module__.startswith("spark_kafka_sink")
    ]

    assert [] == [
        hidden
        for number, owner in enumerate(owners)
        for hidden in hidden_types(
            name, source_of(owner), {member for below in owners[:number] for member in vars(below)}
        )
    ]


@pytest.mark.parametrize(
    "body",
    ["x: Faults | None", "def on(self, x: Sequence[Faults]): ...", "def on(self) -> Faults: ..."],
)
def test_a_hidden_type_is_found(body):
    """A class that is not public is found in fields, parameters and results."""
    source = f"class Example:\n    {body}"

    assert 1 == len(hidden_types("Example", source))
    assert [] == hidden_types("Example", source, {"x", "on"})


def strictly_checked(code: str) -> list[str]:
    """Return the errors that a strict type checker finds in a user's code."""
    done = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "-c", code],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return [line for line in done.stdout.splitlines() if line.startswith("<string>")]


@pytest.mark.slow
def test_documented_calls_pass_type_checkers():
    """Names of protocols and mechanisms may be strings, as in Kafka's settings."""
    code = """
from spark_kafka_sink import KafkaProducer, ProducerConfig
from spark_kafka_sink.testing import BrokerSettings, DevBroker, Listener, SaslSettings

sasl = SaslSettings(users={"alice": "her password"}, mechanisms=("PLAIN",))
listener = Listener(security_protocol="SASL_PLAINTEXT", sasl=sasl, client_auth="none")
broker = DevBroker(listeners=[listener], settings=BrokerSettings(), num_partitions=3)
names: list[str] = broker.call(lambda it: it.cluster.topics)
config: ProducerConfig = ProducerConfig.from_mapping({"bootstrap.servers": "localhost:9092"})
producer = KafkaProducer(config)
wrong: int = producer
"""
    # The wrong line shows that the code was checked at all.
    [error] = strictly_checked(code)
    assert 'expression has type "KafkaProducer", variable has type "int"' in error


@pytest.mark.slow
def test_an_assignor_with_a_name_and_a_method_passes_type_checkers():
    """All else that the protocol has is inherited."""
    code = """
from spark_kafka_sink import (
    Assignment, Cluster, ConsumerPartitionAssignor, GroupAssignment, GroupSubscription
)

class OneReader(ConsumerPartitionAssignor):
    name = "one-reader"

    def assign(self, cluster: Cluster, group_subscription: GroupSubscription) -> GroupAssignment:
        first, *others = group_subscription.subscriptions
        everything = Assignment(cluster.partitions_for_topic("orders"))
        return GroupAssignment({first: everything} | dict.fromkeys(others, Assignment(())))

assignor: ConsumerPartitionAssignor = OneReader()
wrong: int = assignor
"""
    [error] = strictly_checked(code)
    assert 'expression has type "ConsumerPartitionAssignor", variable has type "int"' in error
