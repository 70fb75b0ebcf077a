"""A DataFrame of a session that asks the data source in this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import CaseInsensitiveDict

from spark_kafka_sink import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class _Reader:
    def __init__(self) -> None:
        self._options: dict[str, str] = CaseInsensitiveDict()

    def format(self, name: str) -> _Reader:
        assert KafkaSink.name() == name
        return self

    def option(self, name: str, value: str) -> _Reader:
        self._options[name] = value
        return self

    def load(self) -> FakeFrame:
        return FakeFrame(KafkaSink(self._options).schema())


class FakeSession:
    """What `KafkaSink.check` uses of a session."""

    sparkContext = SimpleNamespace(master="local[2]")  # noqa: N815 -- Spark's name

    @property
    def read(self) -> _Reader:
        """Return a reader of this process."""
        return _Reader()


@dataclass
class FakeFrame:
    """What `KafkaSink.check` uses of a DataFrame."""

    schema: StructType
    sparkSession: FakeSession = field(default_factory=FakeSession)  # noqa: N815 -- Spark's name
