"""The cost of encryption: the bare producer over SASL_SSL (SCRAM-SHA-256) against PLAINTEXT.

And against confluent-kafka over both. The broker is started for this run, with new certificates;
each trial connects and authenticates again.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bare_producer import PARTITIONS
from benchmarks.confluent_loop import produce_all
from benchmarks.measuring import Trial, contest, heading, progress, table, trial, verdict
from benchmarks.payloads import (
    BATCH_ROWS,
    RECORD_BYTES,
    documents,
    record_batch,
    repeated_documents,
)
from benchmarks.setting import check_count, processes_of
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.record.arrow.record_columns import record_columns
from tests.support.kafka.kafka_docker import DockerNodes
from tests.support.kafka.kafka_files import KAFKA_4
from tests.support.kafka.process_nodes import ProcessNodes
from tests.support.kafka.real_kafka import start_kafka
from tests.support.security.certificates import Certificates
from tests.support.security.secured import sasl, tls
from tests.support.security.secured_kafka import (
    PASSWORD,
    USER,
    address,
    create_scram_users,
    secured_properties,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.setting import Setting
    from tests.support.kafka.real_kafka import KafkaCluster
    from tests.support.security.certificates import Authority

OURS = "ours, from Arrow"
CONFLUENT = "confluent-kafka"
PLAINTEXT, SECURED = "PLAINTEXT", "SASL_SSL"
#: Number of rows that confluent-kafka writes for each row of ours.
CONFLUENT_SHARE = 0.5
#: Of our rate with PLAINTEXT.
TARGET = 0.9
_LISTENER = "SASLTLS"
_MECHANISM = "SCRAM-SHA-256"


def run(setting: Setting) -> None:
    """Measure both clients, without and with encryption."""
    # Created and cached here, so that it does not count towards any client's time.
    record_batch(key=False)
    documents(BATCH_ROWS, RECORD_BYTES)
    progress("starting Kafka with secured listeners")
    with tempfile.TemporaryDirectory(prefix="certificates-") as directory:
        certificates = Certificates(Path(directory))
        overrides, protocols = secured_properties(certificates)
        with start_kafka(
            KAFKA_4,
            overrides=overrides,
            secured=protocols,
            java_options=["-Xms1g", "-Xmx1g"],
            ways=(DockerNodes, partial(ProcessNodes, is_measured=True)),
        ) as kafka:
            create_scram_users(kafka)
            best = contest(
                _contestants(kafka, setting.rows, certificates.authority),
                rounds=setting.rounds,
            )
    heading(
        f"Bare producers with {SECURED} ({_MECHANISM}) and {PLAINTEXT}, records of "
        f"{RECORD_BYTES} bytes, lz4, acks=all, idempotent, best of {setting.rounds} rounds"
    )
    table(
        [
            "client",
            "million rows/s",
            "CPU s per million rows",
            "ratio to PLAINTEXT",
            "target",
            "ours / theirs",
        ],
        [
            [
                _name(client, protocol),
                f"{result.rate:.2f}",
                f"{result.cpu_per_million:.2f}",
                f"{ratio:.2f}",
                verdict(ratio, at_least=TARGET) if (client, protocol) == (OURS, SECURED) else "",
                f"{best[_name(OURS, protocol)].rate / result.rate:.1f}x",
            ]
            for client in (OURS, CONFLUENT)
            for protocol in (PLAINTEXT, SECURED)
            for result in [best[_name(client, protocol)]]
            for ratio in [result.rate / best[_name(client, PLAINTEXT)].rate]
        ],
    )


def _contestants(
    kafka: KafkaCluster, rows: int, authority: Authority
) -> dict[str, Callable[[], Trial]]:
    few, many = (
        max(BATCH_ROWS, int(rows * share) // BATCH_ROWS * BATCH_ROWS)
        for share in (CONFLUENT_SHARE, 1)
    )
    plain, secured = kafka.bootstrap_servers, address(kafka, _LISTENER)
    java = tls(authority, SECURED) | sasl(_MECHANISM, USER, PASSWORD, SECURED)
    librdkafka = {
        "security.protocol": SECURED,
        "sasl.mechanism": _MECHANISM,
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.pem": authority.pem,
    }
    return {
        _name(OURS, PLAINTEXT): _contestant(kafka, many, _ours, plain, {}),
        _name(OURS, SECURED): _contestant(kafka, many, _ours, secured, java),
        _name(CONFLUENT, PLAINTEXT): _contestant(kafka, few, _confluent, plain, {}),
        _name(CONFLUENT, SECURED): _contestant(kafka, few, _confluent, secured, librdkafka),
    }


def _name(client: str, protocol: str) -> str:
    return f"{client}, {protocol}"


def _contestant(
    kafka: KafkaCluster,
    rows: int,
    client: Callable[[str, str, int, Mapping[str, str]], None],
    servers: str,
    security: Mapping[str, str],
) -> Callable[[], Trial]:
    def run_trial() -> Trial:
        topic = kafka.create_topic(PARTITIONS)
        with trial(rows, exclude=processes_of(kafka)) as result:
            client(servers, topic, rows, security)
        check_count(kafka, topic, rows)
        kafka.delete_topics([topic])
        return result

    return run_trial


def _ours(servers: str, topic: str, rows: int, security: Mapping[str, str]) -> None:
    batch = record_batch(key=False)
    config = ProducerConfig.from_mapping(
        {"bootstrap.servers": servers, "compression.type": "lz4", **security}
    )
    with KafkaProducer(config, lingers=False) as producer:
        for first_row in range(0, rows, BATCH_ROWS):
            producer.append(record_columns(batch, topic=topic), first_row=first_row)


def _confluent(servers: str, topic: str, rows: int, security: Mapping[str, str]) -> None:
    produce_all(servers, topic, repeated_documents(rows), codec="lz4", security=security)
