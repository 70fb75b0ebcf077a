"""The garbage collector of a Python worker is off during large imports."""

from __future__ import annotations

import gc

import pytest

from spark_kafka_sink.spark.worker_memory import importing_much


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_off_only_during_imports(enabled):
    """The collector is as before after the imports."""
    try:
        if not enabled:
            gc.disable()
        with importing_much():
            assert not gc.isenabled()
        assert enabled == gc.isenabled()
    finally:
        gc.enable()
