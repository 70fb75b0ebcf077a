"""The reader of a stream in PySpark 4.2 and later: with limits, and with AvailableNow in parts.

PySpark has one limit for each trigger, so the maximum is the limit that Spark is told, and the
minimum is kept by the reader. Trigger.Once asks for everything (`ReadAllAvailable`), which ignores
both. Under AvailableNow there is no minimum: a query that waited for it would never end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from spark_kafka_sink.spark.source.offsets_json import offsets_json, parse_offsets
from spark_kafka_sink.spark.source.stream_reader import KafkaStreamReader
from spark_kafka_sink.spark.user_errors import raising_for_user

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit


class KafkaLimitedStreamReader(KafkaStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream that obeys limits."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 -- Spark's name
        """Return the limit of a usual trigger."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @raising_for_user
    def latestOffset(  # noqa: N802 -- Spark's name
        self, start: dict[str, dict[str, int]], limit: ReadLimit
    ) -> dict[str, dict[str, int]]:
        """Return where the micro-batch from `start` ends (on the driver)."""
        end = self._driver.next_end(
            parse_offsets(start),
            max_offsets=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            reads_all=isinstance(limit, ReadAllAvailable),
        )
        return offsets_json(end)

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:  # noqa: N802 -- Spark's name
        """Return the latest offsets as last seen, for the query's progress."""
        latest = self._driver.latest
        return offsets_json(dict(latest)) if latest else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 -- Spark's name
        """Make the first trigger decide where the query ends."""
        self._driver.is_available_now = True
