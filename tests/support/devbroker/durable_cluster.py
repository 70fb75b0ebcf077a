"""An embedded broker with a data directory, which can be closed or killed, and reopened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.broker import Broker
from spark_kafka_sink.devbroker.cluster.standalone_cluster import StandaloneCluster
from tests.support.devbroker.broker_requests import NOW

if TYPE_CHECKING:
    from pathlib import Path


class DurableCluster:
    """A data directory, and the broker that has it open."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path = path
        self.settings = BrokerSettings(**settings)
        self.now = NOW
        self.broker = self.open()

    def open(self) -> Broker:
        """Open the directory, which no other broker may have open."""
        cluster = StandaloneCluster(settings=self.settings, data_dir=self.path)
        cluster.open(self.now)
        broker = Broker(cluster=cluster)
        broker.advertise("127.0.0.1", 9092)
        cluster.elect(self.now)
        broker.tick(self.now)
        self.broker = broker
        return broker

    def restart(self) -> Broker:
        """Close the broker cleanly and open the next one."""
        self.close()
        return self.open()

    def kill(self) -> Broker:
        """Kill the broker, which does not close anything, and open the next one."""
        self.end()
        return self.open()

    def end(self) -> None:
        """Kill the broker, which does not close anything."""
        data = self.broker.cluster.logs.data
        if data is not None:
            data.close()

    def close(self) -> None:
        """Close the broker cleanly."""
        self.broker.cluster.close(self.now)
