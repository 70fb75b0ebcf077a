"""The admin client's settings, and the configuration parsed from them: consistent and immutable.

`AdminConfig.from_mapping` is the only entry point: it parses settings by `ADMIN_CONFIG_DEF` and
`REFUSED_ADMIN`. If two given settings contradict each other, that is an error; a default gives way
to a given setting.

Names, types and ranges are those of Kafka's `AdminClientConfig` (4.3), and so are the defaults,
except for receive.buffer.bytes, send.buffer.bytes and client.id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from spark_kafka_sink.config.client_config import REFUSED_CLIENT, ClientConfig, GivenSettings
from spark_kafka_sink.config.config_def import *
from spark_kafka_sink.config.config_def import INT_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping


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

    default_api_timeout_ms: int = setting(INT, 60_000, MEDIUM, Range(0)).doc(
        "How long a call without a `timeout` may take, including retries. Must be at least "
        "request.timeout.ms, to which the default is raised."
    )
    connections_max_idle_ms: int = setting(LONG, 300_000, MEDIUM).doc(
        "The idle time after which a connection is closed; below 0, it is never closed."
    )
    receive_buffer_bytes: int = setting(INT, -1, MEDIUM, Range(-1), after="send.buffer.bytes").doc(
        "The size of the socket's receive buffer (SO_RCVBUF); -1 leaves it to the operating "
        "system. Java's default is 65536."
    )
    client_id: str = setting(STRING, "spark-kafka-sink-admin", MEDIUM, RequestText()).doc(
        "The client's name in the brokers' logs and quotas."
    )
    #: Not a setting: describing a topic must not create it.
    allow_auto_create_topics: bool = False
    #: Not a setting: the number of requests that one broker is sent at a time.
    max_in_flight_requests_per_connection: int = 5
    #: Not a setting, and of no consequence: topics are looked up for each call.
    metadata_max_idle_ms: int = 300_000

    _refused: ClassVar = REFUSED_ADMIN

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


ADMIN_CONFIG_DEF: Final = ConfigDef.of(AdminConfig)
