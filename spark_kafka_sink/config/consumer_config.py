"""The consumer's configuration: parsed, checked for consistency, and immutable.

`ConsumerConfig.from_mapping` is the only entry point: it parses settings by the tables of
`consumer_settings`. If two given settings contradict each other, that is an error; a default gives
way to a given setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from spark_kafka_sink.config.client_config import ClientConfig, SettingsTable
from spark_kafka_sink.config.consumer_settings import CONSUMER_CONFIG_DEF, REFUSED_CONSUMER
from spark_kafka_sink.config.plugin_reference import TOKEN_SOURCES

if TYPE_CHECKING:
    from spark_kafka_sink.config.client_config import GivenSettings

_TABLE: Final = SettingsTable(
    CONSUMER_CONFIG_DEF, REFUSED_CONSUMER, {"sasl.login.callback.handler.class": TOKEN_SOURCES}
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConsumerConfig(ClientConfig):
    """The validated settings of a consumer, made by `from_mapping`.

    Its attributes are named as the settings, with underscores for dots.

    >>> config = ConsumerConfig.from_mapping({"bootstrap.servers": "localhost:9092"})
    >>> config.fetch_max_wait_ms
    500
    """

    isolation_level: str
    max_partition_fetch_bytes: int
    fetch_max_bytes: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    check_crcs: bool
    max_uncompressed_batch_bytes: int
    client_rack: str
    default_api_timeout_ms: int
    #: Not a setting: a mistyped name must not create a topic.
    allow_auto_create_topics: bool = False
    #: Not a setting: Java's consumer has the same constant.
    max_in_flight_requests_per_connection: int = 100
    #: Not a setting, and of no consequence: the topics that are read are asked for again and again.
    metadata_max_idle_ms: int = 300_000

    _table: ClassVar = _TABLE

    @property
    def is_read_committed(self) -> bool:
        """Whether records of transactions are only read when these are committed."""
        return self.isolation_level == "read_committed"

    @classmethod
    def _settle(cls, values: dict[str, Any], given: GivenSettings) -> None:
        settle_fetch_wait(values, given)


def settle_fetch_wait(values: dict[str, Any], given: GivenSettings) -> None:
    """Make brokers answer before the request times out; Java leaves this to its users."""
    wait, timeout = values["fetch.max.wait.ms"], values["request.timeout.ms"]
    if wait < timeout:
        return
    if "fetch.max.wait.ms" in given:
        raise given.error(
            f"fetch.max.wait.ms is {wait}, but must be less than request.timeout.ms, which is "
            f"{timeout}: a broker may wait so long before it answers"
        )
    values["fetch.max.wait.ms"] = timeout // 2
