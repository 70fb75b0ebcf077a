"""Write Spark DataFrames to Apache Kafka and read them, with or without Spark.

The public names are those in `__all__` here and in `spark_kafka_sink.testing`; everything else may
change between versions. `__init__.pyi` lists them, with the modules that have them.

Importing this package imports neither pyspark nor numba: Spark looks up data sources in every
driver-side worker that it starts, and those must start fast. Each name is imported when it is first
used (PEP 562).
"""

from __future__ import annotations

import ast
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pkgutil import get_data


def _listed_names() -> dict[str, str]:
    """Return the public names of the stub, in order, each with its module."""
    stub = None
    with suppress(OSError):
        # Not by its path: Spark ships packages to workers in zip files.
        stub = get_data(__name__, "__init__.pyi")
    if stub is None:
        raise ImportError(f"{__name__} was installed without __init__.pyi: install it again")
    modules = {
        alias.name: statement.module or ""
        for statement in ast.parse(stub).body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    return dict(sorted(modules.items()))


_MODULES = _listed_names()
__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        # The message is all that users need; the traceback would show our imports.
        raise error.with_traceback(None) from None
    # Later look-ups do not call this function.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, except those of Spark where there is no PySpark.

    Completion looks up each name, which must not fail.
    """
    has_spark = find_spec("pyspark") is not None
    return [
        name for name in __all__ if has_spark or not _MODULES[name].startswith(f"{__name__}.spark.")
    ]
