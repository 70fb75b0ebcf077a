"""Row by row: `KafkaProducer.send` against confluent-kafka's tuned `produce()` loop.

Both send the same existing objects with acks=all, idempotence, no keys and the same linger. Ours
returns a future for each record, which is not awaited; confluent-kafka has no delivery reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.confluent_loop import LINGER_MS, produce_all
from benchmarks.measuring import Trial, contest, heading, table, trial, verdict
from benchmarks.payloads import BATCH_ROWS, RECORD_BYTES, documents, repeated_documents
from spark_kafka_sink.producer.kafka_producer import KafkaProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.setting import Setting

PARTITIONS = 6
OURS = "ours, send()"
CONFLUENT = "confluent-kafka"
CODECS = ("lz4", "none")
#: With lz4.
TARGET = 1.5


def run(setting: Setting) -> None:
    """Measure both clients with each codec."""
    # Created and cached here, so that it does not count towards any client's time.
    documents(BATCH_ROWS, RECORD_BYTES)
    rows = setting.rows // 2
    results = []
    for codec in CODECS:
        contestants = {
            OURS: _contestant(setting, rows, codec, _send_all),
            CONFLUENT: _contestant(setting, rows, codec, produce_all),
        }
        best = contest(contestants, rounds=setting.rounds)
        ratio = best[OURS].rate / best[CONFLUENT].rate
        results.append(
            [
                codec,
                *(f"{result.rate:.2f}" for result in best.values()),
                f"{ratio:.2f}x",
                verdict(ratio, at_least=TARGET) if codec == "lz4" else "",
                " / ".join(f"{result.cpu_per_million:.2f}" for result in best.values()),
            ]
        )
    heading(
        f"Row by row, {rows:,} records of {RECORD_BYTES} bytes, acks=all, idempotent, "
        f"best of {setting.rounds} rounds, million rows/s"
    )
    table(
        ["codec", OURS, CONFLUENT, "ours / theirs", "target", "CPU s per million rows"],
        results,
    )
    print(f"CPU seconds are in the order of the columns ({OURS}, {CONFLUENT}).")


def _contestant(
    setting: Setting, rows: int, codec: str, send_all: Callable[..., None]
) -> Callable[[], Trial]:
    def write() -> Trial:
        topic = setting.kafka.create_topic(PARTITIONS)
        servers = setting.kafka.bootstrap_servers
        with trial(rows, exclude=setting.broker_processes) as result:
            send_all(servers, topic, repeated_documents(rows), codec=codec)
        setting.check_count(topic, rows)
        setting.kafka.delete_topics([topic])
        return result

    return write


def _send_all(bootstrap_servers: str, topic: str, values: Iterable[bytes], *, codec: str) -> None:
    config = {
        "bootstrap.servers": bootstrap_servers,
        "compression.type": codec,
        "linger.ms": LINGER_MS,
    }
    with KafkaProducer(config) as producer:
        send = producer.send
        for value in values:
            send(topic, value)
