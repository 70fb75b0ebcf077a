"""Apache Kafka's own command-line tools, as independent clients.

Their version is always the newest, whatever the broker's: its clients support all brokers since
2.1.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests.support.kafka.kafka_files import KAFKA_4, java_command, kafka_jars
from tests.support.kafka.prepared_release import quick_options
from tests.support.kafka.readers import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECONDS = 120
_NULL = "<null>"


def run_java_tool(class_name: str, *arguments: str, stdin: str = "") -> str:
    """Run the main class of a tool; return its output.

    Raises KafkaUnavailableError if Java or Kafka's jars are not available, and CalledProcessError
    with the tool's output if it fails.
    """
    classes = ["-cp", f"{kafka_jars(KAFKA_4)}/*", class_name]
    command = [java_command(), *quick_options(KAFKA_4), *classes, *arguments]
    done = subprocess.run(  # noqa: S603  # our own command
        command, input=stdin, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode != 0:
        error = subprocess.CalledProcessError(done.returncode, class_name)
        error.add_note(done.stdout[-2000:] + done.stderr[-4000:])
        raise error
    return done.stdout


def produce_with_java(bootstrap_servers: str, topic: str, values: Mapping[str, str]) -> None:
    """Write keys and values, texts without tabs and newlines, with Java's console producer."""
    options = ("parse.key=true", "key.separator=\t")
    run_java_tool(
        "org.apache.kafka.tools.ConsoleProducer",
        *("--bootstrap-server", bootstrap_servers, "--topic", topic),
        *(argument for option in options for argument in ("--reader-property", option)),
        stdin="".join(f"{key}\t{value}\n" for key, value in values.items()),
    )


def consume_with_java(bootstrap_servers: str, topic: str, count: int) -> list[Record]:
    """Read `count` records with Java's console consumer, in the order of (partition, offset).

    Keys, values and headers must be texts without tabs; header names without colons and commas.
    """
    options = [
        f"print.{field}=true" for field in ("timestamp", "partition", "offset", "headers", "key")
    ]
    options += ["key.separator=\t", "headers.separator=,", f"null.literal={_NULL}"]
    output = run_java_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap_servers, "--topic", topic, "--from-beginning"),
        *("--max-messages", str(count), "--timeout-ms", str(_SECONDS * 1000 // 2)),
        *(argument for option in options for argument in ("--formatter-property", option)),
    )
    records = [_parse(topic, line) for line in output.splitlines()]
    return sorted(records, key=lambda record: (record.partition, record.offset))


def _parse(topic: str, line: str) -> Record:
    timestamp, partition, offset, headers, key, value = line.split("\t")
    return Record(
        topic=topic,
        partition=int(partition.removeprefix("Partition:")),
        offset=int(offset.removeprefix("Offset:")),
        timestamp=int(timestamp.removeprefix("CreateTime:")),
        key=_bytes(key),
        value=_bytes(value),
        headers=()
        if headers == "NO_HEADERS"
        else tuple(
            (name, _bytes(header))
            for name, _, header in (text.partition(":") for text in headers.split(","))
        ),
    )


def _bytes(text: str) -> bytes | None:
    return None if text == _NULL else text.encode()
