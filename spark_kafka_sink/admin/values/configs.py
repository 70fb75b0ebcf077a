"""Settings of topics, brokers and groups, and changes to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Self

from spark_kafka_sink.offset_arguments import text_of


class ConfigResourceType(IntEnum):
    """The type of what has settings.

    >>> ConfigResource(ConfigResourceType.TOPIC, "orders").name
    'orders'
    """

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A topic, a broker or a group that has settings.

    `resource_type` is its type. `name` is the name of a topic or a group, or the id of a broker as
    text; the empty text is the default of all brokers. Raises TypeError for anything else.

    >>> topic = ConfigResource(ConfigResourceType.TOPIC, "orders")
    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     admin.describe_configs([topic])[topic]["cleanup.policy"].value
    'delete'
    """

    resource_type: ConfigResourceType
    name: str

    def __post_init__(self) -> None:
        """Raise TypeError for a number in place of a type, or of a broker's id as text."""
        if not isinstance(self.resource_type, ConfigResourceType):
            raise TypeError(
                "resource_type must be a ConfigResourceType, such as ConfigResourceType.TOPIC, not "
                f"{self.resource_type!r}"
            )
        if not isinstance(self.name, str):
            raise TypeError(
                f"the name of a ConfigResource must be a text, such as {str(self.name)!r}, not "
                f"{self.name!r}"
            )
        text_of(self.name, "the name of a ConfigResource")

    def __str__(self) -> str:
        """Return the type and the name, for errors."""
        return f"{self.resource_type.name.lower().replace('_', ' ')} {self.name!r}"


class ConfigSource(IntEnum):
    """Where the value of a setting comes from.

    >>> topic = ConfigResource(ConfigResourceType.TOPIC, "orders")
    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     admin.describe_configs([topic])[topic]["cleanup.policy"].source.name
    'DEFAULT_CONFIG'
    """

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8

    @classmethod
    def _missing_(cls, value: object) -> Self:  # noqa: ARG003 - the signature of Enum
        """Return UNKNOWN for the source of a newer broker."""
        return cls(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSynonym:
    """A setting from which the value of another one may come.

    >>> topic = ConfigResource(ConfigResourceType.TOPIC, "orders")
    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     entries = admin.describe_configs([topic], include_synonyms=True)[topic]
    >>> all(isinstance(it, ConfigSynonym) for it in entries["cleanup.policy"].synonyms)
    True
    """

    #: The name of the setting.
    name: str
    #: None if it is a secret.
    value: str | None
    #: Where this value comes from.
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """A setting and its value.

    >>> topic = ConfigResource(ConfigResourceType.TOPIC, "orders")
    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     entry = admin.describe_configs([topic])[topic]["segment.ms"]
    >>> entry.value, entry.is_default
    ('604800000', True)
    """

    #: The name of the setting.
    name: str
    #: None if it is a secret, which brokers do not return, or if it is not set.
    value: str | None
    #: Where the value comes from.
    source: ConfigSource
    #: Whether it is a secret.
    is_sensitive: bool
    #: Whether it cannot be changed while the broker is running.
    is_read_only: bool
    #: The name of its type, such as LONG; None if the broker does not return it.
    type_name: str | None = None
    #: None unless it was requested.
    documentation: str | None = None
    #: In the order of precedence; empty unless they were requested.
    synonyms: tuple[ConfigSynonym, ...] = ()

    @property
    def is_default(self) -> bool:
        """Whether the value is Kafka's default."""
        return self.source is ConfigSource.DEFAULT_CONFIG


class AlterConfigOpType(IntEnum):
    """How a setting is changed.

    APPEND and SUBTRACT change the elements of a list.

    >>> AlterConfigOp("cleanup.policy", "compact", AlterConfigOpType.APPEND).op.name
    'APPEND'
    """

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class AlterConfigOp:
    """A change to one setting. Raises TypeError for values of a wrong type.

    >>> topic = ConfigResource(ConfigResourceType.TOPIC, "orders")
    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     admin.incremental_alter_configs({topic: [AlterConfigOp("retention.ms", "1000")]})
    ...     admin.describe_configs([topic])[topic]["retention.ms"].value
    '1000'
    """

    #: The name of the setting.
    name: str
    #: None with DELETE, which restores the default. Not in the repr: it may be a secret.
    value: str | None = field(repr=False)
    #: How it is changed.
    op: AlterConfigOpType = AlterConfigOpType.SET

    def __post_init__(self) -> None:
        """Raise TypeError for a name or a value that is not a text, or another kind of change."""
        check_setting(self.name, self.value)
        if not isinstance(self.op, AlterConfigOpType):
            raise TypeError(
                "op must be an AlterConfigOpType, such as AlterConfigOpType.SET, not of the type "
                f"{type(self.op).__name__}"
            )


def check_setting(name: object, value: object) -> None:
    """Raise TypeError unless the name of a setting is a text, and its value a text or None.

    Raises ValueError for a text that cannot be encoded. The value is not in the error, since it may
    be a secret.
    """
    text_of(name, "the name of a setting")
    if value is None:
        return
    if not isinstance(value, str):
        raise TypeError(
            f"the value of {name!r} must be a text, such as '1000', not of the type "
            f"{type(value).__name__}"
        )
    text_of(value, f"the value of {name!r}")
