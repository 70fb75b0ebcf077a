"""The state of a Schema Registry as a text, which a data directory keeps.

    {"version": 1, "last_ids": {".": 2}, "configs": {"": {"compatibility": "FULL"}},
     "modes": {"orders-value": "READONLY"},
     "schemas": [{"subject": "orders-value", "version": 1, "id": 1, "schema": "...",
                  "references": [...], "metadata": {...}, "ruleSet": {...}, "deleted": true}]}

The key of a setting is the name of its subject or context, or nothing for the default context. A
text that another program has changed is checked as a whole before any of it is used.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.devbroker.registry.registry_errors import RegistryError
from spark_kafka_sink.devbroker.registry.registry_state import (
    Mode,
    Reference,
    RegistryState,
    SchemaVersion,
    SubjectConfig,
)
from spark_kafka_sink.devbroker.registry.schema_compatibility import CompatibilityLevel

if TYPE_CHECKING:
    from collections.abc import Mapping

_VERSION: Final = 1
#: What a text of any other content raises.
_MALFORMED: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError, RegistryError)


def encode_state(state: RegistryState) -> bytes:
    """Return the text of a state."""
    content = {
        "version": _VERSION,
        "last_ids": dict(state.last_ids),
        "configs": {
            key: {
                "compatibility": config.compatibility_level,
                "compatibilityGroup": config.compatibility_group,
                "normalize": config.normalize,
                "validateNewSchemas": config.validate_new_schemas,
            }
            for key, config in state.configs.items()
        },
        "modes": dict(state.modes),
        "schemas": [
            {
                "subject": version.subject,
                "version": version.version,
                "id": version.schema_id,
                "schema": version.text,
                "references": [reference._asdict() for reference in version.references],
                "metadata": version.metadata,
                "ruleSet": version.rule_set,
                "deleted": version.deleted,
            }
            for versions in state.subjects.values()
            for version in versions.values()
        ],
    }
    return json.dumps(content).encode()


def decode_state(text: bytes) -> RegistryState:
    """Return the state that a text describes. Raises ValueError."""
    try:
        return _decode(json.loads(text))
    except _MALFORMED as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _decode(content: Mapping[str, Any]) -> RegistryState:
    if content["version"] != _VERSION:
        raise ValueError(f"version {content['version']} is not supported")
    subjects: dict[str, dict[int, SchemaVersion]] = {}
    for value in content["schemas"]:
        version = _version(value)
        if version.version in subjects.setdefault(version.subject, {}):
            raise ValueError(f"{version.subject} has version {version.version} twice")
        subjects[version.subject][version.version] = version
    state = RegistryState(
        subjects={name: dict(sorted(known.items())) for name, known in subjects.items()},
        configs={str(key): _config(value) for key, value in content["configs"].items()},
        modes={str(key): Mode(value) for key, value in content["modes"].items()},
        last_ids={str(key): int(value) for key, value in content["last_ids"].items()},
    )
    # Only now: a schema may refer to any other.
    return replace(
        state,
        subjects={
            name: {number: state.with_fingerprint(version) for number, version in known.items()}
            for name, known in state.subjects.items()
        },
    )


def _version(value: Mapping[str, Any]) -> SchemaVersion:
    return SchemaVersion(
        subject=str(value["subject"]),
        version=_positive(value["version"]),
        schema_id=_positive(value["id"]),
        text=str(value["schema"]),
        references=tuple(
            Reference(
                str(reference["name"]), str(reference["subject"]), _positive(reference["version"])
            )
            for reference in value["references"]
        ),
        metadata=_object(value["metadata"]),
        rule_set=_object(value["ruleSet"]),
        deleted=value["deleted"] is True,
    )


def _config(value: Mapping[str, Any]) -> SubjectConfig:
    level = value["compatibility"]
    return SubjectConfig(
        compatibility_level=None if level is None else CompatibilityLevel(level),
        compatibility_group=value["compatibilityGroup"],
        normalize=value["normalize"],
        validate_new_schemas=value["validateNewSchemas"],
    )


def _positive(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number of a version or an id")
    return value


def _object(value: Any) -> Any:
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{value!r} is not an object")
    return value
