"""What all examples share: which Kafka to use.

An example runs against the embedded broker, which it starts itself, unless `--bootstrap-servers`
names another Kafka. There its topic has to exist, or the broker has to create topics by itself.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker import DevBroker

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def kafka_for(topic: str, *, partitions: int) -> Iterator[str]:
    """Read the command line; give the address of a Kafka as long as it is needed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap-servers", help="a Kafka to use (default: the embedded broker)")
    given = parser.parse_args().bootstrap_servers
    if given is not None:
        yield given
        return
    with DevBroker(topics={topic: partitions}) as broker:
        yield broker.bootstrap_servers
