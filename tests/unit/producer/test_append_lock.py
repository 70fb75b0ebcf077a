"""The lock of the open batches: who waits for it, and who never does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.producer.append_lock import AppendLock
from spark_kafka_sink.producer.record_accumulator import NEVER
from tests.support.gatherer_harness import GathererHarness

if TYPE_CHECKING:
    from collections.abc import Callable


class _HeldElsewhere:
    """Stands in for the `threading.Lock` inside; notes for how long it would be waited for."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def acquire(self, *, timeout: float) -> bool:
        self.waits.append(timeout)
        return False

    def locked(self) -> bool:
        return True


@pytest.mark.parametrize(
    "use",
    [
        lambda gatherer: gatherer.gather(5.0, lambda _: True),
        lambda gatherer: gatherer.write_without_waiting(),
    ],
    ids=["gather", "write_without_waiting"],
)
def test_the_network_thread_does_not_wait_for_a_lock_that_is_held(
    use: Callable[[object], float | None],
):
    """It asks for the lock once, and not for a moment longer: all connections would stand still."""
    harness = GathererHarness(**{"linger.ms": 5_000})
    future = harness.stage(b"v")
    held = harness.gatherer._lock._lock = _HeldElsewhere()
    assert use(harness.gatherer) in {None, NEVER}
    assert [0] == held.waits
    assert future.chunk is None


def test_a_thread_that_is_woken_by_progress_does_not_wait_in_the_lock_itself():
    """There it would not notice that what it waits for is done."""
    lock = AppendLock(lambda: None)
    held = lock._lock = _HeldElsewhere()
    assert not lock.acquire_unless(lambda: False, timeout=0)
    assert [0, 0] == held.waits
