"""The objects that settings name: serializers, deserializers, interceptors, assignors and others.

They are created in the process that creates the client, never where the configuration is read. A
plug-in has the life cycle of Java's (Configurable, Closeable), as far as it has the methods:

- `configure(settings)` is called once, after creation, with the client's settings by Kafka's names
  except the security settings. If it has a parameter `is_key`, this says whether the serializer or
  deserializer is for keys. An error becomes a ConfigError.
- Its own methods are called any number of times.
- `close()` is called once, when the client is closed or could not be created. An error is logged,
  and the other plug-ins are still closed.
"""

from __future__ import annotations

import inspect
import logging
from contextlib import ExitStack
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spark_kafka_sink.config.client_config import ClientConfig
    from spark_kafka_sink.config.plugin_reference import PluginReference

_LOG: Final = logging.getLogger(__name__)
_NO_SETTINGS: Final[Mapping[str, object]] = MappingProxyType({})


class PlugIns:
    """The plug-ins of one client, from creation to close."""

    def __init__(self, settings: Mapping[str, object] = _NO_SETTINGS) -> None:
        """Create no plug-in yet; `settings` are passed to their `configure`."""
        self._settings = settings
        self._created: list[object] = []

    def load(self, reference: PluginReference, setting: str, **about: object) -> object:
        """Create and configure the object that `setting` names; call a class without arguments.

        `about` are further arguments of `configure`, passed only if it has parameters of these
        names. Raises ConfigError when the object cannot be imported, created or configured.
        """
        plug_in = load_plugin(reference, setting)
        if not any(plug_in is created for created in self._created):
            self._created.append(plug_in)
        configure = getattr(plug_in, "configure", None)
        if callable(configure):
            known = {name: value for name, value in about.items() if takes(configure, name)}
            try:
                configure(self._settings, **known)
            except Exception as error:
                raise ConfigError(
                    f"{setting}: {reference} could not be configured: "
                    f"{type(error).__name__}: {error}"
                ) from error
        return plug_in

    def close(self) -> None:
        """Close each plug-in once, in the order of creation, even if another one fails."""
        with ExitStack() as closing:
            while self._created:
                closing.callback(_close, self._created.pop())


def _close(plug_in: object) -> None:
    close = getattr(plug_in, "close", None)
    if callable(close):
        try:
            close()
        except Exception:  # noqa: BLE001  the user's code may raise anything; it is logged
            _LOG.warning("could not close plug-in %s", type(plug_in).__qualname__, exc_info=True)


def plug_in_settings(config: ClientConfig) -> Mapping[str, object]:
    """Return all settings except security by Kafka's names, with the client's values."""
    return MappingProxyType(
        {
            field.name.replace("_", "."): getattr(config, field.name)
            for field in fields(config)
            if field.compare and field.name != "security"
        }
    )


def load_plugin(reference: PluginReference, setting: str) -> object:
    """Return the object that `setting` names; call a class without arguments, as in Java.

    Raises ConfigError when it cannot be imported or created.
    """
    target = reference.load(setting)
    if not isinstance(target, type):
        return target
    try:
        return target()
    except Exception as error:
        raise ConfigError(
            f"{setting}: {reference} could not be created without arguments: "
            f"{type(error).__name__}: {error}. Pass an object, or a class that needs no arguments"
        ) from error


def takes(function: Callable[..., object], name: str) -> bool:
    """Return whether a function has a parameter of this name."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        # Some functions written in C have no signature; such functions were not written for Kafka.
        return False


def check_signature(
    function: Callable[..., object], parameters: str, name: str, *, by_name: Sequence[str] = ()
) -> None:
    """Raise ConfigError for a function that cannot be called with `parameters`, "(a, b, c)".

    `name` names the setting and the function; `by_name` are further parameters that are passed by
    keyword.
    """
    if "__signature__" in getattr(function, "__dict__", ()):
        # A decorator copied the signature of the wrapped function, but the wrapper is what is
        # called.
        return
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        # See `takes`.
        return
    try:
        signature.bind(*parameters.split(","), **dict.fromkeys(by_name))
    except TypeError:
        called = ", ".join(
            [parameters[1:-1], *(f"{parameter}={parameter}" for parameter in by_name)]
        )
        raise ConfigError(
            f"{name} takes {signature}, but is called with ({called}): give it these parameters, "
            "in this order"
        ) from None
