"""A Python worker imports without its garbage collector, and keeps the memory that it freed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from spark_kafka_sink.spark.worker import without_collector

#: A process that allocates and frees 8 MiB again and again; it prints the page faults for the last
#: 40 MiB of that, and whether they are a tenth of the pages at most.
ALLOCATE = """
import resource
from spark_kafka_sink.spark.worker import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        batches = [b"x" * (1 << 20) for _ in range(8)]
        del batches
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if {keeps}:
    keep_freed_memory()
faults()
pages = 40 * 2**20 // resource.getpagesize()
print(faults() < pages // 10)
"""


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_off_only_during_imports(enabled):
    """The collector is as before after the imports."""
    try:
        if not enabled:
            gc.disable()
        with without_collector():
            assert not gc.isenabled()
        assert enabled == gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("keeps", "environment", "expected"),
    [
        (True, {}, "True"),
        (False, {}, "False"),
        (True, {"MALLOC_TRIM_THRESHOLD_": "131072"}, "False"),
        (True, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}, "False"),
    ],
)
def test_freed_memory_is_used_again(keeps, environment, expected):
    """Memory of freed batches is used again without page faults, unless users chose otherwise."""
    finished = subprocess.run(  # noqa: S603  our own interpreter and code
        [sys.executable, "-c", ALLOCATE.format(keeps=keeps)],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert expected == finished.stdout.strip()
