"""The writers of a soak: producers with different settings, each with its own topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.soaking.send_writer import SendWriter
from tests.support.soaking.steady_writer import SteadyWriter
from tests.support.soaking.transactional_writer import TransactionalWriter

if TYPE_CHECKING:
    from tests.support.kafka.proxied_kafka import ProxiedKafka
    from tests.support.soaking.steady_writer import Writer

PARTITIONS = 6

#: Small batches make many requests. Requests to a silent broker time out after seconds; no fault of
#: the plan lasts as long as delivery.timeout.ms.
_COMMON = {
    "batch.size": 2048,
    "request.timeout.ms": 3_000,
    "delivery.timeout.ms": 120_000,
    "max.block.ms": 120_000,
    "metadata.max.age.ms": 5_000,
    "socket.connection.setup.timeout.ms": 2_000,
}
_IN_FLIGHT = "max.in.flight.requests.per.connection"
_SETTINGS: dict[str, dict[str, object]] = {
    "bulk, uncompressed": {"compression.type": "none"},
    "bulk, zstd, one in flight": {"compression.type": "zstd", _IN_FLIGHT: 1},
    "bulk, little memory": {"compression.type": "lz4", "buffer.memory": 65_536},
}


def make_writers(kafka: ProxiedKafka, *, seed: int, pace: float = 1) -> dict[str, Writer]:
    """Create the writers and their topics, without starting them.

    At a `pace` of 1 they write 11,000 rows per second, in batches of at most forty. The one with
    little memory keeps its pace, so that it waits for memory.
    """
    writers: dict[str, Writer] = {
        name: SteadyWriter(
            kafka,
            kafka.cluster.create_topic(PARTITIONS),
            rows_per_second=1500 * (1 if "buffer.memory" in settings else pace),
            most_rows=40,
            seed=seed,
            **{**_COMMON, **settings},
        )
        for name, settings in _SETTINGS.items()
    }
    writers["bulk, three threads"] = SteadyWriter(
        kafka,
        kafka.cluster.create_topic(PARTITIONS),
        threads=3,
        rows_per_second=3000 * pace,
        most_rows=40,
        seed=seed,
        **_COMMON,
    )
    writers["row by row"] = SendWriter(
        kafka,
        kafka.cluster.create_topic(PARTITIONS),
        threads=2,
        rows_per_second=2000 * pace,
        most_rows=40,
        seed=seed,
        **{**_COMMON, "linger.ms": 5},
    )
    writers["in transactions"] = TransactionalWriter(
        kafka,
        kafka.cluster.create_topic(PARTITIONS),
        rows_per_second=1500 * pace,
        most_rows=40,
        seed=seed,
        **{**_COMMON, "transactional.id": "soak"},
    )
    return writers
