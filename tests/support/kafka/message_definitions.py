"""The definitions of Kafka's messages, from the JSON files in the jar of its clients.

The fields of each message that has a class here are kept in `kafka_fields.json`, with which
`tests/unit/protocol/test_definitions.py` compares the classes. Run by hand, with Kafka 4.3.1:

    python -m tests.support.kafka.message_definitions KAFKA-CLIENTS.jar
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.network.wire_messages import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

FIELDS = Path(__file__).parents[2] / "unit" / "protocol" / "golden" / "kafka_fields.json"
_COMMENT = re.compile(r'^\s*//.*$|\s//[^"\n]*$', re.MULTILINE)
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_FACTS = ("type", "versions", "nullableVersions", "tag", "ignorable", "default")


def main(jar: str) -> None:
    """Write the fields of all messages."""
    with zipfile.ZipFile(jar) as archive:
        found = {
            each.__name__: _fields(archive.read(f"common/message/{each.__name__}.json").decode())
            for each in MESSAGES
        }
    lines = (f"{json.dumps(name)}: {json.dumps(fields)}" for name, fields in found.items())
    FIELDS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _fields(text: str) -> dict[str, dict[str, Any]]:
    """Return what is said of each field, by the names of the fields that lead to it."""
    definition = json.loads(_COMMENT.sub("", text))
    structs = {each["name"]: each["fields"] for each in definition.get("commonStructs", ())}

    def walk(fields: list[dict[str, Any]], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for field in fields:
            place = f"{path}{_WORD.sub('_', field['name']).lower()}"
            yield place, {fact: field[fact] for fact in _FACTS if fact in field}
            inner = field.get("fields") or structs.get(field["type"].removeprefix("[]"), [])
            yield from walk(inner, f"{place}.")

    return dict(walk(definition["fields"], ""))


if __name__ == "__main__":
    main(sys.argv[1])
