"""The error for a code in a response that also has the broker's own message."""

from __future__ import annotations

from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.protocol.error_codes import broker_error


def refusal(code: int, what: str, message: str | None = None) -> BrokerError:
    """Build the error for a code; `what` was refused, and `message` is the broker's, if any."""
    error = broker_error(code, what)
    if not message:
        return error
    return BrokerError(
        f"{error}; the broker said: {message}",
        code=error.code,
        name=error.name,
        retriable=error.retriable,
        invalid_metadata=error.invalid_metadata,
    )
