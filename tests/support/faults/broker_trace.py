"""The requests that a broker has answered with success, as observed by the proxy before it.

This shows how far a process had got when it was killed.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.registry import (
    decode_request,
    decode_response,
    peek_correlation_id,
)
from tests.support.faults.fault_rules import Side
from tests.support.kafka.real_kafka import wait_until

if TYPE_CHECKING:
    from tests.support.faults.fault_proxy import FaultProxy

_SIZE_BYTES = 4
_TRACED = frozenset(
    {
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.PRODUCE,
        ApiKey.END_TXN,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.DESCRIBE_TRANSACTIONS,
    }
)


class Received(NamedTuple):
    """How often the broker completed each kind of request for the processes behind the proxy."""

    ledger_inits: int = 0
    #: Durable entries: the ledger's committed transactions.
    ledger_commits: int = 0
    task_inits: int = 0
    task_batches: int = 0
    task_commits: int = 0
    task_aborts: int = 0
    #: 1 if there was any such request, since these may be retried.
    described: int = 0
    listed: int = 0


class BrokerTrace:
    """Counts the requests to which the broker has responded with success."""

    def __init__(self, proxy: FaultProxy) -> None:
        """Observe a proxy from now on."""
        self._lock = threading.Lock()
        self._asked: dict[tuple[int, int], tuple[ApiKey, int, str]] = {}
        self._counts = dict.fromkeys(Received._fields, 0)
        proxy.observer = self._observe

    @property
    def received(self) -> Received:
        """The counts."""
        with self._lock:
            return Received(**self._counts)

    def forget(self) -> None:
        """Reset all counts to 0."""
        with self._lock:
            self._counts = dict.fromkeys(Received._fields, 0)

    def wait_for(self, **least: int) -> None:
        """Wait until each of these counts has reached the given minimum."""
        wait_until(
            lambda: all(getattr(self.received, name) >= count for name, count in least.items()),
            seconds=120,
            what=f"the broker to have answered {least}",
        )

    def _observe(self, side: Side, connection: int, frame: bytes) -> None:
        body = memoryview(frame)[_SIZE_BYTES:]
        if side is Side.REQUEST:
            if int.from_bytes(body[:2]) not in _TRACED:
                return
            header, request = decode_request(body)
            name = _name(ApiKey(header.request_api_key), request)
            with self._lock:
                self._asked[connection, header.correlation_id] = (
                    ApiKey(header.request_api_key),
                    header.request_api_version,
                    name,
                )
            return
        with self._lock:
            asked = self._asked.pop((connection, peek_correlation_id(body)), None)
        if asked is None:
            return
        api_key, version, name = asked
        _, answer = decode_response(api_key, version, body)
        if name in self._counts and _succeeded(api_key, answer):
            with self._lock:
                once = name in {"described", "listed"}
                self._counts[name] = 1 if once else self._counts[name] + 1


def _name(api_key: ApiKey, request: Any) -> str:
    """Return the field of `Received` that counts a request, or another name if none does."""
    if api_key is ApiKey.LIST_TRANSACTIONS:
        return "listed"
    if api_key is ApiKey.DESCRIBE_TRANSACTIONS:
        return "described"
    owner = "ledger" if (request.transactional_id or "").endswith(".ledger") else "task"
    if api_key is ApiKey.INIT_PRODUCER_ID:
        return f"{owner}_inits"
    if api_key is ApiKey.PRODUCE:
        return f"{owner}_batches"
    return f"{owner}_{'commits' if request.committed else 'aborts'}"


def _succeeded(api_key: ApiKey, answer: Any) -> bool:
    if api_key is ApiKey.PRODUCE:
        codes = [one.error_code for each in answer.responses for one in each.partition_responses]
        return set(codes) == {ErrorCode.NONE}
    if api_key is ApiKey.DESCRIBE_TRANSACTIONS:
        return True
    return bool(answer.error_code == ErrorCode.NONE)
