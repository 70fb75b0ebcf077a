"""The types in which Spark hands columns to Python, and takes them back."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def arrow_columns(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of batches with these columns.

    Raises PySparkTypeError for a type that Spark does not hand over.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    # Before PySpark 4.2, timestamps are in UTC without being told.
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)
