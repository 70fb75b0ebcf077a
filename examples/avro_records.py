"""Avro with a Schema Registry and without Spark: as Arrow tables, and as single records.

    python examples/avro_records.py

Broker and registry run in this process.
"""

from __future__ import annotations

import json
from decimal import Decimal

import pyarrow as pa

from spark_kafka_sink import (
    AvroDeserializer,
    AvroSerializer,
    KafkaConsumer,
    KafkaProducer,
    read_arrow,
)
from spark_kafka_sink.testing import DevBroker

INVOICE = json.dumps(
    {
        "type": "record",
        "name": "Invoice",
        "fields": [
            {"name": "order", "type": "long"},
            {
                "name": "amount",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
            {"name": "paid", "type": "boolean", "default": False},
        ],
    }
)


def send_orders(servers: str, registry: dict[str, str], orders: pa.Table) -> None:
    """Write a table, by a schema that is registered if it is not yet."""
    with KafkaProducer({"bootstrap.servers": servers}) as producer:
        future = producer.send_arrow(
            orders,
            topic="orders",
            value_format="avro",
            schema_registry=registry,
            format_options={"autoRegisterSchemas": True},
        )
        future.result(timeout=60)
        print(*future.schemas)


def read_orders(servers: str, registry: dict[str, str]) -> pa.Table:
    """Read all orders: the column `value` is a struct."""
    reader = read_arrow(servers, "orders", value_format="avro", schema_registry=registry)
    return reader.read_all()


def send_invoices(servers: str, registry: dict[str, str], orders: pa.Table) -> None:
    """Write a dict for each order."""
    serializer = AvroSerializer(registry, schema=INVOICE, auto_register_schemas=True)
    settings = {"bootstrap.servers": servers, "value.serializer": serializer}
    with KafkaProducer(settings) as producer:
        for order in orders.column("value").to_pylist():
            amount = Decimal(order["quantity"]) * Decimal("9.95")
            producer.send("invoices", {"order": order["id"], "amount": amount})


def read_invoices(servers: str, registry: dict[str, str], count: int) -> list[dict[str, object]]:
    """Read the dicts."""
    settings = {
        "bootstrap.servers": servers,
        "group.id": "bookkeeping",
        "auto.offset.reset": "earliest",
        "value.deserializer": AvroDeserializer(registry),
    }
    with KafkaConsumer(settings) as consumer:
        consumer.subscribe("invoices")
        records = iter(consumer)
        return [next(records).value for _ in range(count)]


def main() -> None:
    """Write and read orders as a table, and invoices as dicts."""
    topics = {"orders": 1, "invoices": 1}
    with DevBroker(topics=topics, schema_registry=True) as broker:
        servers, registry = broker.bootstrap_servers, {"url": broker.schema_registry_url}
        rows = [{"id": number, "quantity": number % 5 + 1} for number in range(1000)]
        send_orders(servers, registry, pa.table({"value": rows}))
        orders = read_orders(servers, registry)
        print(f"{orders.num_rows} orders: {orders.schema.field('value').type}")

        send_invoices(servers, registry, orders.slice(0, 3))
        for invoice in read_invoices(servers, registry, 3):
            print(invoice)


if __name__ == "__main__":
    main()
