"""Transactional ids under a prefix, and the slots of a worker."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import ConfigError, IllegalStateError
from spark_kafka_sink.exactly_once.transactional_ids import (
    MAX_PREFIX_LENGTH,
    Slots,
    WorkerId,
    check_prefix,
    is_worker_id_of,
    ledger_id,
    new_worker,
    parse_worker_id,
    worker_id_pattern,
)

WORKER = "0123456789abcdef" * 2
_prefixes = st.text(min_size=1, max_size=40).filter(str.isprintable)


@given(prefix=_prefixes, slot=st.integers(0, 10**9 - 1))
def test_an_id_is_parsed_as_it_was_built(prefix, slot):
    """A worker id is parsed as it was built, whatever characters its prefix contains."""
    worker_id = WorkerId(prefix, WORKER, slot)
    assert worker_id == parse_worker_id(str(worker_id))
    assert is_worker_id_of(prefix, str(worker_id))
    assert re.fullmatch(worker_id_pattern(prefix), str(worker_id))


@given(mine=_prefixes, other=_prefixes)
def test_an_id_belongs_to_one_prefix(mine, other):
    """A worker id belongs only to the prefix that it was built with."""
    assert (mine == other) == is_worker_id_of(mine, str(WorkerId(other, WORKER, 0)))


def test_a_prefix_has_no_ids_of_a_longer_prefix():
    """Neither of the prefixes `orders` and `orders.eu` has ids of the other."""
    assert not is_worker_id_of("orders", f"orders.eu.{WORKER}.0")
    assert not is_worker_id_of("orders.eu", f"orders.{WORKER}.0")


@pytest.mark.parametrize(
    "name",
    [
        "orders.ledger",
        "orders",
        f"{WORKER}.0",
        f".{WORKER}.0",
        f"orders.{WORKER}",
        f"orders.{WORKER}.",
        f"orders.{WORKER}.-1",
        f"orders.{WORKER}.01",
        f"orders.{WORKER}.1234567890",
        f"orders.{WORKER[:-1]}.0",
        f"orders.{WORKER.upper()}.0",
    ],
)
def test_an_id_that_is_not_a_tasks_is_not_parsed(name):
    """An id that is not exactly a task's, such as the ledger's, is not parsed as one."""
    assert parse_worker_id(name) is None


def test_the_ledger_has_an_id_of_its_own():
    """The ledger's transactional id is the prefix followed by `.ledger`."""
    assert "orders.ledger" == ledger_id("orders")


@pytest.mark.parametrize("prefix", ["", "a\nb", "x" * (MAX_PREFIX_LENGTH + 1)])
def test_an_invalid_prefix_is_rejected(prefix):
    """An empty, unprintable or overlong prefix is refused with an error that names the option."""
    with pytest.raises(ConfigError, match="transactionalIdPrefix"):
        check_prefix(prefix)


def test_workers_have_different_names():
    """Each worker gets a different valid name, so no two processes share an id."""
    assert new_worker() != new_worker()
    assert parse_worker_id(f"orders.{new_worker()}.0") is not None


def test_a_slot_is_reused_only_by_a_later_generation():
    """A released slot is reused by a later generation, but never within its own."""
    slots = Slots("orders", name_worker=lambda: WORKER)
    first = slots.take(7)
    slots.release(first)
    assert [0, 1] == [first.slot, slots.take(7).slot]
    assert 0 == slots.take(8).slot


def test_a_slot_in_use_is_not_reused():
    """A slot that an earlier generation still uses is not reused."""
    slots = Slots("orders", name_worker=lambda: WORKER)
    slots.take(7)
    assert 1 == slots.take(8).slot


def test_an_older_generation_does_not_reuse_the_slot_of_a_later_one():
    """An older generation gets no later one's slot, whose transaction it would abort."""
    slots = Slots("orders", name_worker=lambda: WORKER)
    slots.release(slots.take(8))
    assert 1 == slots.take(7).slot


@pytest.mark.parametrize(
    "stranger", [WorkerId("orders", WORKER, 1), WorkerId("other", WORKER, 0)], ids=str
)
def test_only_a_slot_in_use_can_be_released(stranger):
    """Releasing an unknown slot, or releasing a slot twice, is refused."""
    slots = Slots("orders", name_worker=lambda: WORKER)
    own = slots.take(7)
    with pytest.raises(IllegalStateError, match="not in use"):
        slots.release(stranger)
    slots.release(own)
    with pytest.raises(IllegalStateError, match="not in use"):
        slots.release(own)
