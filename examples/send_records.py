"""Send single records: serializers, headers, futures and callbacks.

python examples/send_records.py [--bootstrap-servers HOST:PORT]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster import kafka_for

from spark_kafka_sink import KafkaProducer

if TYPE_CHECKING:
    from spark_kafka_sink import RecordMetadata

TOPIC = "events"
RECORDS = 10_000


def main() -> None:
    """Send records, and handle their results with futures and callbacks."""
    failures: list[Exception] = []

    def on_delivery(_: RecordMetadata | None, error: Exception | None) -> None:
        # Runs on the network thread and must be fast: it blocks all sending.
        if error is not None:
            failures.append(error)

    with kafka_for(TOPIC, partitions=3) as bootstrap_servers:
        settings = {
            "bootstrap.servers": bootstrap_servers,
            "key.serializer": "string",
            "value.serializer": "json",
        }
        # Leaving the block flushes the producer and closes its connections.
        with KafkaProducer(settings) as producer:
            # Send one record and wait for its acknowledgement.
            first = producer.send(TOPIC, {"user": 0, "page": "/"}, key="user-0").result(timeout=30)
            print(f"the first record is at {first.topic}-{first.partition}, offset {first.offset}")

            # Send many records without waiting for each.
            futures = [
                producer.send(
                    TOPIC,
                    {"user": number % 100, "page": f"/{number}"},
                    key=f"user-{number % 100}",
                    headers=[("source", b"example")],
                    on_delivery=on_delivery,
                )
                for number in range(RECORDS)
            ]
            producer.flush(timeout=30)
            partitions = {future.result().partition for future in futures}
            print(f"{len(futures)} records are in partitions {sorted(partitions)}")
            print(f"{len(failures)} of them failed")

            # The future has the error of a record that cannot be sent.
            error = producer.send(TOPIC, "far too long" * 100_000).exception(timeout=30)
            print(f"refused: {error}")


if __name__ == "__main__":
    main()
