"""The records of a topic, as `DevBroker.records` returns them."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink import display
from spark_kafka_sink.record.decode import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

_NO_TIMESTAMP: Final = -1


class TopicRecords(dict[int, list[Record]]):
    """The records of a topic: a list for each partition, as in a dict, or an Arrow table.

    `topic` is the topic's name, `records` the records by partition.

    >>> with DevBroker(topics={"orders": 1}) as broker:
    ...     with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
    ...         future = producer.send("orders", b"a book", key=b"alice")
    ...     records = broker.records("orders")
    >>> records
    <1 record in 1 partition of orders>
    >>> records[0][0].value
    b'a book'
    >>> records.to_arrow(text=True)["value"].to_pylist()
    ['a book']
    """

    def __init__(self, topic: str, records: Mapping[int, list[Record]]) -> None:
        super().__init__(records)
        self.topic = topic

    @property
    def count(self) -> int:
        """The number of records in all partitions."""
        return sum(len(records) for records in self.values())

    def to_arrow(self, *, text: bool = False) -> pa.Table:
        """Return the records in one table, partition by partition, each in offset order.

        The columns are `partition`, `offset`, `timestamp`, `key`, `value` and `headers`, in the
        types of Spark's own Kafka source. With `text`, keys and values are strings instead of
        bytes, and invalid UTF-8 in them is replaced.
        """
        import pyarrow as pa  # noqa: PLC0415  most tests need only the lists

        kind = pa.string() if text else pa.binary()

        def cell(data: bytes | None) -> bytes | str | None:
            return data.decode(errors="replace") if text and data is not None else data

        header_type = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        columns: dict[str, tuple[Any, list[Any]]] = {
            "partition": (pa.int32(), [number for number in self for _ in self[number]]),
            "offset": (pa.int64(), [record.offset for record in self._all()]),
            "timestamp": (
                pa.timestamp("ms", tz="UTC"),
                [
                    None if record.timestamp == _NO_TIMESTAMP else record.timestamp
                    for record in self._all()
                ],
            ),
            "key": (kind, [cell(record.key) for record in self._all()]),
            "value": (kind, [cell(record.value) for record in self._all()]),
            "headers": (
                pa.list_(header_type),
                [[header._asdict() for header in record.headers] for record in self._all()],
            ),
        }
        return pa.table(
            {name: pa.array(values, type=kind) for name, (kind, values) in columns.items()}
        )

    def to_pandas(self, *, text: bool = True) -> Any:
        """Return the same table as a pandas DataFrame, by default with keys and values as `text`.

        Raises ImportError without pandas.
        """
        return self.to_arrow(text=text).to_pandas()

    def _all(self) -> chain[Record]:
        return chain.from_iterable(self.values())

    def __repr__(self) -> str:
        """Show the numbers, not the records."""
        return (
            f"<{display.counted(self.count, 'record')} in "
            f"{display.counted(len(self), 'partition')} of {self.topic}>"
        )

    def _repr_html_(self) -> str:
        """Show the records per partition, and the first records."""
        partitions = ((number, len(records)) for number, records in self.items())
        first = (
            (number, record.offset, _shown(record.key), _shown(record.value))
            for number, records in self.items()
            for record in islice(records, display.MAX_ROWS)
        )
        return display.block(
            f"{self.topic}: {display.counted(self.count, 'record')}",
            display.table(
                ("partition", "records"),
                partitions,
                count=len(self),
                things=("partition", "partitions"),
                bars=1,
            ),
            display.table(
                ("partition", "offset", "key", "value"),
                first,
                count=self.count,
                things=("record", "records"),
            ),
        )


def _shown(data: bytes | None) -> str | None:
    """Return the beginning of a key or value; a character has at most four bytes."""
    return None if data is None else data[: 4 * display.MAX_TEXT].decode(errors="replace")
