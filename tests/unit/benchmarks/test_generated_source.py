from pyspark.sql.types import BinaryType, LongType, StructType

from benchmarks.generated_source import BATCH_ROWS, GeneratedSource

ROWS = 3 * BATCH_ROWS
SCHEMA = StructType().add("offset", LongType()).add("value", BinaryType())


def _source():
    return GeneratedSource({"rows": str(ROWS), "partitions": "2"})


def test_as_many_rows_are_generated_as_were_asked_for():
    """The tasks share the rows, and the last batch of each is shorter."""
    reader = _source().reader(SCHEMA)
    tasks = [list(reader.read(partition)) for partition in reader.partitions()]
    assert [[BATCH_ROWS, BATCH_ROWS // 2]] * 2 == [[b.num_rows for b in task] for task in tasks]
    assert [("offset", "value")] * 4 == [tuple(b.schema.names) for task in tasks for b in task]


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
