"""Makes the objects that settings name: serializers, interceptors and partitioners of the user's.

This runs in the process that makes the producer, never where the configuration is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from spark_kafka_sink.config.plugin_reference import PluginReference


def load_plugin(reference: PluginReference, setting: str) -> object:
    """Give the object that `setting` refers to; a class is called without arguments, as in Java.

    Raises ConfigError when it cannot be imported or made.
    """
    target = reference.load()
    if not isinstance(target, type):
        return target
    try:
        return target()
    except Exception as error:
        raise ConfigError(
            f"{setting}: {reference} cannot be made without arguments: "
            f"{type(error).__name__}: {error}"
        ) from error
