"""The producer's limits, sizes and pauses, so that a change of one is deliberate."""

from __future__ import annotations

from importlib import import_module

import pytest

from spark_kafka_sink.producer.batch.error_rules import TxnAction
from spark_kafka_sink.producer.sending.txn_request_handlers import TxnRequestPriority

LIMITS = {
    "records.batch_builder": {
        "GROWTH": 4,
        "FIRST_BLOCK_BYTES": 16_384,
        "LEAST_PAUSE": 0.05,
        "WAKE_BYTES": 262_144,
    },
    "batch.batch_compression": {"OVERSHOOT": 1.048, "MAX_UNCOMPRESSED_BYTES": 2_147_483_647},
    "batch.buffer_pool": {"MIN_BLOCK_BYTES": 512},
    "batch.error_rules": {"MAX_REFUSED_RECORDS": 5},
    "kafka_producer": {"CHUNK_ITEMS": 8_192},
    "record_staging": {"MAX_LIGHT_BYTES": 512, "MAX_STAGED_BYTES": 4_096},
    "records.open_batches": {"NO_SLOT": -1, "MAX_STALE": 64},
    "sending.partition_sequences": {
        "REMEMBERED_BATCHES": 5,
        "MAX_EPOCH": 32_767,
        "SEQUENCE_MODULUS": 2_147_483_648,
    },
    "batch.produce_result": {"NO_LOG_APPEND_TIME": -1},
    "sending.record_accumulator": {"MAX_STALE": 64},
    "records.record_gatherer": {
        "CHUNK_RECORDS": 2_048,
        "MAX_HEAVY_BYTES": 1_048_576,
        "NEVER_SHORT": -9_223_372_036_854_775_808,
        "EXHAUSTED_PAUSE": 0.05,
    },
    "records.record_preparation": {
        "MAX_RECORD_OVERHEAD": 21,
        "MAX_VARINT_BYTES": 5,
        "MAX_PARTITION": 2_147_483_647,
        "MAX_TIMESTAMP": 9_223_372_036_854_775_807,
    },
    "batch.producer_batch": {"MAX_ROWS": 1_048_576},
    "sending.sender": {"LAST_PRODUCE_WITHOUT_ADD": 11, "POSTPONED_EXPIRY_INTERVAL": 1.0},
    "records.staged_records": {"MAX_SPARE": 4_096, "MAX_HELD": 4},
    "sending.transaction_state": {"FIRST_VERSION_WITH_EPOCH_BUMP": 3, "TRANSACTION_V2": 2},
    "sending.transaction_manager": {
        "DEFAULT_TRANSACTION_TIMEOUT_MS": 60_000,
        "ADD_PARTITIONS_RETRY_BACKOFF": 0.02,
    },
    "sending.txn_request_handlers": {
        "FIRST_VERSION_WITH_KEYS": 4,
        "LAST_OFFSET_COMMIT_WITHOUT_ADD": 4,
        "NO_TRANSACTION_TIMEOUT_MS": 2_147_483_647,
    },
}


@pytest.mark.parametrize("module", LIMITS)
def test_the_limits_of_a_module_are_unchanged(module):
    """Some limits come from the protocol or Java; others were measured or bound losses."""
    found = vars(import_module(f"spark_kafka_sink.producer.{module}"))
    assert LIMITS[module] == {name: found[name] for name in LIMITS[module]}


def test_the_most_severe_action_of_a_response_wins():
    """The highest value wins: fatal errors before abortable ones, and those before retries."""
    assert {
        "DONE": 0,
        "NOT_ATTEMPTED": 1,
        "RETRY": 2,
        "RETRY_SOON": 3,
        "FIND_COORDINATOR": 4,
        "ABORTABLE": 5,
        "ABORTABLE_WITH_BUMP": 6,
        "UNAUTHORIZED": 7,
        "REINITIALIZE": 8,
        "FENCED": 9,
        "FATAL": 10,
    } == {name: action.value for name, action in TxnAction.__members__.items()}


def test_the_priority_of_transactional_requests():
    """The lowest value goes first: coordinator, producer id, contents, end, and epoch bump."""
    assert {
        "FIND_COORDINATOR": 0,
        "INIT_PRODUCER_ID": 1,
        "ADD_PARTITIONS_OR_OFFSETS": 2,
        "END_TXN": 3,
        "EPOCH_BUMP": 4,
    } == {name: priority.value for name, priority in TxnRequestPriority.__members__.items()}
