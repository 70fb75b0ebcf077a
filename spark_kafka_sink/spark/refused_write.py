"""How a write is refused at the moment at which Spark pickles its writer."""

from __future__ import annotations

import pickle

from spark_kafka_sink.errors import KafkaError


class RefusedWriteError(KafkaError, pickle.PickleError):
    """A write was refused while its writer was pickled for the tasks.

    PySpark lets PickleErrors through as they are, and makes its own sentence of all others.
    """

    @classmethod
    def of(cls, error: KafkaError) -> RefusedWriteError:
        """Say what the error says, with its name."""
        return cls(f"{type(error).__name__}: {error}")
