"""`python -m spark_kafka_sink.devbroker`: a broker in a process of its own.

The first line on standard output says where it listens, and is the only one:

    listening on 127.0.0.1:34567

It runs until SIGINT or SIGTERM and then ends with exit code 0. Records live in memory.
"""

from __future__ import annotations

import argparse
import sys

from spark_kafka_sink.devbroker.broker import Broker
from spark_kafka_sink.devbroker.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.listener import LOOPBACK, Listener
from spark_kafka_sink.devbroker.refusal import RefusedError
from spark_kafka_sink.devbroker.server import Server, run_until_signal


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spark_kafka_sink.devbroker",
        description="A Kafka-compatible broker for development. Records are kept in memory.",
    )
    parser.add_argument(
        "--host", default=LOOPBACK, help="address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--port", type=int, default=9092, help="port; 0 is any free one (default: %(default)s)"
    )
    parser.add_argument(
        "--advertised-host", help="host that clients are told to connect to (default: --host)"
    )
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        type=_topic,
        metavar="NAME[:PARTITIONS]",
        help="create a topic; may be given several times",
    )
    parser.add_argument(
        "--no-auto-create-topics",
        action="store_true",
        help="do not create topics that clients ask for",
    )
    parser.add_argument(
        "--transaction-version",
        type=int,
        choices=(0, 2),
        default=BrokerSettings().transaction_version,
        help="level of the feature transaction.version: 2 as Kafka 4, 0 as older ones "
        "(default: %(default)s)",
    )
    return parser


def _topic(text: str) -> tuple[str, int]:
    name, _, partitions = text.partition(":")
    try:
        return name, int(partitions or 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{partitions!r} is not a number of partitions") from None


def main() -> int:
    """Run until a signal; return the exit code."""
    arguments = _parser().parse_args()
    settings = BrokerSettings(
        auto_create_topics=not arguments.no_auto_create_topics,
        transaction_version=arguments.transaction_version,
    )
    server = Server(Broker(settings=settings))

    listener = Listener(
        host=arguments.host, port=arguments.port, advertised_host=arguments.advertised_host
    )

    def on_listening(ports: list[int]) -> None:
        for name, partitions in arguments.topic:
            server.broker.cluster.create_topic(
                name, partitions=partitions, config=settings.topic_defaults
            )
        sys.stdout.write(f"listening on {arguments.host}:{ports[0]}\n")
        sys.stdout.flush()

    try:
        run_until_signal(server, [listener], on_listening)
    except (OSError, RefusedError) as error:
        sys.stderr.write(f"cannot start: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
