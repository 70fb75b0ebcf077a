"""The Spark integration: the only layer that imports pyspark.

PySpark is an extra of the package. Where it is missing or too old, every import from this layer
raises an error that says so in one sentence.
"""

from importlib.util import find_spec

try:
    import pyspark.sql.datasource  # noqa: F401
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "pyspark":
        raise
    state = "not installed" if find_spec("pyspark") is None else "installed in an older version"
    raise ModuleNotFoundError(
        f"the Spark data source needs PySpark 4.0 or newer, which is {state}: pip install "
        "'pyspark>=4.1,<5' (KafkaProducer, read_arrow and the embedded broker need no PySpark)",
        name="pyspark",
    ) from None
