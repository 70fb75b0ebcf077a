"""The handlers of all APIs that this package declares, by API key.

The handler of an API is a function in a module, both with the name of its key.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.protocol.registry import SUPPORTED

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.handlers.handler import Handler
    from spark_kafka_sink.protocol.api_keys import ApiKey


def _handler(api_key: ApiKey) -> Handler:
    name = api_key.name.lower()
    handler: Handler = getattr(import_module(f"{__package__}.{name}"), name)
    return handler


HANDLERS: Final[dict[int, Handler]] = {api_key: _handler(api_key) for api_key in SUPPORTED}
