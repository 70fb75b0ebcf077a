"""`pykafka-devbroker` or `python -m spark_kafka_sink.devbroker`: a broker in its own process.

It prints a line to standard output, the address on which it listens:

    listening on 127.0.0.1:34567

With `--schema-registry` a second line has the address of the Schema Registry:

    schema registry at http://127.0.0.1:8081

With several brokers the first line lists all addresses, separated by commas, in the format of
bootstrap.servers. With `--listener`, unless there is a single PLAINTEXT listener, each address has
its security protocol in front:

    listening on SSL://127.0.0.1:34567,SASL_SSL://127.0.0.1:34568

The broker runs until SIGINT or SIGTERM and then exits with code 0. Records live in memory, or
in `--data-dir`.

With a command as the first argument, such as `pykafka-devbroker stop 2`, it controls the brokers of
a process that runs; see `net.control`.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.brokers.clusters import cluster_of, usual_replication_factor
from spark_kafka_sink.devbroker.net.connection import request_logger
from spark_kafka_sink.devbroker.net.control import (
    NODE_COMMANDS,
    STATUS,
    ControlServer,
    find_socket,
    runtime_directory,
    send_command,
)
from spark_kafka_sink.devbroker.net.faults import ACTIONS, parse_fault
from spark_kafka_sink.devbroker.net.listener import (
    add_listener_arguments,
    exposure_warnings,
    listeners_of,
    registry_listeners_of,
)
from spark_kafka_sink.devbroker.net.server import ClusterServer, run_until_signal
from spark_kafka_sink.devbroker.registry.schema_registry import SchemaRegistry
from spark_kafka_sink.devbroker.server_properties import ServerProperties, add_property_arguments
from spark_kafka_sink.errors import ConfigError, KafkaError
from spark_kafka_sink.model import SecurityProtocol
from spark_kafka_sink.version import add_version, program_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.devbroker.net.listener import Listener


def parser() -> argparse.ArgumentParser:
    """Build the command line parser."""
    argument_parser = argparse.ArgumentParser(
        prog=program_name("pykafka-devbroker", "spark_kafka_sink.devbroker"),
        description="A Kafka-compatible broker for development.",
        epilog=f"A command ({', '.join(NODE_COMMANDS)} NODE, or {STATUS}) controls the brokers of "
        "a process that runs; stop --help says more.",
    )
    add_version(argument_parser)
    add_listener_arguments(argument_parser)
    add_property_arguments(argument_parser)
    argument_parser.add_argument(
        "--brokers",
        type=_positive,
        default=1,
        metavar="NUMBER",
        help="number of brokers, on consecutive ports from --port (default: %(default)s)",
    )
    argument_parser.add_argument(
        "--racks",
        type=lambda text: tuple(text.split(",")),
        default=(),
        metavar="RACK,...",
        help="rack of each broker; consumers in another rack than the leader's are sent to a "
        "follower in their own",
    )
    argument_parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIRECTORY",
        help="store topics and records there, in Kafka's file format (default: in memory)",
    )
    argument_parser.add_argument(
        "--schema-registry",
        metavar="[PROTOCOL://HOST:]PORT",
        help="also run a Schema Registry on this port of --host, or on this address, where SASL is "
        "basic authentication with the users of --sasl-users-file; 0 means any free port. Its "
        "schemas live where the records do",
    )
    argument_parser.add_argument(
        "--topic",
        action="append",
        default=[],
        type=_topic,
        metavar="NAME[:PARTITIONS[:SETTING=VALUE]...]",
        help="create a topic, unless it exists in --data-dir; may be given several times. Topics "
        "keep records of any age unless retention.ms is set",
    )
    argument_parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="API:ACTION[:TIMES]",
        help="inject a fault into the handling of an API, always or TIMES times; ACTION is one of "
        f"{', '.join(ACTIONS)}; produce:drop-answer:3 appends three times without a response; "
        "may be given several times",
    )
    argument_parser.add_argument(
        "--log-requests", action="store_true", help="log each request to stderr"
    )
    argument_parser.add_argument(
        "--no-auto-create-topics",
        action="store_true",
        help="do not create topics on demand",
    )
    argument_parser.add_argument(
        "--authorizer",
        action="store_true",
        help="allow clients only what ACLs allow, as Kafka's StandardAuthorizer",
    )
    argument_parser.add_argument(
        "--super-users",
        type=lambda text: tuple(filter(None, map(str.strip, text.split(";")))),
        default=(),
        metavar="USER;...",
        help="principals that may do everything, such as User:admin; User:ANONYMOUS is a client "
        "that does not authenticate",
    )
    argument_parser.add_argument(
        "--allow-everyone-if-no-acl-found",
        action="store_true",
        help="let everyone use resources that have no ACLs",
    )
    argument_parser.add_argument(
        "--transaction-version",
        type=int,
        choices=(0, 2),
        default=BrokerSettings().transaction_version,
        help="level of the feature transaction.version: 2 as in Kafka 4, 0 as in older versions "
        "(default: %(default)s)",
    )
    return argument_parser


def control_parser() -> argparse.ArgumentParser:
    """Build the parser of a command for a running process."""
    lines = [f"  {command:8}{text}" for command, text in NODE_COMMANDS.items()]
    argument_parser = argparse.ArgumentParser(
        prog=program_name("pykafka-devbroker", "spark_kafka_sink.devbroker"),
        description="Control the brokers of a pykafka-devbroker that this user runs.",
        epilog="\n".join(["commands:", *lines, f"  {STATUS:8}show what each broker does"]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    argument_parser.add_argument(
        "command", choices=[*NODE_COMMANDS, STATUS], metavar="COMMAND", help="one of those below"
    )
    argument_parser.add_argument(
        "node", nargs="?", type=int, metavar="NODE", help=f"the broker's id, but for {STATUS}"
    )
    argument_parser.add_argument(
        "--port", type=int, help="the first port of the process, if several are running"
    )
    return argument_parser


def _control(arguments: Sequence[str]) -> int:
    """Send a command to a running process; return the exit code."""
    argument_parser = control_parser()
    options = argument_parser.parse_args(arguments)
    words = [options.command]
    if options.command != STATUS:
        if options.node is None:
            argument_parser.error(f"{options.command} needs the id of a broker")
        words.append(str(options.node))
    elif options.node is not None:
        argument_parser.error(f"{STATUS} is that of all brokers: leave out {options.node}")
    try:
        path = find_socket(runtime_directory(os.environ), options.port)
        sys.stdout.write(f"{send_command(path, *words)}\n")
    except (KafkaError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


class _Topic(NamedTuple):
    """A topic to create."""

    name: str
    partitions: int
    configs: dict[str, str]


def _topic(text: str) -> _Topic:
    name, *rest = text.split(":")
    try:
        partitions = int(rest[0]) if rest and rest[0] else 1
    except ValueError:
        raise argparse.ArgumentTypeError(f"{rest[0]!r} is not a number of partitions") from None
    configs = {}
    for setting in rest[1:]:
        key, separator, value = setting.partition("=")
        if not separator:
            raise argparse.ArgumentTypeError(f"{setting!r} must be SETTING=VALUE")
        configs[key] = value
    return _Topic(name, partitions, configs)


def _addresses(server: ClusterServer, listeners: Sequence[Listener]) -> str:
    """Return the addresses for clients, with security protocols unless there is only PLAINTEXT."""
    if [listener.security_protocol for listener in listeners] == [SecurityProtocol.PLAINTEXT]:
        return server.bootstrap_servers(listeners[0].name)
    return ",".join(
        f"{listener.security_protocol}://{address}"
        for listener in listeners
        for address in server.addresses(listener.name).values()
    )


def _schema_registry(server: ClusterServer, listener: Listener) -> SchemaRegistry:
    """Return a registry that will run beside the brokers."""
    cluster = server.cluster
    limits = cluster.settings.connection_limits
    registry = SchemaRegistry(listener, limits, lambda: cluster.data)
    server.companion = registry.serve
    return registry


def _settings(options: argparse.Namespace, properties: ServerProperties) -> BrokerSettings:
    """Return the settings of the brokers. Raises ConfigError."""
    settings = BrokerSettings(
        default_replication_factor=usual_replication_factor(options.brokers),
        transaction_version=options.transaction_version,
        authorizer=options.authorizer,
        super_users=options.super_users,
        allow_everyone_if_no_acl_found=options.allow_everyone_if_no_acl_found,
        racks=options.racks,
        # Records of demos and tests have event times of any age.
        topic_defaults=TopicConfig(retention_ms=-1),
    )
    settings = properties.settings(settings, options.brokers)
    if options.no_auto_create_topics:
        settings = replace(settings, auto_create_topics=False)
    return settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal arrives, or control a process that runs; return the exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
    if arguments and arguments[0] in {*NODE_COMMANDS, STATUS}:
        return _control(arguments)
    return _run(parser().parse_args(arguments))


def _run(options: argparse.Namespace) -> int:
    try:
        properties = ServerProperties.of(options)
        settings = _settings(options, properties)
        data_dir = options.data_dir or properties.data_dir
        cluster = cluster_of(settings, options.brokers, data_dir=data_dir)
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"cannot start: {error}\n")
        return 1
    server = ClusterServer(cluster)

    def on_listening() -> None:
        for topic in options.topic:
            if data_dir is None or server.cluster.topic(topic.name) is None:
                server.cluster.create_topic(
                    topic.name, partitions=topic.partitions, overrides=topic.configs
                )
        sys.stdout.write(f"listening on {_addresses(server, listeners)}\n")
        for registry in registries:
            sys.stdout.write(f"schema registry at {registry.url}\n")
        sys.stdout.flush()

    if options.log_requests:
        logging.basicConfig(format="%(asctime)s %(message)s")
        request_logger.setLevel(logging.INFO)
    try:
        for text in options.fault:
            fault = parse_fault(text)
            server.faults.on(fault.api_key, fault.action, times=fault.times)
        names = properties.apply_listeners(options)
        listeners = properties.named(listeners_of(options, os.environ), names)
        registry_listeners = registry_listeners_of(options, os.environ)
        exposed = exposure_warnings([*listeners, *registry_listeners])
        for warning in [*properties.warnings, *exposed]:
            sys.stderr.write(f"warning: {warning}\n")
        server.lay_out(listeners)
        registries = [_schema_registry(server, listener) for listener in registry_listeners]
        control = ControlServer(server, runtime_directory(os.environ))
        run_until_signal(server, on_listening, control)
    except (OSError, ConfigError, RefusedError) as error:
        sys.stderr.write(f"cannot start: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
