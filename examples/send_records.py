"""Send single records: serializers, headers, futures and callbacks.

python examples/send_records.py [--bootstrap-servers HOST:PORT]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster import kafka_for

from spark_kafka_sink import KafkaProducer

if TYPE_CHECKING:
    from spark_kafka_sink.model import RecordMetadata

TOPIC = "events"
RECORDS = 10_000


def main() -> None:
    """Send ten thousand records, and look at a few of their futures."""
    failures: list[Exception] = []

    def on_delivery(_: RecordMetadata | None, error: Exception | None) -> None:
        # On the network thread: be quick, nothing is sent meanwhile.
        if error is not None:
            failures.append(error)

    with kafka_for(TOPIC, partitions=3) as bootstrap_servers:
        settings = {
            "bootstrap.servers": bootstrap_servers,
            "key.serializer": "string",
            "value.serializer": "json",
        }
        # Leaving the block flushes, and closes all connections.
        with KafkaProducer(settings) as producer:
            # One that is waited for.
            first = producer.send(TOPIC, {"user": 0, "page": "/"}, key="user-0").result(timeout=30)
            print(f"the first record is at {first.topic}-{first.partition}, offset {first.offset}")

            # Many, which nobody waits for one by one.
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

            # What is wrong with a record comes with its future.
            error = producer.send(TOPIC, "far too long" * 100_000).exception(timeout=30)
            print(f"refused: {error}")


if __name__ == "__main__":
    main()
