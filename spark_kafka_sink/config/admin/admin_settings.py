"""The tables of the admin client's settings: the supported and the unsupported ones.

`ADMIN_CONFIG_DEF` has a row for each supported setting. Names, types and ranges are those of
Kafka's `AdminClientConfig` (4.3), and so are the defaults, except for receive.buffer.bytes,
send.buffer.bytes and client.id. `REFUSED_ADMIN` has an entry for every other setting of Kafka's
admin client, with the reason and the values that request what happens anyway. The rows that all
clients have in common are in `client_settings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.config.client_settings import CLIENT_CONFIG_DEF, REFUSED_CLIENT
from spark_kafka_sink.config.config_def import (
    INT_MAX,
    ConfigDef,
    ConfigType,
    Importance,
    Range,
    RefusedSetting,
    RequestText,
)
from spark_kafka_sink.config.security_table import SECURITY_CONFIG_DEF

if TYPE_CHECKING:
    from collections.abc import Mapping

_STRING, _INT, _LONG = ConfigType.STRING, ConfigType.INT, ConfigType.LONG

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
        "request.timeout.ms",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
        "reconnect.backoff.ms",
        "reconnect.backoff.max.ms",
        "socket.connection.setup.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "metadata.max.age.ms",
        "metadata.recovery.strategy",
        "metadata.recovery.rebootstrap.trigger.ms",
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
