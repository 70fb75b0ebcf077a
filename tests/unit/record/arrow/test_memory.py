"""Outputs use memory again that nobody holds, and nothing outside of the buffers is touched."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from spark_kafka_sink.record.arrow.record_decoder import Arena, ArenaPool
from spark_kafka_sink.record.kernel.decode_state import COPY_SLACK
from spark_kafka_sink.spark.worker import without_collector
from tests.support.record.plain_batches import PlainRecord, plain_batch
from tests.support.record.reading.decoding import NO_END, decode_all, decoder_of

ROOT = Path(__file__).parents[4]
TIMEOUT = 600
RECORDS = [PlainRecord(b"value-%d" % number, headers=((b"h", b"1"),)) for number in range(50)]
DATA = plain_batch(RECORDS)


def decoded(decoder, data: bytes = DATA):
    (batch,) = decode_all(decoder, data)
    return batch


def addresses(batch, column: str = "value") -> list[int]:
    return [buffer.address for buffer in batch.column(column).buffers() if buffer is not None]


def test_memory_is_used_again_when_nobody_holds_it():
    """The second output is where the first one was, if that one is freed."""
    decoder = decoder_of()
    first = addresses(decoded(decoder))
    second = addresses(decoded(decoder))
    assert first == addresses(decoded(decoder))
    assert first != second  # One is being filled while the other one is read.


def test_memory_that_is_held_is_not_used_again():
    """An output stays as it is while anything refers to it, even to a part of one column."""
    decoder = decoder_of()
    part = decoded(decoder).column("value").slice(10, 5)
    array = decoded(decoder).column("offset").to_numpy()
    key = decoded(decoder).column("headers").values.field("key").buffers()[2]
    expected = part.to_pylist(), array.tolist(), key.to_pybytes()
    other = plain_batch([PlainRecord(b"other-%d" % number) for number in range(50)])
    for _ in range(10):
        decoded(decoder, other)
    assert expected == (part.to_pylist(), array.tolist(), key.to_pybytes())
    assert [record.value for record in RECORDS[10:15]] == part.to_pylist()


def test_outputs_survive_their_decoder():
    """A record batch outlives the decoder that made it."""
    batch = decoded(decoder_of())
    gc.collect()
    assert [record.value for record in RECORDS] == batch.column("value").to_pylist()


def test_small_outputs_do_not_hold_the_memory_of_large_ones():
    """A record batch that is much smaller than its memory is copied."""
    decoder = decoder_of("value")
    large = plain_batch([PlainRecord(b"x" * 10_000)] * 20)
    held = addresses(decoded(decoder, large))
    small = decoded(decoder, plain_batch(1)), decoded(decoder, plain_batch(1))
    assert not set(held) & {address for batch in small for address in addresses(batch)}
    assert [[b"v"], [b"v"]] == [batch.column("value").to_pylist() for batch in small]


def test_memory_grows_with_the_records():
    """An output that does not fit grows while it is filled, and the next one begins as large."""
    decoder = decoder_of("value", max_bytes=1 << 22)
    values = [bytes([number]) * 30_000 for number in range(100)]
    data = plain_batch([PlainRecord(value) for value in values])
    for _ in range(3):
        assert values == decoded(decoder, data).column("value").to_pylist()


def test_the_memory_of_an_output_grows_by_no_more_than_the_next_row(monkeypatch):
    """Each array is asked for what is used and what the next row adds, in every column."""
    asked = []
    grow = Arena.grow

    def record(self, name, needed, used, largest):
        asked.append((name, needed - used))
        grow(self, name, needed, used, largest)

    monkeypatch.setattr(Arena, "grow", record)
    sizes = {"key": 300_000, "value": 500_000, "header_key": 70_000, "header_value": 90_000}
    small = PlainRecord(b"v", b"k", headers=((b"h", b"1"),))
    large = PlainRecord(
        bytes(sizes["value"]),
        bytes(sizes["key"]),
        headers=((bytes(sizes["header_key"]), bytes(sizes["header_value"])),),
    )
    batch = decoded(decoder_of(max_bytes=1 << 22), plain_batch([small, large]))
    assert [1, sizes["value"]] == [len(each) for each in batch.column("value").to_pylist()]
    data = {name.removesuffix("_data"): more for name, more in asked if name.endswith("_data")}
    assert {name: size + COPY_SLACK for name, size in sizes.items()} == data


@pytest.mark.parametrize(
    ("before", "needed", "expected"), [(100, 101, 400), (100, 500, 500), (400, 401, 1000)]
)
def test_arrays_grow_by_factors_up_to_the_largest(before, needed, expected):
    """An array grows by a factor, or as much as a single huge record needs."""
    arena = ArenaPool({"data": (before, "u1")}, 1000).take()
    arena.arrays["data"][:] = 7
    arena.grow("data", needed, used=before, largest=1000)
    array = arena.arrays["data"]
    assert (expected, [7] * before) == (array.size, array[:before].tolist())
    assert array.ctypes.data == arena.addresses["data"]


def test_the_memory_of_a_huge_record_is_not_kept():
    """An array that is larger than any normal output needs is freed with its record batch."""
    pool = ArenaPool({"data": (10, "u1")}, 1000)
    huge = pool.take()
    huge.grow("data", 5000, used=0, largest=1000)
    pool.lease(huge)  # Freed at once.
    assert 10 == pool.take().arrays["data"].size
    normal = pool.take()
    normal.grow("data", 900, used=0, largest=1000)
    pool.lease(normal)
    assert normal is pool.take()
    assert 900 == pool.take().arrays["data"].size


def test_only_a_few_arenas_wait():
    """If many outputs are freed at once, only a few of their arenas are kept."""
    pool = ArenaPool({"data": (10, "u1")}, 1000)
    arenas = [pool.take() for _ in range(5)]
    leases = [pool.lease(arena) for arena in arenas]
    del leases
    assert 2 == len({id(pool.take()) for _ in range(5)} & {id(arena) for arena in arenas})


def test_no_code_in_python_runs_when_memory_is_returned():
    """In such code, the KeyboardInterrupt of a Ctrl-C would be raised, and ignored."""
    pool = ArenaPool({"data": (10, "u1")}, 1000)
    arena = pool.take()
    lease = pool.lease(arena)
    functions = []
    before = sys.getprofile()
    # The finalizers of what other tests have left would be calls, too.
    with without_collector():
        sys.setprofile(lambda frame, event, _: event == "call" and functions.append(frame.f_code))
        try:
            del lease
        finally:
            sys.setprofile(before)
    assert [] == functions
    assert arena is pool.take()


def test_the_answer_is_not_held_between_answers():
    """Nothing refers to an answer once it is decoded."""
    decoder = decoder_of()
    data = bytearray(DATA)
    list(decoder.decode(data, decoder.index(data, 0), start=0, end=NO_END))
    data.clear()  # A bytearray with exported buffers would refuse.


def test_nothing_outside_of_the_buffers_is_touched():
    """Answers, payloads and outputs may be at the very end, or start, of accessible memory."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.record.reading.decode_guarded", "20261123", "1000"],
        cwd=ROOT,
        timeout=TIMEOUT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (0, "done\n") == (done.returncode, done.stdout), done.stderr
