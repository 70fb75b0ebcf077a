"""How often the Schema Registry is asked: by the driver once, by workers once for each new id."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest

from spark_kafka_sink.config.source_options import SourceOptions
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.formats.avro.columns import columns_of
from spark_kafka_sink.formats.payload_decoder import payload_decoder
from spark_kafka_sink.formats.payload_schemas import schema_to_read
from spark_kafka_sink.registry import client
from spark_kafka_sink.registry.framing import prefix
from spark_kafka_sink.registry.schemas import SchemaReference

ITEM = {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": "long"}]}
WORKERS, TASKS = 3, 4


def order(*fields):
    """Return the text of an order's schema with these fields, which have a default."""
    listed = [{"name": name, "type": kind, "default": value} for name, kind, value in fields]
    return json.dumps({"type": "record", "name": "Order", "fields": listed})


ID, NUMBER = ("id", "long", 0), ("number", "long", -1)
FIRST_ITEM = ("item", "Item", {"sku": 7})


class Reading:
    """A topic's values of several schemas, one of which refers to another."""

    def __init__(self, broker):
        """Register the schemas; the latest one is what the values are read by."""
        self.options = self.settings(broker)
        registering = client.SchemaRegistryClient(self.options.registry)
        item = registering.register("item", json.dumps(ITEM))
        references = [SchemaReference("Item", item.subject, 1)]
        versions = [(order(ID), []), (order(ID, FIRST_ITEM), references), (order(ID, NUMBER), [])]
        self.ids = [
            registering.register("orders-value", text, refers).id for text, refers in versions
        ]
        self.side = self.options.formats.value
        payloads = [b"\2", b"\4\x10", b"\6\x12"]
        #: By the id of its schema.
        self.payloads = {
            schema_id: prefix(schema_id) + payload
            for schema_id, payload in zip(self.ids, payloads, strict=True)
        }

    @staticmethod
    def settings(broker):
        """Return the options of a read."""
        given = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "subscribe": "orders",
            "valueFormat": "avro",
            "schema.registry.url": broker.schema_registry_url,
        }
        return SourceOptions.from_mapping(given, is_stream=False)

    def resolve(self):
        """Return the reader's schema as a task gets it from the driver."""
        known = client.registry_client(self.options.registry)
        pickled = pickle.dumps(schema_to_read(self.side, known, ["orders"]))
        return pickle.loads(pickled)  # noqa: S301 -- our own bytes

    def read(self, schema, ids):
        """Read a task's batch with payloads of some schemas."""
        wanted = columns_of(schema.parsed()).type
        decoder = payload_decoder(self.side, schema, wanted, self.options.registry)
        payloads = pa.array([self.payloads[schema_id] for schema_id in ids], pa.binary())
        [decoded] = decoder.decode(payloads)
        assert [] == decoded.malformed.rows.tolist()
        return decoded.values.to_pylist()


def begin_worker():
    """Forget what this process knows of the registry, as a new worker knows nothing."""
    payload_decoder.cache_clear()
    client._start_empty_after_fork()


@pytest.fixture
def broker():
    with DevBroker(schema_registry=True) as broker:
        yield broker


def test_a_worker_asks_once_for_each_id_that_the_driver_did_not_ship(broker):
    """Each worker asks for the ids that it meets, and what these refer to, and not once more."""
    reading = Reading(broker)
    hook = broker.schema_registry.on("GET /...", lambda *_: None)
    others = broker.schema_registry.on("POST /...", lambda *_: None, expect=False)
    schema = reading.resolve()
    assert (1, reading.ids[-1]) == (hook.seen, schema.schema_id)
    expected = [
        {"id": 1, "number": -1},
        {"id": 2, "number": -1},
        {"id": 3, "number": 9},
    ]

    for worker in range(1, WORKERS + 1):
        begin_worker()
        for _ in range(TASKS):
            assert expected == reading.read(schema, reading.ids)
        # The ids of two schemas, and the schema that one of them refers to.
        assert 1 + 3 * worker == hook.seen
    assert 0 == others.seen


def test_a_worker_that_meets_only_the_drivers_schema_asks_nothing(broker):
    """The text is shipped with the id."""
    reading = Reading(broker)
    schema = reading.resolve()
    begin_worker()
    hook = broker.schema_registry.on("GET /...", lambda *_: None, expect=False)
    assert [{"id": 3, "number": 9}] * 2 == reading.read(schema, reading.ids[-1:] * 2)
    assert 0 == hook.seen
