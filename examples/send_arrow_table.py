"""Send an Arrow table: no Python object per row, and one future for all rows.

python examples/send_arrow_table.py [--bootstrap-servers HOST:PORT]
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from cluster import kafka_for

from spark_kafka_sink import KafkaProducer

TOPIC = "measurements"
ROWS = 200_000


def measurements() -> pa.Table:
    """Create rows with a sensor as the key, a reading as the value, and a time in microseconds."""
    numbers = pa.array(range(ROWS))
    sensor = pc.binary_join_element_wise("sensor", pc.cast(numbers, pa.string()), "-")
    times = pc.cast(pc.add(numbers, 1_750_000_000_000_000), pa.timestamp("us", tz="UTC"))
    return pa.table(
        {
            "key": pc.utf8_slice_codeunits(sensor, 0, 9),
            "value": pc.binary_join_element_wise("reading", pc.cast(numbers, pa.string()), " "),
            "timestamp": times,
        }
    )


def main() -> None:
    """Send a table, and print the partitions and offsets of its rows."""
    table = measurements()
    with (
        kafka_for(TOPIC, partitions=4) as bootstrap_servers,
        KafkaProducer({"bootstrap.servers": bootstrap_servers, "linger.ms": 50}) as producer,
    ):
        # Returns once all rows are in batches; blocks only while buffer.memory is exhausted.
        future = producer.send_arrow(table, topic=TOPIC)
        acks = future.result(timeout=60)
        for place, written in sorted(acks.items()):
            span = f"offsets {written.first_offset} to {written.last_offset}"
            print(f"{place}: {written.records} rows, {span}")
        print(f"{sum(written.records for written in acks.values())} of {table.num_rows} rows")


if __name__ == "__main__":
    main()
