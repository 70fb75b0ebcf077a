"""A Schema Registry beside the brokers: its address, its faults, and where its schemas live."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.devbroker.net.listener import WITH_TLS, Listener
from spark_kafka_sink.devbroker.registry.registry_faults import RegistryFaults
from spark_kafka_sink.devbroker.registry.registry_server import RegistryServer
from spark_kafka_sink.devbroker.registry.rest_api import RestApi
from spark_kafka_sink.devbroker.registry.schema_store import decode_state, encode_state
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import SecurityProtocol, host_and_port
from spark_kafka_sink.security.sasl import SaslMechanism

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from spark_kafka_sink.devbroker.base.broker_settings import ConnectionLimits
    from spark_kafka_sink.devbroker.log.data_directory import DataDirectory
    from spark_kafka_sink.devbroker.registry.registry_faults import (
        DecideRegistry,
        RegistryAction,
        RegistryFaultHook,
    )
    from spark_kafka_sink.devbroker.registry.registry_state import RegistryState

#: The passwords of other mechanisms are never sent.
_BASIC: Final = (SaslMechanism.PLAIN,)


class SchemaRegistry:
    """The Schema Registry of a `DevBroker`.

    >>> with DevBroker(schema_registry=True) as broker:
    ...     broker.schema_registry_url == broker.schema_registry.url
    True
    """

    def __init__(
        self,
        listener: Listener,
        limits: ConnectionLimits,
        data: Callable[[], DataDirectory | None],
    ) -> None:
        """Create a registry for a listener; `data` returns the directory that is open.

        Raises ConfigError for a listener with SASL mechanisms other than PLAIN.
        """
        if listener.sasl is not None and tuple(listener.sasl.mechanisms) != _BASIC:
            raise ConfigError(
                "the Schema Registry has basic authentication, so its listener needs "
                'SaslSettings(users=..., mechanisms=("PLAIN",))'
            )
        self._listener = listener
        self._limits = limits
        self._data = data
        self._api = RestApi()
        self._faults = RegistryFaults()

    @property
    def url(self) -> str:
        """The address, http://host:port or https://host:port, without user and password."""
        scheme = (
            "https" if SecurityProtocol(self._listener.security_protocol) in WITH_TLS else "http"
        )
        return f"{scheme}://{host_and_port(self._listener.host, self._listener.port)}"

    def on(
        self,
        path: str,
        fault: DecideRegistry | RegistryAction,
        *,
        times: int | None = None,
        expect: bool = False,
    ) -> RegistryFaultHook:
        """Inject a fault into requests of a method and path; return a hook that counts its actions.

        `path` is a method and a path, such as "GET /schemas/ids/{id}": a part in braces stands for
        any, and `...` at the end for all further ones. `fault` is an action (`AnswerStatus`,
        `CloseConnection`, `Delay`, `NeverAnswer`), or a function of the request and its
        `RegistryFaultContext` that returns an action, or None to handle the request as usual.
        `times` and `expect` are those of `DevBroker.on`. Raises ConfigError for arguments with
        which the hook could never act.
        """
        return self._faults.on(path, fault, times=times, expect=expect)

    def check(self) -> None:
        """Raise AssertionError if a fault that was expected was never injected."""
        self._faults.check()

    def serve(self, loop: AbstractEventLoop) -> RegistryServer:
        """Load the schemas, and listen on a loop. Raises OSError, ConfigError."""
        data = self._data()
        if data is not None:
            self._load(data)
        server = RegistryServer(loop, self._limits, self._api, self._faults)
        (port,) = server.open([self._listener])
        self._listener = replace(self._listener, port=port)
        server.accept()
        return server

    def _load(self, data: DataDirectory) -> None:
        def store(state: RegistryState) -> None:
            data.write_schemas(encode_state(state))

        text = data.read_schemas()
        try:
            state = None if text is None else decode_state(text)
        except ValueError as error:
            raise ConfigError(
                f"the schemas in the data directory cannot be read: {error}. Restore "
                f"{data.schemas_path}, or remove it to begin without schemas"
            ) from error
        self._api = RestApi(state, store)
