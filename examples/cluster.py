"""The Kafka cluster that an example uses.

An example starts the embedded broker and runs against it, unless `--bootstrap-servers` is given.
The example's topics must then exist in that cluster, or the brokers must create topics on demand.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

from spark_kafka_sink.testing import DevBroker

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def kafka_for(*topics: str, partitions: int) -> Iterator[str]:
    """Parse the command line and yield the bootstrap servers of a running cluster."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap-servers", help="Kafka cluster (default: the embedded broker)")
    given = parser.parse_args().bootstrap_servers
    if given is not None:
        yield given
        return
    with DevBroker(topics=dict.fromkeys(topics, partitions)) as broker:
        yield broker.bootstrap_servers
