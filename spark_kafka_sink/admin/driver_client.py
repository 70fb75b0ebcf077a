"""A driver's requests about transactions, topics and groups: small, and blocking.

Every call has a timeout in seconds and is retried with back-off until then. Any thread may call;
calls run one at a time, over connections that remain open between them. The client is created in
the process that uses it, and never pickled.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.admin.blocking_client import BlockingClient
from spark_kafka_sink.admin.cluster_calls import Call, ClusterCalls, outcomes_of, raised
from spark_kafka_sink.admin.item_requests import request_items
from spark_kafka_sink.admin.records import (
    DEFAULT_MAX_BATCH_BYTES,
    read_chunk,
    transactional_batches,
)
from spark_kafka_sink.admin.requests.configs import (
    describe_topic_configs_call,
    described_topic_configs,
)
from spark_kafka_sink.admin.requests.partitions import (
    describe_producers_call,
    fetch_call,
    fetched_records,
    listed_offset,
    offset_call,
    open_producers,
)
from spark_kafka_sink.admin.requests.topics import create_topics_call, was_created
from spark_kafka_sink.admin.requests.transactions import (
    APIS_SINCE_3_0,
    add_partition_call,
    added_error,
    describing_transactions,
    end_transaction_call,
    ended_transaction,
    init_producer_id_call,
    list_all_transactions,
    produce_call,
    produced_error,
)
from spark_kafka_sink.admin.transaction_values import EndAnswer, end_answer, producer_error
from spark_kafka_sink.errors import BrokerError, KafkaError
from spark_kafka_sink.model import TRANSACTION_V2, OffsetAndMetadata, ProducerIdAndEpoch
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from spark_kafka_sink.record.key_values import LogSink, read_key_values

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from spark_kafka_sink.admin.records import KeyValue, PartitionChunk
    from spark_kafka_sink.admin.transaction_values import (
        OpenProducer,
        TransactionDescription,
        TransactionEnd,
        TransactionListing,
    )
    from spark_kafka_sink.admin.values import NewTopic
    from spark_kafka_sink.config.client_config import ClientConfig
    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.protocol.messages import fetch, list_offsets
    from spark_kafka_sink.protocol.messages.end_txn import EndTxnResponse
    from spark_kafka_sink.protocol.schema import ResponseT

#: The first pause, in seconds, before checking again whether a partition is stable.
_FIRST_PAUSE = 0.003
_UNKNOWN_ID = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
#: The largest decompressed batch that is read from a log, in bytes: four times the largest that
#: `transactional_batches` builds, since brokers may compress ours (a topic's compression.type). A
#: batch from any other producer cannot cost more memory than this.
_MAX_UNCOMPRESSED_BYTES = 4 * DEFAULT_MAX_BATCH_BYTES


class DriverClient(BlockingClient):
    """A blocking client for administrative requests. Use it as a context manager, or `close` it.

    Every call raises KafkaTimeoutError if it gets no final answer in time, BrokerError for an error
    that is not retriable, and UnsupportedVersionError for a broker that is too old.
    """

    def __init__(self, config: ClientConfig) -> None:
        super().__init__(config)
        self._config = config

    def reach(
        self, *, timeout: float, on_wait: Callable[[KafkaError], None] = lambda _: None
    ) -> None:
        """Wait until any broker answers, but only a few seconds if nothing is listening.

        `on_wait` is called once, with the reason, if the wait takes longer. Raises NetworkError, or
        AuthenticationError at once.
        """
        self._run(lambda calls, _: calls.reach(timeout, on_wait), timeout)

    def require_transaction_apis(self, needed_by: str, *, timeout: float) -> None:
        """Raise UnsupportedVersionError unless every broker can list and describe transactions.

        The error names the broker and the API, and ends with `needed_by`.
        """
        self._run(
            lambda calls, deadline: calls.require(APIS_SINCE_3_0, needed_by, deadline), timeout
        )

    # --- transactions of any producer

    def list_transactions(
        self,
        accepts: Callable[[str], bool],
        *,
        timeout: float,
        states: tuple[str, ...] = (),
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """List the transactional ids of all brokers for which `accepts` returns True.

        Without `states`, all states match. `pattern` (RE2J, for the whole id) expresses the same
        condition for brokers that support patterns (KIP-1152).
        """
        listed = self._run(partial(list_all_transactions, states=states, pattern=pattern), timeout)
        return [listing for listing in listed if accepts(listing.transactional_id)]

    def describe_transactions(
        self, transactional_ids: Sequence[str], *, timeout: float
    ) -> dict[str, TransactionDescription | None]:
        """Return descriptions of transactional ids; None for one that no coordinator knows."""
        return self._run(
            lambda calls, deadline: _describe(calls, transactional_ids, deadline), timeout
        )

    def describe_and_list(
        self,
        transactional_ids: Sequence[str],
        accepts: Callable[[str], bool],
        *,
        timeout: float,
        states: tuple[str, ...] = (),
        pattern: str | None = None,
    ) -> tuple[dict[str, TransactionDescription | None], list[TransactionListing]]:
        """Do what `describe_transactions` and `list_transactions` do, at the same time."""

        async def run(
            calls: ClusterCalls, deadline: float
        ) -> tuple[dict[str, TransactionDescription | None], list[TransactionListing]]:
            questions: list[Coroutine[Any, Any, Any]] = [
                _describe(calls, transactional_ids, deadline),
                list_all_transactions(calls, deadline, states=states, pattern=pattern),
            ]
            described, listed = await outcomes_of(questions)
            return raised(described), raised(listed)

        described, listed = self._run(run, timeout)
        return described, [each for each in listed if accepts(each.transactional_id)]

    def end_transactions(
        self, ends: Sequence[TransactionEnd], *, timeout: float
    ) -> list[EndAnswer | KafkaError]:
        """End transactions concurrently, each until its coordinator has given a final answer.

        Returns an answer for each, or the error because of which there is none.
        """

        async def run(calls: ClusterCalls, deadline: float) -> list[EndAnswer | KafkaError]:
            try:
                await calls.find_coordinators([end.transactional_id for end in ends], deadline)
            except KafkaError as error:
                return [error] * len(ends)
            requests = [end_transaction_call(end) for end in ends]
            answers = await calls.call_all(requests, deadline)
            return [
                _end_answer(answer, call.what)
                for call, answer in zip(requests, answers, strict=True)
            ]

        return self._run(run, timeout) if ends else []

    def end_transaction(self, end: TransactionEnd, *, timeout: float) -> EndAnswer:
        """End one transaction, like `end_transactions`, but raise its error."""
        [answer] = self.end_transactions([end], timeout=timeout)
        return raised(answer)

    def write_markers(
        self, end: TransactionEnd, partitions: Sequence[TopicPartition], *, timeout: float
    ) -> EndAnswer:
        """Make a producer without an open transaction end a transaction without records.

        The purpose is the markers that this writes to the partitions: they end whatever this
        producer has open there. It uses the rules of TV1, which allow such transactions; brokers
        accept them from older clients whichever rules they have.
        """

        async def run(calls: ClusterCalls, deadline: float) -> EndAnswer:
            for partition in partitions:
                add = add_partition_call(end.transactional_id, end.producer, partition)
                code = added_error(await calls.call(add, deadline))
                if code:
                    return end_answer(code, add.what)
            call = end_transaction_call(end._replace(transaction_version=0))
            return ended_transaction(await calls.call(call, deadline), call.what)

        return self._run(run, timeout)

    # --- transactions of this client

    def init_producer_id(
        self,
        transactional_id: str,
        *,
        transaction_timeout_ms: int,
        timeout: float,
        current: ProducerIdAndEpoch | None = None,
    ) -> ProducerIdAndEpoch:
        """Take over a transactional id: abort its open transaction and fence its producer.

        Returns when every transaction of the id has ended. With `current` it only requests the next
        epoch for the caller's own producer id. Raises ProducerFencedError if another producer has
        taken over.
        """
        call = init_producer_id_call(
            transactional_id, transaction_timeout_ms=transaction_timeout_ms, current=current
        )
        response = self._call(call, timeout)
        if response.error_code:
            raise producer_error(response.error_code, call.what)
        return ProducerIdAndEpoch(response.producer_id, response.producer_epoch)

    def transaction_version(self, *, timeout: float) -> int:
        """Return the transaction version of new transactions: 2 for TV2, less for TV1 (KIP-890)."""
        return self._run(lambda calls, deadline: calls.transaction_version(deadline), timeout)

    def write_to_transaction(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        topic_partition: TopicPartition,
        records: Sequence[KeyValue],
        *,
        now_ms: int,
        timeout: float,
    ) -> int:
        """Write records to one partition in a transaction that is left open.

        Returns the transaction version. The producer must not have written anything with this epoch
        before. Raises ProducerFencedError if another one has taken over.
        """

        async def run(calls: ClusterCalls, deadline: float) -> int:
            rules = await calls.transaction_version(deadline)
            if rules < TRANSACTION_V2:
                add = add_partition_call(transactional_id, producer, topic_partition)
                _check(added_error(await calls.call(add, deadline)), add.what)
            for batch in transactional_batches(records, producer=producer, timestamp_ms=now_ms):
                produce = produce_call(
                    transactional_id,
                    topic_partition,
                    memoryview(batch),
                    rules=rules,
                    timeout_ms=self._config.request_timeout_ms,
                )
                code = produced_error(await calls.call(produce, deadline))
                _check(code, produce.what)
            return rules

        return self._run(run, timeout)

    # --- topics

    def create_topic(self, topic: NewTopic, *, timeout: float) -> bool:
        """Create a topic; return False if one of that name exists already."""
        call = create_topics_call([topic], timeout_ms=int(timeout * 1000))
        return was_created(self._call(call, timeout))

    def topic_configs(self, topic: str, *, timeout: float) -> Mapping[str, str | None]:
        """Return a topic's settings by Kafka's names."""
        call = describe_topic_configs_call(topic)
        return described_topic_configs(self._call(call, timeout), call.what)

    def partition_count(self, topic: str, *, timeout: float, may_appear: bool = True) -> int:
        """Return the number of a topic's partitions.

        A topic that `may_appear`, because it was just created, is waited for until the timeout.
        """
        return self._run(
            lambda calls, deadline: calls.partition_count(topic, deadline, may_appear=may_appear),
            timeout,
        )

    # --- consumer groups

    def commit_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int], *, timeout: float
    ) -> Mapping[TopicPartition, BrokerError]:
        """Set offsets of a group from outside it: for each partition the next one to be read.

        Returns the partitions whose offset was refused, with the reason. A group that has members
        refuses all of them with UNKNOWN_MEMBER_ID: only members may commit.
        """
        # The messages of groups take long to import, and few drivers commit for one.
        from spark_kafka_sink.admin.requests.groups import (  # noqa: PLC0415
            commit_offsets_call,
            refused_offsets,
        )

        if not offsets:
            return {}
        committed = {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()}
        call = commit_offsets_call(group_id, committed)
        return refused_offsets(self._call(call, timeout), call.what)

    # --- contents of a partition

    def start_offset(self, topic_partition: TopicPartition, *, timeout: float) -> int:
        """Return the offset of the first record that has not been deleted."""
        return self._offset(topic_partition, EARLIEST_TIMESTAMP, timeout)

    def end_offset(self, topic_partition: TopicPartition, *, timeout: float) -> int:
        """Return the high watermark: every record before it has been replicated."""
        return self._offset(topic_partition, LATEST_TIMESTAMP, timeout)

    def last_stable_offset(self, topic_partition: TopicPartition, *, timeout: float) -> int:
        """Return the offset that read_committed consumers do not get past.

        That is the start of the first open transaction, or the high watermark if none is open.
        """
        return self._offset(topic_partition, LATEST_TIMESTAMP, timeout, is_committed=True)

    def wait_until_stable(
        self, offsets: Mapping[TopicPartition, int], *, patience: float, timeout: float
    ) -> set[TopicPartition]:
        """Wait until the last stable offset of each partition has reached the given offset.

        Returns the partitions where it had not after `patience` seconds: a transaction is open
        there.
        """

        async def run(calls: ClusterCalls, deadline: float) -> set[TopicPartition]:
            loop = asyncio.get_running_loop()
            ends_at = loop.time() + patience
            waiting = dict(offsets)
            pause = _FIRST_PAUSE
            while True:
                requests = [
                    offset_call(partition, LATEST_TIMESTAMP, is_committed=True)
                    for partition in waiting
                ]
                answers = await calls.call_all(requests, deadline)
                for (partition, offset), call, answer in zip(
                    list(waiting.items()), requests, answers, strict=True
                ):
                    if listed_offset(raised(answer), call.what) >= offset:
                        del waiting[partition]
                if not waiting or loop.time() >= ends_at:
                    return set(waiting)
                await asyncio.sleep(min(pause, max(0.0, ends_at - loop.time())))
                pause *= 2

        return self._run(run, timeout) if offsets else set()

    def open_producers(
        self, topic_partition: TopicPartition, *, timeout: float
    ) -> list[OpenProducer]:
        """List the producers with an open transaction in a partition, oldest first (KIP-664)."""
        call = describe_producers_call(topic_partition)
        return open_producers(self._call(call, timeout), call.what)

    def _offset(
        self,
        topic_partition: TopicPartition,
        question: int,
        timeout: float,
        *,
        is_committed: bool = False,
    ) -> int:
        call = offset_call(topic_partition, question, is_committed=is_committed)
        return listed_offset(self._call(call, timeout), call.what)

    def read_partition(
        self,
        topic_partition: TopicPartition,
        offset: int,
        *,
        timeout: float,
        markers_only: bool = False,
    ) -> PartitionChunk:
        """Read the contents of one Fetch response from `offset` on, up to the high watermark.

        Raises BrokerError with OFFSET_OUT_OF_RANGE if the log does not reach there, or no longer
        does.
        """
        call = fetch_call(topic_partition, offset)
        records = fetched_records(self._call(call, timeout), call.what)
        return read_chunk(records, offset=offset, markers_only=markers_only)

    def read_log(
        self, topic_partition: TopicPartition, offset: int, sink: LogSink, *, timeout: float
    ) -> int:
        """Read one Fetch response from `offset` on into a sink; return the offset to continue at.

        Like `read_partition`, but many times faster: only keys, values, and ends of transactions.
        """
        call = fetch_call(topic_partition, offset)
        return _read_key_values(self._call(call, timeout), call, offset, sink)

    def read_log_and_end(
        self, topic_partition: TopicPartition, offset: int, sink: LogSink, *, timeout: float
    ) -> tuple[int, int]:
        """Do what `read_log` and `end_offset` do, at the same time; return both offsets.

        Does not wait for records. The end may be behind the first offset or before it. A Fetch
        response contains a high watermark as well, but a new leader's may be too low (KIP-207).
        """
        fetching = fetch_call(topic_partition, offset, waits=False)
        asking = offset_call(topic_partition, LATEST_TIMESTAMP)

        async def run(
            calls: ClusterCalls, deadline: float
        ) -> tuple[fetch.FetchResponse, list_offsets.ListOffsetsResponse]:
            requests: list[Call[Any]] = [fetching, asking]
            fetched, listed = await calls.call_all(requests, deadline)
            return raised(fetched), raised(listed)

        fetched, listed = self._run(run, timeout)
        end = listed_offset(listed, asking.what)
        return _read_key_values(fetched, fetching, offset, sink), end

    # --- running

    def _call(self, call: Call[ResponseT], timeout: float) -> ResponseT:
        return self._run(lambda calls, deadline: calls.call(call, deadline), timeout)


def _read_key_values(
    response: fetch.FetchResponse, call: Call[fetch.FetchResponse], offset: int, sink: LogSink
) -> int:
    records = bytes(fetched_records(response, call.what))
    return read_key_values(
        records, sink, offset=offset, max_uncompressed_bytes=_MAX_UNCOMPRESSED_BYTES
    )


async def _describe(
    calls: ClusterCalls, transactional_ids: Sequence[str], deadline: float
) -> dict[str, TransactionDescription | None]:
    answer = await request_items(calls, describing_transactions(), transactional_ids, deadline)
    for error in answer.errors.values():
        if not isinstance(error, BrokerError) or error.code != _UNKNOWN_ID:
            raise error
    return {name: answer.results.get(name) for name in transactional_ids}


def _check(code: int, what: str) -> None:
    if code:
        raise producer_error(code, what)


def _end_answer(answer: EndTxnResponse | KafkaError, what: str) -> EndAnswer | KafkaError:
    if isinstance(answer, KafkaError):
        return answer
    try:
        return ended_transaction(answer, what)
    except BrokerError as error:
        return error
