"""The admin client's settings, and the configuration parsed from them: consistent and immutable.

`AdminConfig.from_mapping` is the only entry point: it parses settings by `ADMIN_CONFIG_DEF` and
`REFUSED_ADMIN`. If two given settings contradict each other, that is an error; a default gives way
to a given setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from spark_kafka_sink.config.client_config import (
    CLIENT_CONFIG_DEF,
    METADATA_RECOVERY,
    REFUSED_CLIENT,
    TIMES_OF_CLIENTS,
    ClientConfig,
    SettingsTable,
)
from spark_kafka_sink.config.config_def import (
    INT_MAX,
    ConfigDef,
    ConfigType,
    Importance,
    Range,
    RefusedSetting,
    RequestText,
)
from spark_kafka_sink.config.plugin_reference import TOKEN_SOURCES
from spark_kafka_sink.config.security_table import SECURITY_CONFIG_DEF

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.config.client_config import GivenSettings

_STRING, _INT, _LONG = ConfigType.STRING, ConfigType.INT, ConfigType.LONG

#: A row for each supported setting. Names, types and ranges are those of Kafka's
#: `AdminClientConfig` (4.3), and so are the defaults, except for receive.buffer.bytes,
#: send.buffer.bytes and client.id. The rows that all clients have in common are in `client_config`.
ADMIN_CONFIG_DEF: Final = (
    ConfigDef()
    .include(CLIENT_CONFIG_DEF, "bootstrap.servers")
    .define(
        "default.api.timeout.ms",
        _INT,
        60_000,
        Range(0),
        Importance.MEDIUM,
        "How long a call without a `timeout` may take, including retries. Must be at least "
        "request.timeout.ms, to which the default is raised.",
    )
    .include(
        CLIENT_CONFIG_DEF,
        *TIMES_OF_CLIENTS,
        *METADATA_RECOVERY,
    )
    .define(
        "connections.max.idle.ms",
        _LONG,
        300_000,
        None,
        Importance.MEDIUM,
        "The idle time after which a connection is closed; below 0, it is never closed.",
    )
    .include(CLIENT_CONFIG_DEF, "client.dns.lookup", "send.buffer.bytes")
    .define(
        "receive.buffer.bytes",
        _INT,
        -1,
        Range(-1),
        Importance.MEDIUM,
        "The size of the socket's receive buffer (SO_RCVBUF); -1 leaves it to the operating "
        "system. Java's default is 65536.",
    )
    .define(
        "client.id",
        _STRING,
        "spark-kafka-sink-admin",
        RequestText(),
        Importance.MEDIUM,
        "The client's name in the brokers' logs and quotas.",
    )
    .include(SECURITY_CONFIG_DEF)
)

_OF_METRICS: Final = RefusedSetting("the admin client has no metrics")

#: Every other setting of Kafka's admin client: why it is not supported, and the values that request
#: what happens anyway.
REFUSED_ADMIN: Final[Mapping[str, RefusedSetting]] = {
    "bootstrap.controllers": RefusedSetting(
        "requests go to brokers, which forward them to the controller: set bootstrap.servers",
        ("",),
    ),
    "metric.reporters": _OF_METRICS._replace(accepted=("",)),
    "metrics.num.samples": _OF_METRICS,
    "metrics.recording.level": _OF_METRICS,
    "metrics.sample.window.ms": _OF_METRICS,
    "retries": RefusedSetting(
        "a call is retried until its timeout: set default.api.timeout.ms, or the timeout of the "
        "call",
        (str(INT_MAX),),
    ),
    **REFUSED_CLIENT,
}

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
