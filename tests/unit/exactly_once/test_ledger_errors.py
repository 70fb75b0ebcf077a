"""The errors of exactly-once writes."""

from __future__ import annotations

from spark_kafka_sink.exactly_once import errors
from spark_kafka_sink.exactly_once.errors import (
    ExactlyOnceError,
    LedgerFencedError,
    LedgerOutcomeUnknownError,
)


def test_only_a_step_that_did_not_append_may_be_tried_again():
    """An error about a batch stays one, however often its step is repeated."""
    kinds = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, ExactlyOnceError)
    }
    assert len(kinds) > 2
    assert {LedgerFencedError, LedgerOutcomeUnknownError} == {
        kind for kind in kinds if kind("why").retriable
    }
