from pyspark.sql.types import BinaryType, LongType, StructType

from benchmarks.format_payloads import BATCH_ROWS, orders
from benchmarks.generated_source import GeneratedSource

ROWS = 3 * BATCH_ROWS
SCHEMA = StructType().add("offset", LongType()).add("value", BinaryType())


def _source(**options):
    return GeneratedSource({"rows": str(ROWS), "partitions": "2", **options})


def test_as_many_rows_are_generated_as_were_asked_for():
    """The tasks share the rows, and the last batch of each is shorter."""
    reader = _source().reader(SCHEMA)
    tasks = [list(reader.read(partition)) for partition in reader.partitions()]
    assert [[BATCH_ROWS, BATCH_ROWS // 2]] * 2 == [[b.num_rows for b in task] for task in tasks]
    assert [("offset", "value")] * 4 == [tuple(b.schema.names) for task in tasks for b in task]


def test_values_may_be_structs():
    """With the option, values are orders, and still as many."""
    reader = _source(orders="true").reader(SCHEMA)
    batch = next(reader.read(reader.partitions()[0]))
    assert (orders(), BATCH_ROWS) == (batch.column("value"), batch.num_rows)


def test_each_micro_batch_has_the_same_number_of_rows():
    """A stream always has another batch, and no rows between equal offsets."""
    reader = _source().streamReader(SCHEMA)
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)
    assert start != end
    assert ROWS == sum(
        batch.num_rows
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
    )
    assert [] == reader.partitions(end, end)
