"""The subjects under which schemas are registered, by Confluent's strategies."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from spark_kafka_sink.errors import ConfigError

_PACKAGE: Final = "io.confluent.kafka.serializers.subject."
#: A strategy that asks the registry for the subject of a topic.
_REFUSED: Final = "AssociatedNameStrategy"


class SubjectNameStrategy(StrEnum):
    """The strategies, by the names of Confluent's classes without their package."""

    TOPIC_NAME = "TopicNameStrategy"
    RECORD_NAME = "RecordNameStrategy"
    TOPIC_RECORD_NAME = "TopicRecordNameStrategy"

    @classmethod
    def read(cls, text: str, option: str) -> SubjectNameStrategy:
        """Return the strategy of a name, with or without its package; ConfigError if there is none.

        `option` is the name of the option that has it.
        """
        name = text.strip().removeprefix(_PACKAGE)
        if name in list(cls):
            return cls(name)
        reason = (
            "is not supported: set the subject itself"
            if name == _REFUSED
            else f"must be one of: {', '.join(cls)}"
        )
        raise ConfigError(f"{option} {reason}, not {text!r}")

    @property
    def needs_record(self) -> bool:
        """Whether the subject contains the name of the record."""
        return self is not SubjectNameStrategy.TOPIC_NAME

    def subject(self, topic: str, *, is_key: bool, record: str | None = None) -> str:
        """Return the subject of a topic's key or value; `record` is the record's full name.

        Raises ConfigError if the strategy needs a name and the schema has none, as that of a
        string.
        """
        if self is SubjectNameStrategy.TOPIC_NAME:
            return f"{topic}-{'key' if is_key else 'value'}"
        if record is None:
            raise ConfigError(
                f"{self} needs the name of a record, and the schema of the "
                f"{'key' if is_key else 'value'} of topic {topic!r} is not one: use "
                f"{SubjectNameStrategy.TOPIC_NAME}, or set the subject itself"
            )
        return record if self is SubjectNameStrategy.RECORD_NAME else f"{topic}-{record}"
