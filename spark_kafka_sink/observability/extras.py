"""The libraries that exporters need, imported when an exporter is created."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def import_extra(module: str, *, extra: str, user: str) -> Any:
    """Import a library for its `user`; ModuleNotFoundError says which extra installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        root = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != root:
            raise
        raise ModuleNotFoundError(
            f"{user} requires the library {root}: pip install 'spark-kafka-sink[{extra}]', in the "
            "process that creates it",
            name=error.name,
        ) from None
