"""The table of request handlers."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from spark_kafka_sink.devbroker import handlers
from spark_kafka_sink.devbroker.handlers.handler import Handler
from spark_kafka_sink.devbroker.handlers.registry import HANDLERS
from spark_kafka_sink.protocol.registry import SUPPORTED


def test_each_handler_is_registered():
    """The table has every handler of the folder."""
    modules = [
        import_module(f"{handlers.__name__}.{module.name}")
        for module in pkgutil.iter_modules(handlers.__path__)
    ]
    defined = [
        member
        for module in modules
        for member in vars(module).values()
        if isinstance(member, Handler)
    ]
    assert {id(handler) for handler in defined} == {id(handler) for handler in HANDLERS.values()}
    assert len(defined) == len(HANDLERS)


def test_each_api_has_its_own_handler():
    """Each API that the package declares has a handler, at the key of its requests."""
    assert {api_key: handler.request_class.api_key for api_key, handler in HANDLERS.items()} == {
        api_key: api_key for api_key in SUPPORTED
    }
