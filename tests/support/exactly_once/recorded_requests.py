"""A driver's calls of its client, as texts that `model_run` derives from the model as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.exactly_once.ledger_records import (
    GENERATION,
    WRITE,
    decode_key,
    decode_write,
)
from tests.support.exactly_once.model_run import (
    COMMIT_LEDGER,
    FENCE,
    LIST,
    MARKERS,
    READ,
    described,
    ended,
    entry,
    normal,
    written,
)

if TYPE_CHECKING:
    from spark_kafka_sink.admin.transaction_values import TransactionEnd
    from spark_kafka_sink.exactly_once.ledger_records import Winner
    from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
    from tests.support.exactly_once.exactly_once_world import Driver, World


class Names:
    """The model's names of the transactions that the tasks of a world have begun."""

    def __init__(self) -> None:
        """Begin without transactions."""
        self._names: dict[tuple[str, ProducerIdAndEpoch], str] = {}

    def add(self, winner: Winner, name: str) -> None:
        """Store the model's name of a transaction."""
        self._names[winner.transactional_id, winner.producer] = name

    def of(self, transactional_id: str, producer: ProducerIdAndEpoch) -> str:
        """Return the name of a transaction, which must have exactly this producer and epoch."""
        return self._names[transactional_id, producer]

    def of_id(self, transactional_id: str) -> str:
        """Return the name of a transactional id."""
        [name] = {name for (known, _), name in self._names.items() if known == transactional_id}
        return name.partition("@")[0]


class RecordedClient:
    """A driver's client that records each request to the cluster; an unknown one is an error."""

    def __init__(self, world: World, names: Names, client: Any) -> None:
        """Wrap a client."""
        self._client = client
        self._ledger = world.ledger
        self._prefix = world.prefix
        self._names = names
        self._requests: list[str] = []

    def take(self) -> list[str]:
        """Return the requests since the last call."""
        taken, self._requests = normal(self._requests), []
        return taken

    def _note(self, *requests: str) -> None:
        self._requests += requests

    def init_producer_id(self, transactional_id: str, **others: Any) -> ProducerIdAndEpoch:
        """Record a fence; a request for the driver's own next epoch fences no other driver."""
        assert f"{self._prefix}.ledger" == transactional_id
        if others.get("current") is None:
            self._note(FENCE)
        return self._client.init_producer_id(transactional_id, **others)

    def _read(self, call: str, place: TopicPartition, *arguments: Any, **others: Any) -> Any:
        self._note(READ if place.topic == self._ledger else MARKERS)
        return getattr(self._client, call)(place, *arguments, **others)

    def end_offset(self, place: TopicPartition, **others: Any) -> Any:
        """Record a read of the ledger, or a check of markers in the data."""
        return self._read("end_offset", place, **others)

    def start_offset(self, place: TopicPartition, **others: Any) -> Any:
        """Record a read of the ledger."""
        return self._read("start_offset", place, **others)

    def read_log(self, place: TopicPartition, *arguments: Any, **others: Any) -> Any:
        """Record a read of the ledger."""
        return self._read("read_log", place, *arguments, **others)

    def read_log_and_end(self, place: TopicPartition, *arguments: Any, **others: Any) -> Any:
        """Record a read of the ledger."""
        return self._read("read_log_and_end", place, *arguments, **others)

    def wait_until_stable(self, behind: Any, **others: Any) -> Any:
        """Record a check of markers."""
        self._note(MARKERS)
        return self._client.wait_until_stable(behind, **others)

    def list_transactions(self, *arguments: Any, **others: Any) -> Any:
        """Record a listing of open transactions."""
        assert ("Ongoing",) == others["states"]
        self._note(LIST)
        return self._client.list_transactions(*arguments, **others)

    def describe_transactions(self, transactional_ids: list[str], **others: Any) -> Any:
        """Record a description of transactional ids."""
        self._note(*described([self._names.of_id(one) for one in transactional_ids]))
        return self._client.describe_transactions(transactional_ids, **others)

    def describe_and_list(
        self, transactional_ids: list[str], *arguments: Any, **others: Any
    ) -> Any:
        """Record both: neither is sent only after the other."""
        assert ("Ongoing",) == others["states"]
        self._note(*described([self._names.of_id(one) for one in transactional_ids]), LIST)
        return self._client.describe_and_list(transactional_ids, *arguments, **others)

    def write_to_transaction(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        place: TopicPartition,
        records: Any,
        **others: Any,
    ) -> Any:
        """Record the entries that are written into the ledger."""
        assert (f"{self._prefix}.ledger", self._ledger) == (transactional_id, place.topic)
        entries = []
        for key, value in records:
            kind = decode_key(key).kind
            if kind == WRITE:
                record = decode_write(self._prefix, decode_key(key).write_id, value, {})
                winners = [
                    self._names.of(one.transactional_id, one.producer) for one in record.winners
                ]
                entries.append(entry(record.write.state.value, record.write.batch_id, winners))
            else:
                assert kind == GENERATION
                entries.append("claim")
        self._note(written(*entries))
        return self._client.write_to_transaction(
            transactional_id, producer, place, records, **others
        )

    def end_transaction(self, end: TransactionEnd, **others: Any) -> Any:
        """Record the end of the ledger's transaction."""
        assert (f"{self._prefix}.ledger", True) == (end.transactional_id, end.committed)
        self._note(COMMIT_LEDGER[0])
        return self._client.end_transaction(end, **others)

    def end_transactions(self, ends: list[TransactionEnd], **others: Any) -> Any:
        """Record the ends of tasks' transactions."""
        self._note(
            *(
                ended(self._names.of(one.transactional_id, one.producer), committed=one.committed)
                for one in ends
            )
        )
        return self._client.end_transactions(ends, **others)


def record(world: World, names: Names, driver: Driver) -> RecordedClient:
    """Make a driver use a client that records its requests."""
    client = RecordedClient(world, names, driver.admin)
    driver.ledger._admin = driver.protocol._admin = client  # type: ignore[assignment]
    return client
