"""The table of request handlers."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module

from spark_kafka_sink.devbroker import handlers
from spark_kafka_sink.devbroker.handlers.api_versions import ApiVersionsHandler
from spark_kafka_sink.devbroker.handlers.handler import Handler
from spark_kafka_sink.devbroker.handlers.registry import HANDLERS


def test_each_handler_is_registered():
    """The table has every handler of the folder except that of ApiVersions."""
    modules = [
        import_module(f"{handlers.__name__}.{module.name}")
        for module in pkgutil.iter_modules(handlers.__path__)
    ]
    defined = {
        member
        for module in modules
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, Handler) and not inspect.isabstract(member)
    }
    assert defined - {ApiVersionsHandler} == {type(handler) for handler in HANDLERS}


def test_each_api_has_one_handler():
    """No two handlers of the table are for the same API."""
    apis = [handler.api_key for handler in HANDLERS]
    assert len(apis) == len(set(apis))
