"""Plug-ins with a life cycle: a serializer that writes a header, a partitioner, an interceptor.

    python examples/plug_ins.py [--bootstrap-servers HOST:PORT]

Each plug-in defines those methods of its Java counterpart that it needs, in snake case, and has no
base class. The producer calls `configure` before the first record and `close` once, when it is
closed. In a settings file, give the name instead: `value.serializer=package.module:attribute`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cluster import kafka_for

from spark_kafka_sink import KafkaProducer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_kafka_sink import MetadataSnapshot, RecordMetadata

TOPIC = "orders"
LARGE_ORDER = 100


class VersionedJson:
    """A serializer that writes JSON, with the version of its schema in a header."""

    def configure(self, settings: Mapping[str, object], *, is_key: bool) -> None:
        """Prepare for use; only serializers have the argument `is_key`."""
        print(f"the {'key' if is_key else 'value'} serializer is used by {settings['client.id']}")

    def serialize(self, topic: str, headers: list[tuple[str, bytes | None]], data: object) -> bytes:
        """Serialize a value, which is never None; headers added here are sent with the record."""
        headers.append(("schema", f"{topic}-v2".encode()))
        return json.dumps(data).encode()

    def close(self) -> None:
        """Release resources, such as the connection to a schema registry."""
        print("the serializer is closed")


class LargeOrdersLast:
    """A partitioner that reserves the last partition for large orders."""

    def partition(  # noqa: PLR0917 - as it is called
        self,
        topic: str,
        key: object,  # noqa: ARG002
        key_bytes: bytes | None,
        value: object,
        value_bytes: bytes | None,  # noqa: ARG002
        cluster: MetadataSnapshot,
    ) -> int:
        """Return a partition, chosen by the value as it was before serialization."""
        count = cluster.partition_count(topic)
        if isinstance(value, dict) and value["pieces"] > LARGE_ORDER:
            return count - 1
        return sum(key_bytes or b"") % (count - 1)


class Audit:
    """An interceptor that prints the outcome of each record."""

    def on_acknowledgement(
        self,
        metadata: RecordMetadata,
        error: BaseException | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None:
        """Print where the record was written; runs on the network thread, so it must be fast."""
        schema = dict(headers).get("schema")
        if error is None:
            print(f"partition {metadata.partition} has a record with schema {schema!r}")

    def close(self) -> None:
        """Raise an error, which is logged; the other plug-ins are closed nevertheless."""
        raise ConnectionError("the audit server is unavailable")


def main() -> None:
    """Send two orders, one after the other."""
    with kafka_for(TOPIC, partitions=3) as bootstrap_servers:
        settings: dict[str, object] = {
            "bootstrap.servers": bootstrap_servers,
            "client.id": "orders-example",
            "key.serializer": "string",
            "value.serializer": VersionedJson,
            "partitioner.class": LargeOrdersLast,
            "interceptor.classes": [Audit()],
        }
        with KafkaProducer(settings) as producer:
            for key, pieces in (("a", 3), ("b", 500)):
                producer.send(TOPIC, {"pieces": pieces}, key=key).result(timeout=30)


if __name__ == "__main__":
    main()
