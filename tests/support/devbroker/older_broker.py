"""An embedded broker that looks like an older one: it hides some of its APIs or versions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.devbroker.net.faults import Corrupt
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.registry import (
    decode_response,
    encode_response,
    peek_correlation_id,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.devbroker import DevBroker
    from spark_kafka_sink.devbroker.net.faults import FaultContext, FaultHook

_SIZE_BYTES = 4


def hide_apis(broker: DevBroker, *hidden: ApiKey, node_id: int | None = None) -> FaultHook:
    """Remove APIs from every ApiVersions response, of all brokers or of one."""
    return _alter_apis(
        broker,
        lambda keys: tuple(each for each in keys if each.api_key not in hidden),
        node_id=node_id,
    )


def cap_version(
    broker: DevBroker, api_key: ApiKey, highest: int, *, hidden: tuple[ApiKey, ...] = ()
) -> FaultHook:
    """Limit the version of an API in every ApiVersions response, and remove `hidden` APIs."""
    return _alter_apis(
        broker,
        lambda keys: tuple(
            replace(each, max_version=highest) if each.api_key == api_key else each
            for each in keys
            if each.api_key not in hidden
        ),
    )


def _alter_apis(
    broker: DevBroker, change: Callable[[Any], Any], *, node_id: int | None = None
) -> FaultHook:
    def decide(_: Any, context: FaultContext) -> Corrupt | None:
        if node_id not in {None, context.node_id}:
            return None
        version = context.header.request_api_version

        def alter(frame: bytes) -> bytes:
            body = memoryview(frame)[_SIZE_BYTES:]
            _, answer = decode_response(ApiKey.API_VERSIONS, version, body)
            older = replace(answer, api_keys=change(answer.api_keys))
            return b"".join(encode_response(peek_correlation_id(body), older, version))

        return Corrupt(alter)

    return broker.on(ApiKey.API_VERSIONS, decide, expect=True)
