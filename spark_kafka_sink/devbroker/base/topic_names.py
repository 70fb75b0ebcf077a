"""The names that topics may have (Kafka's Topic)."""

from __future__ import annotations

import re

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.protocol.error_codes import ErrorCode

MAX_TOPIC_NAME_LENGTH = 249

_LEGAL_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def validate_topic_name(name: str) -> None:
    """Raise RefusedError with INVALID_TOPIC_EXCEPTION for a name that Topic.validate rejects."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in {".", ".."}:
        reason = f"{name!r} is not allowed"
    elif len(name) > MAX_TOPIC_NAME_LENGTH:
        reason = f"it has {len(name)} characters, and at most {MAX_TOPIC_NAME_LENGTH} are allowed"
    elif not _LEGAL_TOPIC_NAME.fullmatch(name):
        reason = f"{name!r} contains characters other than ASCII letters, digits, '.', '_' and '-'"
    else:
        return
    raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def collision_key(name: str) -> str:
    """Return a key shared by names whose metrics would collide (Topic.unifyCollisionChars)."""
    return name.replace(".", "_")
