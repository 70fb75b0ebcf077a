"""The two kinds of clusters: one broker with its logs, or several that replicate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.broker import Broker
from spark_kafka_sink.devbroker.cluster.standalone_cluster import StandaloneCluster
from spark_kafka_sink.errors import ConfigError, KafkaError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
    from spark_kafka_sink.devbroker.brokers.replicated_cluster import ReplicatedCluster
    from spark_kafka_sink.devbroker.log.data_directory import DataDirectory
    from spark_kafka_sink.model import TopicPartition


class SingleBroker(StandaloneCluster):
    """A cluster of one broker, which can start and stop."""

    def __init__(self, settings: BrokerSettings, data_dir: Path | None = None) -> None:
        """Create a broker that does not run yet. Raises ConfigError."""
        super().__init__(settings=settings, data_dir=data_dir)
        self.brokers = [Broker(cluster=self)]

    @property
    def data(self) -> DataDirectory | None:
        """The directory of the cluster, while it is open."""
        return self.logs.data

    def start(self, node_ids: Collection[int], now: float) -> None:
        """Make the broker lead, once its listeners have addresses."""
        del node_ids
        self.elect(now)

    def begin_stop(self, node_id: int, now: float) -> bool:
        """Record that the broker stops, which needs no approval."""
        del node_id, now
        self.fence()
        return True

    def stop_broker(self, node_id: int, now: float) -> None:
        """Do nothing more: the logs stay open."""

    def kill_broker(self, node_id: int, now: float) -> None:
        """Raise KafkaError: no other broker could take over."""
        del node_id, now
        raise _needs_several("kill")

    def pause_broker(self, node_id: int, now: float) -> None:
        """Raise KafkaError: no other broker could take over."""
        del node_id, now
        raise _needs_several("pause")

    def resume_broker(self, node_id: int, now: float) -> None:
        """Raise KafkaError: the broker cannot be paused."""
        del node_id, now
        raise _needs_several("resume")

    def wipe_broker(self, node_id: int) -> None:
        """Raise KafkaError: there is no other replica."""
        del node_id
        raise _needs_several("wipe")

    def isr(self, topic_partition: TopicPartition) -> list[int]:
        """Return the in-sync replicas of a partition. Raises RefusedError."""
        return sorted(self.partition(topic_partition).leadership.isr)

    def end_offsets(self, topic_partition: TopicPartition) -> dict[int, int]:
        """Return where the log of each replica ends, by broker. Raises RefusedError."""
        end_offset = self.log(topic_partition).log_end_offset
        return dict.fromkeys(self.partition(topic_partition).replicas, end_offset)

    def cut(self, first: int, second: int) -> None:
        """Raise KafkaError: there is no link."""
        del first, second
        raise _needs_several("cut")

    def heal(self) -> None:
        """Raise KafkaError: there is no link."""
        raise _needs_several("heal")


def _needs_several(what: str) -> KafkaError:
    return KafkaError(f"{what} needs several brokers: write DevBroker(brokers=3)")


def cluster_of(
    settings: BrokerSettings, number: int, *, data_dir: Path | None = None
) -> SingleBroker | ReplicatedCluster:
    """Create the brokers of one cluster, with ids from that of the settings.

    Raises ConfigError if the settings have racks for another number of brokers.
    """
    if settings.racks and len(settings.racks) != number:
        raise ConfigError(
            f"racks must name one rack for each broker: {len(settings.racks)} for {number} brokers"
        )
    if settings.node_id < 0:
        raise ConfigError(f"node_id must be at least 0, not {settings.node_id}")
    if number == 1:
        return SingleBroker(settings, data_dir)
    # One broker starts without the modules of those that replicate, in half the time.
    from spark_kafka_sink.devbroker.brokers.replicated_cluster import ReplicatedCluster

    node_ids = range(settings.node_id, settings.node_id + number)
    return ReplicatedCluster(settings, node_ids, data_dir=data_dir)


def usual_replication_factor(brokers: int) -> int:
    """Return how many replicas a topic should have: three, or one per broker if there are fewer."""
    return min(brokers, 3)
