"""Log metrics while sending, and read single ones, under the names of Kafka's Java client.

    python examples/metrics_to_log.py [--bootstrap-servers HOST:PORT]

With `"metric.reporters": "logging"`, metrics are logged once a minute without further settings.
"""

from __future__ import annotations

import logging
import sys
import time

from cluster import kafka_for

from spark_kafka_sink import KafkaProducer, LoggingMetricsReporter

TOPIC = "clicks"
SECONDS = 1.2


def main() -> None:
    """Send for about a second, and log metrics twice a second and at the end."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(message)s")
    with kafka_for(TOPIC, partitions=3) as bootstrap_servers:
        settings = {
            "bootstrap.servers": bootstrap_servers,
            "client.id": "clicks-example",
            # A list of reporters; a reporter belongs to one producer.
            "metric.reporters": [LoggingMetricsReporter(interval=0.5)],
        }
        with KafkaProducer(settings) as producer:
            sent = 0
            deadline = time.monotonic() + SECONDS
            while time.monotonic() < deadline:
                for _ in range(1_000):
                    producer.send(TOPIC, b"click %d" % sent)
                    sent += 1
                time.sleep(0.05)
            producer.flush(timeout=30)
            values = {
                name.name: metric.value()
                for name, metric in producer.metrics().items()
                if name.group == "producer-metrics"
            }
        print(f"sent {sent} records; record-send-total is {values['record-send-total']:.0f}")
        print(f"request-latency-avg: {values['request-latency-avg']:.1f} ms")
        print(f"records-per-request-avg: {values['records-per-request-avg']:.0f}")


if __name__ == "__main__":
    main()
