"""Payloads are those of Confluent's AvroSerializer, with its framing."""

from __future__ import annotations

import json

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from spark_kafka_sink.formats.avro.encode_plan import make_encode_plan
from spark_kafka_sink.formats.avro.encoder import Encoder
from spark_kafka_sink.formats.avro.schema import parse_schema
from spark_kafka_sink.formats.avro.value_encoder import ValueEncoder
from tests.support.formats.encode_cases import fastavro_value, make_encode_case, without_logical


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 600, 100))
def test_payloads_are_those_of_confluents_serializer(first):
    """Prefix and payload are equal for random schemas, in columns and for single values."""
    for seed in range(first, first + 100):
        case = make_encode_case(seed, plain=True)
        schema = parse_schema(case.schema)
        # This serializer refuses a decimal that is the whole value, instead of a field.
        if schema.type == "bytes" and schema.logical is not None:
            continue
        # The mock keeps the schemas of a subject compatible, so each has a registry.
        client = SchemaRegistryClient.new_client({"url": f"mock://{seed}"})
        text = json.dumps(without_logical(json.loads(case.schema)))
        serializer = AvroSerializer(client, text)
        context = SerializationContext("orders", MessageField.VALUE)
        values = [
            None if row is None else fastavro_value(schema, case.array.type, row)
            for row in case.rows
        ]
        expected = [serializer(value, context) for value in values]
        prefixes = {payload[:5] for payload in expected if payload is not None}
        assert len(prefixes) <= 1
        prefix = prefixes.pop() if prefixes else b""
        encoder = Encoder(make_encode_plan(schema, case.array.type, bare_bytes=True))
        assert expected == encoder.encode(case.array, prefix).to_pylist()
        single = ValueEncoder(parse_schema(text), bare_bytes=True)
        assert expected == [
            None if value is None else single.encode(value, prefix) for value in values
        ]
