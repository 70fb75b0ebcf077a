"""The error that rejects a write while Spark pickles its writer."""

from __future__ import annotations

import pickle

from spark_kafka_sink.errors import KafkaError


class RefusedWriteError(KafkaError, pickle.PickleError):
    """A write was rejected while its writer was pickled for the tasks.

    PySpark passes PickleErrors on unchanged and replaces the message of every other error.
    """

    @classmethod
    def of(cls, error: KafkaError) -> RefusedWriteError:
        """Return an error caused by this one, which Spark shows by the name of this one."""
        kind = type(error)
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        refused: RefusedWriteError = type(kind.__name__, (cls,), names)(str(error))
        refused.__cause__ = error
        return refused
