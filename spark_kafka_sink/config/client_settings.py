"""The tables of the settings that Kafka's clients have in common.

`CLIENT_CONFIG_DEF` has the rows that the tables of the producer and of the consumer share;
`REFUSED_CLIENT` the unsupported settings of both. The rows for TLS and SASL are in
`security_table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.config.config_def import (
    REQUIRED,
    ConfigDef,
    ConfigType,
    Importance,
    OneOf,
    OneOfAnyCase,
    Range,
    RefusedSetting,
)
from spark_kafka_sink.config.security_table import REFUSED_SECURITY

if TYPE_CHECKING:
    from collections.abc import Mapping

_STRING, _INT, _LONG, _LIST = (
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.LIST,
)
_HIGH, _MEDIUM, _LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW

#: The prefix of these names in the options of Spark.
KAFKA_PREFIX: Final = "kafka."

CLIENT_CONFIG_DEF: Final = (
    ConfigDef()
    .define(
        "bootstrap.servers",
        _LIST,
        REQUIRED,
        None,
        _HIGH,
        "The addresses (host:port, separated by commas) from which the client discovers the "
        "cluster.",
    )
    .define(
        "request.timeout.ms",
        _INT,
        30_000,
        Range(0),
        _MEDIUM,
        "How long to wait for the response to a request.",
    )
    .define(
        "retry.backoff.ms",
        _LONG,
        100,
        Range(0),
        _LOW,
        "How long to wait before the first retry; doubles with each further retry, with jitter.",
    )
    .define(
        "retry.backoff.max.ms", _LONG, 1_000, Range(0), _LOW, "The maximum wait before a retry."
    )
    .define(
        "reconnect.backoff.ms",
        _LONG,
        50,
        Range(0),
        _LOW,
        "How long to wait before reconnecting to a broker; doubles with each failure.",
    )
    .define(
        "reconnect.backoff.max.ms",
        _LONG,
        1_000,
        Range(0),
        _LOW,
        "The maximum wait before reconnecting.",
    )
    .define(
        "socket.connection.setup.timeout.ms",
        _LONG,
        10_000,
        Range(0),
        _MEDIUM,
        "How long to wait for a connection to open; doubles with each failure.",
    )
    .define(
        "socket.connection.setup.timeout.max.ms",
        _LONG,
        30_000,
        Range(0),
        _MEDIUM,
        "The maximum time to wait for a connection to open.",
    )
    .define(
        "metadata.max.age.ms",
        _LONG,
        300_000,
        Range(0),
        _LOW,
        "The age at which cluster metadata is refreshed.",
    )
    .define(
        "metadata.recovery.strategy",
        _STRING,
        "rebootstrap",
        OneOfAnyCase(("none", "rebootstrap")),
        _LOW,
        "What to do when no known broker can be reached: rebootstrap contacts "
        "bootstrap.servers again (KIP-899), none keeps trying the known brokers.",
    )
    .define(
        "metadata.recovery.rebootstrap.trigger.ms",
        _LONG,
        300_000,
        Range(0),
        _LOW,
        "How long brokers that can be reached may fail to return metadata before the client "
        "contacts bootstrap.servers again (KIP-1102).",
    )
    .define(
        "connections.max.idle.ms",
        _LONG,
        540_000,
        None,
        _MEDIUM,
        "The idle time after which a connection is closed; below 0, it is never closed.",
    )
    .define(
        "client.dns.lookup",
        _STRING,
        "use_all_dns_ips",
        OneOf(("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")),
        _MEDIUM,
        "Whether to try all addresses of a host name one after the other, or to replace each "
        "of bootstrap.servers by the canonical names of its addresses.",
    )
    .define(
        "send.buffer.bytes",
        _INT,
        -1,
        Range(-1),
        _MEDIUM,
        "The size of the socket's send buffer (SO_SNDBUF); -1 leaves it to the operating system, "
        "which lets it grow with the connection's speed. Java's default is 131072.",
    )
)

REFUSED_CLIENT: Final[Mapping[str, RefusedSetting]] = {
    "auto.include.jmx.reporter": RefusedSetting("there is no JMX in Python", ("false",)),
    "config.providers": RefusedSetting(
        "Java classes cannot be used here; ${env:NAME}, ${file:/path:key} and ${dir:/path:file} "
        "work without it",
        ("",),
    ),
    "enable.metrics.push": RefusedSetting("metrics are not pushed to brokers", ("false",)),
    **REFUSED_SECURITY,
}
