"""The settings of the brokers that the tests start, as data.

Each node is broker and controller (KRaft, combined mode). All delays are shortened: a rebalance
begins at once, a killed broker is detected after seconds, deleted topics free their disk space
soon, and transactions are aborted soon after their timeout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Listener(NamedTuple):
    """A node's listener: the address to which it binds, and the address that it advertises."""

    name: str
    bind: str
    advertised: str
    #: One of Kafka's security protocols; its other settings are properties like any other.
    protocol: str = "PLAINTEXT"


def node_properties(
    *,
    node_id: int,
    clients: Listener,
    brokers: Listener,
    controller: str,
    voters: dict[int, str],
    overrides: dict[str, str],
    proxied: Listener | None = None,
    secured: Sequence[Listener] = (),
) -> dict[str, str]:
    """Create the server.properties of one node.

    `brokers` is the listener for the other nodes; it may be the same as `clients`. `controller` is
    the address to bind, `voters` the address of every controller by node id. `overrides` take
    precedence; `{node_id}` in their values stands for the id. Clients of the listener `proxied`
    receive the addresses of proxies, and so remain behind them; `secured` are further listeners,
    each with its own protocol.
    """
    nodes = len(voters)
    replicas = {
        f"{topic}.replication.factor": str(nodes)
        for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    }
    known = dict.fromkeys((clients, brokers, proxied, *secured))
    listeners = [at for at in known if at is not None]
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{i}@{at}" for i, at in voters.items()),
        "controller.listener.names": "CONTROLLER",
        "listeners": ",".join(
            [*(f"{at.name}://{at.bind}" for at in listeners), f"CONTROLLER://{controller}"]
        ),
        "advertised.listeners": ",".join(f"{at.name}://{at.advertised}" for at in listeners),
        "listener.security.protocol.map": ",".join(
            [*(f"{at.name}:{at.protocol}" for at in listeners), "CONTROLLER:PLAINTEXT"]
        ),
        "inter.broker.listener.name": brokers.name,
        **replicas,
        "default.replication.factor": str(nodes),
        "min.insync.replicas": str(min(nodes, 2)),
        "transaction.state.log.min.isr": str(min(nodes, 2)),
        "share.coordinator.state.topic.min.isr": str(min(nodes, 2)),
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "6000",
        # An idle controller would write a record each 0.5 s, and take 1 % of a core for it.
        "metadata.max.idle.interval.ms": "0",
        "log.segment.delete.delay.ms": "1000",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        **{key: value.replace("{node_id}", str(node_id)) for key, value in overrides.items()},
    }


def to_text(properties: dict[str, str]) -> str:
    """Return the text of a server.properties file."""
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def to_environment(properties: dict[str, str]) -> dict[str, str]:
    """Return the properties as environment variables of Kafka's Docker image."""
    letters = str.maketrans({".": "_", "_": "__", "-": "___"})
    return {f"KAFKA_{key.translate(letters).upper()}": value for key, value in properties.items()}
