"""The admin client's configuration: parsed, checked for consistency, and immutable.

`AdminConfig.from_mapping` is the only entry point: it parses settings by the tables of
`admin_settings`. If two given settings contradict each other, that is an error; a default gives way
to a given setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from spark_kafka_sink.config.admin.admin_settings import ADMIN_CONFIG_DEF, REFUSED_ADMIN
from spark_kafka_sink.config.client_config import ClientConfig, SettingsTable
from spark_kafka_sink.config.plugin_reference import TOKEN_SOURCES

if TYPE_CHECKING:
    from spark_kafka_sink.config.client_config import GivenSettings

_TABLE: Final = SettingsTable(
    ADMIN_CONFIG_DEF, REFUSED_ADMIN, {"sasl.login.callback.handler.class": TOKEN_SOURCES}
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AdminConfig(ClientConfig):
    """The validated settings of an admin client, made by `from_mapping`.

    Its attributes are named as the settings, with underscores for dots.

    >>> config = AdminConfig.from_mapping({"bootstrap.servers": "localhost:9092"})
    >>> config.default_api_timeout_ms
    60000
    >>> with AdminClient(config) as admin:
    ...     sorted(admin.list_topics())
    ['orders', 'payments']
    """

    default_api_timeout_ms: int
    #: Not a setting: describing a topic must not create it.
    allow_auto_create_topics: bool = False
    #: Not a setting: the number of requests that one broker is sent at a time.
    max_in_flight_requests_per_connection: int = 5
    #: Not a setting, and of no consequence: topics are looked up for each call.
    metadata_max_idle_ms: int = 300_000

    _table: ClassVar = _TABLE

    @classmethod
    def _settle(cls, values: dict[str, Any], given: GivenSettings) -> None:
        _settle_call_timeout(values, given)


def _settle_call_timeout(values: dict[str, Any], given: GivenSettings) -> None:
    """Apply `KafkaAdminClient.configureDefaultApiTimeoutMs`."""
    timeout, of_request = values["default.api.timeout.ms"], values["request.timeout.ms"]
    if timeout >= of_request:
        return
    if "default.api.timeout.ms" in given:
        raise given.error(
            f"default.api.timeout.ms is {timeout}, but must be at least request.timeout.ms, which "
            f"is {of_request}: lower that as well, or pass a `timeout` to single calls"
        )
    values["default.api.timeout.ms"] = of_request
