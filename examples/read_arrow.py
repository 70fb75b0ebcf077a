"""Read a topic into DuckDB and Polars, without Spark.

python examples/read_arrow.py [--bootstrap-servers HOST:PORT]
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import duckdb
import polars as pl
from cluster import kafka_for

from spark_kafka_sink import KafkaProducer, read_arrow

TOPIC = "readings"
READINGS = 10_000
#: The time of the first record, in milliseconds; one follows each second.
FIRST = datetime(2026, 1, 1, tzinfo=UTC)


def send_readings(bootstrap_servers: str) -> None:
    """Send readings of three sensors."""
    first_ms = int(FIRST.timestamp() * 1000)
    with KafkaProducer({"bootstrap.servers": bootstrap_servers}) as producer:
        for number in range(READINGS):
            reading = {"sensor": f"sensor-{number % 3}", "celsius": 20 + number % 7}
            value = json.dumps(reading).encode()
            time = first_ms + 1000 * number
            producer.send(TOPIC, value, partition=number % 2, timestamp=time)
        producer.flush()


def warmest_per_sensor(bootstrap_servers: str) -> list[tuple[str, int]]:
    """Return the highest temperature of each sensor, by a query of DuckDB."""
    readings = read_arrow(bootstrap_servers, topic=TOPIC, columns=["value"])
    return (
        duckdb.from_arrow(readings)
        .query(
            "readings",
            """
            SELECT json ->> 'sensor' AS sensor, max((json ->> 'celsius')::INTEGER)
            FROM (SELECT decode(value)::JSON AS json FROM readings)
            GROUP BY sensor ORDER BY sensor
            """,
        )
        .fetchall()
    )


def readings_per_partition(bootstrap_servers: str) -> dict[int, int]:
    """Count the records of the second hour with Polars."""
    hour = read_arrow(
        bootstrap_servers,
        topic=TOPIC,
        start=FIRST.replace(hour=1),
        end=FIRST.replace(hour=2),
        columns=["partition", "offset"],
    )
    frame = pl.DataFrame(pl.from_arrow(hour.read_all()))
    counts = frame.group_by("partition").len().sort("partition")
    return dict(counts.iter_rows())


def main() -> None:
    """Send readings, and query them."""
    with kafka_for(TOPIC, partitions=2) as bootstrap_servers:
        send_readings(bootstrap_servers)
        print(f"DuckDB: {warmest_per_sensor(bootstrap_servers)}")
        counts = readings_per_partition(bootstrap_servers)
        print(f"Polars: {sum(counts.values())} readings of the second hour, in {sorted(counts)}")


if __name__ == "__main__":
    main()
