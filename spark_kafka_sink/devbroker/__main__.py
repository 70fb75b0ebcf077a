"""`python -m spark_kafka_sink.devbroker`: a broker in a process of its own.

The first line on standard output says where it listens, and is the only one:

    listening on 127.0.0.1:34567

With several brokers it names them all, separated by commas, as clients take bootstrap.servers.
It runs until SIGINT or SIGTERM and then ends with exit code 0. Records live in memory.
"""

from __future__ import annotations

import argparse
import sys

from spark_kafka_sink.devbroker.broker import brokers_of, usual_replication_factor
from spark_kafka_sink.devbroker.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.listener import LOOPBACK, Listener
from spark_kafka_sink.devbroker.refusal import RefusedError
from spark_kafka_sink.devbroker.server import ClusterServer, run_until_signal


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
        "--brokers",
        type=_positive,
        default=1,
        metavar="NUMBER",
        help="brokers of the cluster, on ports from --port on (default: %(default)s)",
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


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


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
        default_replication_factor=usual_replication_factor(arguments.brokers),
        transaction_version=arguments.transaction_version,
    )
    server = ClusterServer(brokers_of(settings, arguments.brokers))

    listener = Listener(
        host=arguments.host, port=arguments.port, advertised_host=arguments.advertised_host
    )

    def on_listening() -> None:
        for name, partitions in arguments.topic:
            server.cluster.create_topic(name, partitions=partitions, config=settings.topic_defaults)
        sys.stdout.write(f"listening on {server.bootstrap_servers(listener.name)}\n")
        sys.stdout.flush()

    try:
        server.lay_out([listener])
        run_until_signal(server, on_listening)
    except (OSError, RefusedError) as error:
        sys.stderr.write(f"cannot start: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
