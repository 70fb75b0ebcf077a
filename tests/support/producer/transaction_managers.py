"""TransactionManagers in a certain state, and what waits in them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from spark_kafka_sink.producer.sending.transaction_manager import TransactionManager
from spark_kafka_sink.producer.sending.transaction_state import (
    TRANSITIONS,
    TransactionState,
    TransactionStateMachine,
)
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse

if TYPE_CHECKING:
    from spark_kafka_sink.model import ProducerIdAndEpoch
    from spark_kafka_sink.producer.sending.txn_request_handlers import TxnRequestHandler
    from spark_kafka_sink.protocol.api_keys import ApiKey


def manager_in_state(producer: ProducerIdAndEpoch, state: TransactionState) -> TransactionManager:
    """Return the manager of a transactional producer with an id, in the given state."""
    manager = TransactionManager(transactional_id="x")
    manager.sequences.producer_id_and_epoch = producer
    reach(manager.state, state)
    return manager


def waiting(manager: TransactionManager) -> list[ApiKey]:
    """Remove the requests that wait; return their APIs in the order of sending."""
    return [handler.api_key for handler in manager._queue.drain()]


def reach(machine: TransactionStateMachine, target: TransactionState) -> None:
    """Move the machine to a state by the fewest legal transitions."""
    paths = deque([[machine.current]])
    while paths[0][-1] is not target:
        path = paths.popleft()
        paths += [[*path, each] for each in TRANSITIONS[path[-1]] if each not in path]
    for state in paths[0][1:]:
        machine.transition_to(state)


def next_request(manager: TransactionManager) -> TxnRequestHandler:
    """Return the request to send next; there must be one."""
    handler = manager.next_request(has_incomplete_batches=False)
    assert handler is not None
    return handler


def manager_with_id(producer: ProducerIdAndEpoch) -> TransactionManager:
    """Return the manager of an idempotent producer that has been assigned this id and epoch."""
    manager = TransactionManager()
    manager.bump_idempotent_epoch_and_reset_id_if_needed()
    manager.handle_response(
        next_request(manager),
        InitProducerIdResponse(
            error_code=0, producer_id=producer.producer_id, producer_epoch=producer.epoch
        ),
    )
    return manager
