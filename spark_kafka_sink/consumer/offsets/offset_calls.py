"""The calls about partitions and offsets, each repeated until it has a final answer.

They live on the loop of their NetworkClient. Metadata are requested when they are missing or proved
to be out of date, so offsets of known partitions need one request for each leader.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from spark_kafka_sink.config.config_def import nearest_names
from spark_kafka_sink.config.offset_specs import Assign, Subscribe, SubscribePattern, listed
from spark_kafka_sink.consumer.offsets import offset_requests
from spark_kafka_sink.consumer.subscription.partition_state import FetchPosition, LeaderAndEpoch
from spark_kafka_sink.display import counted
from spark_kafka_sink.errors import (
    BrokerError,
    ConfigError,
    DecodeError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
)
from spark_kafka_sink.model import NO_LEADER_EPOCH, UNKNOWN_OFFSET, Node, TopicPartition
from spark_kafka_sink.network.cluster_connection_states import FINAL_SECONDS
from spark_kafka_sink.network.connection_waits import (
    Patience,
    UnreachedError,
    connection_to,
    wait_for_leaders,
)
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error, is_retriable
from spark_kafka_sink.protocol.group_offsets import LAST_COMMIT_WITH_NAMES
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from spark_kafka_sink.config.client_config import ClientConfig
    from spark_kafka_sink.config.offset_specs import Selection
    from spark_kafka_sink.network.connection.broker_connection import BrokerConnection
    from spark_kafka_sink.network.network_client import NetworkClient
    from spark_kafka_sink.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
    from spark_kafka_sink.protocol.schema import ApiRequest, ResponseT


class BrokerRequests:
    """Requests to given brokers or to any; times are seconds of the loop's clock."""

    def __init__(self, client: NetworkClient, config: ClientConfig, changed: asyncio.Event) -> None:
        """Use a client that sets `changed` when a node or the metadata may have changed."""
        self.client = client
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._backoff = ExponentialBackoff(
            config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000
        )

    async def connection_to(self, node: Node, deadline: float) -> BrokerConnection:
        """Return a connection to a node that can take a request; see `connection_to`."""
        return await connection_to(self.client, node, deadline, self._changed)

    async def ask(
        self,
        node: Node | None,
        request: ApiRequest[ResponseT],
        deadline: float,
        *,
        max_version: int | None = None,
    ) -> ResponseT:
        """Send a request to a node, or to any if it is None, and return the response.

        Raises NetworkError if there is none by the deadline, and what `connection_to` raises.
        """
        if node is None:
            connection = await self.client.least_loaded_connection(deadline)
        else:
            connection = await self.connection_to(node, deadline)
        try:
            async with asyncio.timeout_at(deadline):
                return await connection.send(request, max_version=max_version)
        except TimeoutError:
            name = request.api_key.name
            raise NetworkError(f"{connection.node} has not answered {name} yet") from None

    async def back_off(self, attempts: int, deadline: float, what: str, cause: KafkaError) -> None:
        """Wait before the next attempt; raise KafkaTimeoutError if there is no time for one."""
        delay = self._backoff.delay(attempts)
        if self._loop.time() + delay >= deadline:
            raise KafkaTimeoutError(f"{what}: no final answer in time; last cause: {cause}") from (
                cause
            )
        await asyncio.sleep(delay)


T = TypeVar("T")

#: The longest timeout that a request can name.
_MOST_MS: Final = 2**31 - 1
#: How many partitions an error names.
_MOST_NAMED: Final = 3
#: The most existing names that an error about a missing topic suggests.
_MOST_NAMES: Final = 3
#: The answer of a leader that does not know where an epoch's log ends.
_UNKNOWN = offset_requests.EpochEnd(UNKNOWN_OFFSET, NO_LEADER_EPOCH)

# --- the partitions that a selection covers, read from metadata responses
# Internal topics never match a pattern, as in Spark's source, whose Admin.listTopics leaves them
# out; a topic that is named may be internal.


class _TopicAnswers(NamedTuple):
    """The topics of a metadata response, and those that it lacks."""

    topics: tuple[MetadataResponseTopic, ...]
    #: The first topic that does not exist, as far as the broker knows.
    missing: str | None
    #: An error that may be over soon.
    retriable: BrokerError | None


def wanted_topics(selection: Selection) -> tuple[str, ...] | None:
    """Return the topics to request; None for all of them."""
    match selection:
        case Subscribe(topics):
            return topics
        case Assign(partitions):
            return tuple(dict.fromkeys(partition.topic for partition in partitions))
        case SubscribePattern():
            return None


def read_topics(
    response: MetadataResponse, names: Iterable[str] | None, *, includes_internal: bool = False
) -> _TopicAnswers:
    """Return the topics of a response; without `names` those that exist.

    Internal topics are among those only with `includes_internal`.

    Raises BrokerError if this client may not read one of the named topics.
    """
    answered = {topic.name: topic for topic in response.topics if topic.name is not None}
    if names is None:
        listed = tuple(
            topic
            for topic in answered.values()
            if (includes_internal or not topic.is_internal)
            and not topic.error_code
            and topic.partitions
        )
        return _TopicAnswers(listed, None, None)
    existing: list[MetadataResponseTopic] = []
    missing: str | None = None
    retriable: BrokerError | None = None
    for name in names:
        topic = answered.get(name)
        if topic is None or topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            missing = missing or name
        elif topic.error_code:
            error = _topic_error(name, topic.error_code)
            if not is_retriable(topic.error_code):
                raise error
            retriable = retriable or error
        else:
            existing.append(topic)
    return _TopicAnswers(tuple(existing), missing, retriable)


def selected_partitions(
    selection: Selection,
    topics: Sequence[MetadataResponseTopic],
    *,
    skips_missing: bool = False,
) -> tuple[TopicPartition, ...]:
    """Return the partitions of a selection, sorted; with `skips_missing`, those that exist.

    Raises BrokerError for a partition that does not exist, ConfigError for a pattern that is not
    valid.
    """
    partitions = sorted(
        TopicPartition(topic.name or "", partition.partition_index)
        for topic in topics
        for partition in topic.partitions
    )
    if isinstance(selection, SubscribePattern):
        try:
            pattern = re.compile(selection.pattern)
        except re.error as error:
            raise ConfigError(f"the pattern {selection.pattern!r} is not valid: {error}") from None
        return tuple(
            topic_partition
            for topic_partition in partitions
            if pattern.search(topic_partition.topic)
        )
    if isinstance(selection, Assign):
        requested = set(selection.partitions)
        unknown = sorted(requested.difference(partitions))
        if unknown and not skips_missing:
            raise _missing_partition(
                unknown[0],
                sum(topic_partition.topic == unknown[0].topic for topic_partition in partitions),
            )
        return tuple(sorted(requested.intersection(partitions)))
    return tuple(partitions)


def _missing_partition(topic_partition: TopicPartition, count: int) -> BrokerError:
    """Return the error for a partition that its topic does not have."""
    return broker_error(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"{topic_partition} does not exist: topic {topic_partition.topic!r} has "
        f"{counted(count, 'partition')}, numbered from 0",
    )


def missing_topic(name: str, existing: Iterable[str]) -> BrokerError:
    """Return the error for a topic that does not exist; it suggests similar names."""
    names = ", ".join(map(repr, nearest_names(name, existing, most=_MOST_NAMES)))
    similar = f"similar names: {names}" if names else "no topic that this user sees is similar"
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return BrokerError(
        f"topic {name!r} does not exist; {similar}. Check the name, and that this user may "
        "describe the topic",
        code=code,
        name=code.name,
    )


# --- the calls


class Attempt(NamedTuple, Generic[T]):
    """The answers of one round of requests to the leaders, and why there are no more."""

    found: dict[TopicPartition, T]
    cause: KafkaError | None


def _no_leader(partitions: Sequence[TopicPartition]) -> NetworkError:
    """Return the cause of a question that could not be asked."""
    return NetworkError(f"{listed(partitions, _MOST_NAMED)} has no leader at the moment")


class OffsetCalls:
    """The calls; times are seconds of the loop's clock."""

    def __init__(self, requests: BrokerRequests) -> None:
        self._requests = requests
        self._client = requests.client
        self._loop = asyncio.get_running_loop()

    # --- partitions

    async def partitions(
        self,
        selection: Selection,
        deadline: float,
        *,
        skips_missing: bool = False,
        fails_early: bool = False,
    ) -> tuple[TopicPartition, ...]:
        """Return the partitions of a selection as of now; see `ConsumerClient.list_partitions`."""
        described = await self.describe(
            wanted_topics(selection),
            deadline,
            skips_missing=skips_missing,
            fails_early=fails_early,
        )
        selected = selected_partitions(selection, described.topics, skips_missing=skips_missing)
        names = {topic_partition.topic for topic_partition in selected}
        topics = tuple(topic for topic in described.topics if topic.name in names)
        self._remember(replace(described, topics=topics))
        if fails_early:
            patience = Patience(deadline - self._loop.time(), "the limit of this call")
            await wait_for_leaders(self._client, lambda: self._leaders(selected), patience)
        return selected

    def _leaders(self, partitions: Iterable[TopicPartition]) -> set[Node]:
        leaders = map(self._client.metadata.snapshot.leader_of, partitions)
        return {node for node in leaders if node is not None}

    async def describe(
        self,
        names: Iterable[str] | None,
        deadline: float,
        *,
        skips_missing: bool = False,
        fails_early: bool = False,
        includes_internal: bool = False,
    ) -> MetadataResponse:
        """Return a response with these topics; without names, with all that exist.

        Internal topics are among those only with `includes_internal`.

        Raises BrokerError for a topic that does not exist, unless `skips_missing`, or that may not
        be read, and KafkaTimeoutError if there is no answer in time.
        """
        topic_names = None if names is None else tuple(names)
        began = self._loop.time()
        attempts = 0
        while True:
            if fails_early:
                await self._find_anybody(deadline)
            try:
                response = await self._ask_for_topics(topic_names, deadline)
            except (NetworkError, DecodeError) as error:
                cause: KafkaError = error
            else:
                answers = read_topics(response, topic_names, includes_internal=includes_internal)
                is_complete = answers.missing is None or skips_missing
                if is_complete and answers.retriable is None:
                    return replace(response, topics=answers.topics)
                cause = await self._cause(answers, began, deadline)
            await self._requests.back_off(attempts, deadline, "Metadata", cause)
            attempts += 1

    async def topic_names(self, deadline: float, *, includes_internal: bool) -> list[str]:
        """Return the names of all topics that this client may see.

        Raises NetworkError or DecodeError if there is no usable answer: this is one attempt.
        """
        response = await self._ask_for_topics(None, deadline)
        return [
            topic.name
            for topic in response.topics
            if topic.name and not topic.error_code and (includes_internal or not topic.is_internal)
        ]

    async def topic_names_by_id(
        self, topic_ids: Iterable[UUID], deadline: float
    ) -> dict[UUID, str]:
        """Return the names of topics by their ids; topics that are not known are left out.

        Raises NetworkError or DecodeError if there is no usable answer: this is one attempt.
        """
        request = MetadataRequest(
            topics=tuple(
                MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in topic_ids
            ),
            allow_auto_topic_creation=False,
        )
        response = await self._requests.ask(None, request, deadline)
        return {
            topic.topic_id: topic.name
            for topic in response.topics
            if topic.name and not topic.error_code
        }

    async def _find_anybody(self, deadline: float) -> None:
        """Raise NetworkError if nothing listens at any address for FINAL_SECONDS."""
        soon = min(self._loop.time() + FINAL_SECONDS, deadline)
        try:
            await self._client.least_loaded_connection(soon)
        except NetworkError:
            if self._client.finds_nobody:
                raise

    async def _cause(self, answers: _TopicAnswers, began: float, deadline: float) -> KafkaError:
        """Return the reason to ask again; raise it if a topic has been missing for long enough."""
        if answers.missing is None:
            return answers.retriable or KafkaError("the topics are not known yet")
        is_final = self._loop.time() >= min(began + FINAL_SECONDS, deadline - FINAL_SECONDS)
        existing: list[str] = []
        if is_final:
            with suppress(KafkaError):
                response = await self._ask_for_topics(None, deadline)
                existing = [topic.name or "" for topic in read_topics(response, None).topics]
        error = missing_topic(answers.missing, existing)
        if is_final:
            raise error
        return error

    async def _ask_for_topics(
        self, names: tuple[str, ...] | None, deadline: float
    ) -> MetadataResponse:
        request = MetadataRequest(
            topics=None
            if names is None
            else tuple(MetadataRequestTopic(name=name) for name in names),
            allow_auto_topic_creation=False,
        )
        response = await self._requests.ask(None, request, deadline)
        if response.error_code:
            raise NetworkError(str(broker_error(response.error_code, "Metadata was refused")))
        if not response.brokers:
            raise NetworkError("a broker returned no brokers: it is probably still starting")
        return response

    def _remember(self, described: MetadataResponse) -> None:
        """Put topics into the metadata, for the calls about offsets."""
        now = self._loop.time()
        for topic in described.topics:
            self._client.metadata.add_topic(topic.name or "", now)
        self._client.metadata.update(described, now, is_full=False)

    # --- offsets

    async def offsets(
        self, timestamps: Mapping[TopicPartition, int], deadline: float, *, is_committed: bool
    ) -> dict[TopicPartition, int | None]:
        """Return the offsets for timestamps, or for the special ones of ListOffsets.

        Raises BrokerError for a final error, KafkaTimeoutError if there is no answer in time.
        """
        offsets = await self.found_offsets(timestamps, deadline, is_committed=is_committed)
        return {topic_partition: found.offset for topic_partition, found in offsets.items()}

    async def found_offsets(
        self, timestamps: Mapping[TopicPartition, int], deadline: float, *, is_committed: bool
    ) -> dict[TopicPartition, offset_requests.FoundOffset]:
        """Return the same offsets with their leader epochs."""

        async def ask(left: Sequence[TopicPartition]) -> Attempt[offset_requests.FoundOffset]:
            groups, leaderless = offset_requests.by_leader(
                {topic_partition: timestamps[topic_partition] for topic_partition in left},
                self._client.metadata.snapshot,
            )
            cause: KafkaError | None = _no_leader(leaderless) if leaderless else None
            offsets: dict[TopicPartition, offset_requests.FoundOffset] = {}
            for answers in await asyncio.gather(
                *(
                    self._ask_leader(node, questions, deadline, is_committed=is_committed)
                    for node, questions in groups.items()
                )
            ):
                if isinstance(answers, KafkaError):
                    cause = answers
                    continue
                for topic_partition, offset in answers.found.items():
                    offsets[topic_partition] = offset_requests.FoundOffset(
                        offset, answers.epochs[topic_partition]
                    )
                for error in answers.failed.values():
                    if not error.retriable:
                        raise error
                    cause = error
            return Attempt(offsets, cause)

        return await self.repeat("ListOffsets", timestamps, deadline, ask)

    async def repeat(
        self,
        what: str,
        partitions: Iterable[TopicPartition],
        deadline: float,
        ask: Callable[[Sequence[TopicPartition]], Awaitable[Attempt[T]]],
    ) -> dict[TopicPartition, T]:
        """Return the answers of leaders about partitions, asked for until there is one about each.

        `ask` is one attempt for the partitions that are left; it finds them in the metadata, which
        are requested again before the next one. `what` names the request.

        Raises KafkaTimeoutError if there is no answer in time, UnreachedError if no broker can be
        reached at its address, and what `ask` raises.
        """
        requested = left = tuple(partitions)
        answers: dict[TopicPartition, T] = {}
        attempts = 0
        while left:
            await self._know(left, deadline, refresh=attempts > 0)
            attempt = await ask(left)
            answers |= attempt.found
            left = tuple(
                topic_partition for topic_partition in left if topic_partition not in answers
            )
            if isinstance(attempt.cause, UnreachedError):
                raise attempt.cause
            if left:
                names = listed(left, _MOST_NAMED)
                cause = attempt.cause or DecodeError(f"the answer lacks {names}")
                await self._requests.back_off(attempts, deadline, f"{what} of {names}", cause)
                attempts += 1
        return {topic_partition: answers[topic_partition] for topic_partition in requested}

    async def _know(
        self, partitions: Iterable[TopicPartition], deadline: float, *, refresh: bool
    ) -> None:
        """Make sure that the metadata have these partitions; with `refresh` request them anyway."""
        last: dict[str, int] = {}
        for topic, partition in partitions:
            last[topic] = max(partition, last.get(topic, 0))
        now = self._loop.time()
        for topic in last:
            self._client.metadata.add_topic(topic, now)
        snapshot = self._client.metadata.snapshot
        unknown = [topic for topic in last if last[topic] >= snapshot.partition_count(topic)]
        if refresh or unknown:
            self._remember(await self.describe(last if refresh else sorted(unknown), deadline))
            snapshot = self._client.metadata.snapshot
            for topic, partition in last.items():
                count = snapshot.partition_count(topic)
                if partition >= count:
                    raise _missing_partition(TopicPartition(topic, partition), count)

    async def _ask_leader(
        self,
        node: Node,
        questions: offset_requests.Questions,
        deadline: float,
        *,
        is_committed: bool,
    ) -> offset_requests.OffsetAnswers | KafkaError:
        left_ms = int(min(max((deadline - self._loop.time()) * 1000, 1), _MOST_MS))
        request = offset_requests.list_offsets_request(
            questions, is_committed=is_committed, timeout_ms=left_ms
        )
        requested = {
            TopicPartition(topic, partition.partition_index)
            for topic in questions
            for partition in questions[topic]
        }
        try:
            return offset_requests.read_offsets(
                await self._requests.ask(node, request, deadline), node, requested
            )
        except NetworkError as error:
            return error

    # --- commits

    async def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, int], deadline: float
    ) -> dict[TopicPartition, KafkaError]:
        """Commit offsets of a group; return the refusals. See `ConsumerClient.commit_offsets`."""
        attempts = 0
        while True:
            try:
                coordinator = await self._coordinator(group_id, deadline)
                response = await self._requests.ask(
                    coordinator,
                    offset_requests.commit_request(group_id, offsets),
                    deadline,
                    max_version=LAST_COMMIT_WITH_NAMES,
                )
            except NetworkError as error:
                cause: KafkaError = error
            else:
                refusals = offset_requests.refused_commits(response, group_id, offsets)
                retriable = [error for error in refusals.values() if _is_worth_a_retry(error)]
                if not retriable:
                    return refusals
                cause = retriable[0]
            await self._requests.back_off(
                attempts, deadline, f"OffsetCommit of group {group_id!r}", cause
            )
            attempts += 1

    async def _coordinator(self, group_id: str, deadline: float) -> Node:
        connection = await self._client.least_loaded_connection(deadline)
        version = connection.api_versions.version_for(ApiKey.FIND_COORDINATOR)
        request = offset_requests.find_coordinator_request(group_id, version)
        code, coordinator = offset_requests.found_coordinator(
            await self._requests.ask(None, request, deadline)
        )
        if not code:
            return coordinator
        error = broker_error(code, f"FindCoordinator of group {group_id!r}")
        raise NetworkError(str(error)) if is_retriable(code) else error


class EpochCalls:
    """The calls that ask where the logs of leader epochs end (KIP-320).

    They are for a reader that stores its positions itself. Times are seconds of the loop's clock.
    """

    def __init__(self, requests: BrokerRequests, offsets: OffsetCalls) -> None:
        self._requests = requests
        self._offsets = offsets

    async def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], deadline: float
    ) -> dict[TopicPartition, offset_requests.EpochEnd]:
        """Return where the logs of epochs end, by the partitions' leaders.

        A leader does not know it if it has no such epoch, or is older than 2.3.

        Raises BrokerError for topics that this user may not describe, KafkaTimeoutError if there is
        no answer in time.
        """

        async def ask(left: Sequence[TopicPartition]) -> Attempt[offset_requests.EpochEnd]:
            positions = {
                partition: self._position(partition, epochs[partition]) for partition in left
            }
            groups = offset_requests.positions_by_leader(positions)
            leaderless = [
                partition
                for partition in left
                if positions[partition].current_leader.leader is None
            ]
            cause: KafkaError | None = _no_leader(leaderless) if leaderless else None
            ends: dict[TopicPartition, offset_requests.EpochEnd] = {}
            for answers in await asyncio.gather(
                *(
                    self._ask_leader(node, leader_positions, deadline)
                    for node, leader_positions in groups.items()
                )
            ):
                if isinstance(answers, KafkaError):
                    cause = answers
                    continue
                if answers.unauthorized:
                    raise offset_requests.unauthorized_error(answers.unauthorized)
                ends |= answers.found
            return Attempt(ends, cause)

        return await self._offsets.repeat("OffsetForLeaderEpoch", epochs, deadline, ask)

    def _position(self, partition: TopicPartition, epoch: int) -> FetchPosition:
        leader = LeaderAndEpoch.in_metadata(self._requests.client.metadata.snapshot, partition)
        return FetchPosition(UNKNOWN_OFFSET, epoch, leader)

    async def _ask_leader(
        self, node: Node, positions: Mapping[TopicPartition, FetchPosition], deadline: float
    ) -> offset_requests.EpochAnswers | KafkaError:
        try:
            connection = await self._requests.connection_to(node, deadline)
            if not offset_requests.supports_validation(connection.api_versions):
                return offset_requests.EpochAnswers(dict.fromkeys(positions, _UNKNOWN), (), ())
            response = await self._requests.ask(
                node, offset_requests.epoch_request(positions), deadline
            )
        except NetworkError as error:
            return error
        return offset_requests.read_epochs(response, positions)


def _topic_error(name: str, code: int) -> BrokerError:
    advice = None
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        advice = "Grant this user DESCRIBE and READ on the topic"
    return broker_error(code, f"topic {name!r} cannot be read", advice)


def _is_worth_a_retry(error: KafkaError) -> bool:
    # A topic that is gone, or in another cluster, does not come back.
    code = getattr(error, "code", None)
    return error.retriable and code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
