"""The definitions of Kafka's messages, from the JSON files in its jars.

The fields of each message, and of each record of a coordinator, that has a class of the same name
here are kept in `kafka_fields.json`, with which `tests/unit/protocol/test_definitions.py` compares
the classes. Run by hand, with the jars of Kafka 4.4.0 (clients, group coordinator):

    python -m tests.support.kafka.message_definitions DIRECTORY-OF-KAFKA-JARS
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.devbroker.groups import group_offsets, group_records
from tests.support.network.wire_messages import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The classes that are compared: all messages, and the values of records of groups. The
#: versions of keys are the numbers of their kinds.
DEFINED = [
    *MESSAGES,
    group_records.ConsumerGroupCurrentMemberAssignmentValue,
    group_records.ConsumerGroupMemberMetadataValue,
    group_records.ConsumerGroupMetadataValue,
    group_records.ConsumerGroupRegularExpressionValue,
    group_records.ConsumerGroupTargetAssignmentMemberValue,
    group_records.ConsumerGroupTargetAssignmentMetadataValue,
    group_records.GroupMetadataValue,
    group_offsets.OffsetCommitValue,
]
FIELDS = Path(__file__).parents[2] / "unit" / "protocol" / "golden" / "kafka_fields.json"
_COMMENT = re.compile(r'^\s*//.*$|\s//[^"\n]*$', re.MULTILINE)
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_FACTS = ("type", "versions", "nullableVersions", "tag", "ignorable", "default")


def main(directory: str) -> None:
    """Write the fields of all classes."""
    texts = dict(_definitions(Path(directory)))
    found = {each.__name__: _fields(texts[each.__name__]) for each in DEFINED}
    lines = (f"{json.dumps(name)}: {json.dumps(fields)}" for name, fields in found.items())
    FIELDS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _definitions(directory: Path) -> Iterator[tuple[str, str]]:
    for jar in directory.glob("kafka-*.jar"):
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if name.startswith("common/message/") and name.endswith(".json"):
                    yield Path(name).stem, archive.read(name).decode()


def _fields(text: str) -> dict[str, dict[str, Any]]:
    """Return what is said of each field, by the names of the fields that lead to it."""
    definition = json.loads(_COMMENT.sub("", text))
    structs = {each["name"]: each["fields"] for each in definition.get("commonStructs", ())}

    def walk(fields: list[dict[str, Any]], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for field in fields:
            place = f"{path}{_WORD.sub('_', field['name']).lower()}"
            # Versions that are left out are the tagged ones (Kafka's FieldSpec).
            stated = {"versions": field.get("taggedVersions"), **field}
            yield place, {fact: stated[fact] for fact in _FACTS if fact in stated}
            inner = field.get("fields") or structs.get(field["type"].removeprefix("[]"), [])
            yield from walk(inner, f"{place}.")

    return dict(walk(definition["fields"], ""))


if __name__ == "__main__":
    main(sys.argv[1])
