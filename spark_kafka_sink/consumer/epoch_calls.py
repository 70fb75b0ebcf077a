"""Where the logs of leader epochs end (KIP-320), for a reader that stores its positions itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.membership.partition_state import FetchPosition, LeaderAndEpoch
from spark_kafka_sink.consumer.offsets.offset_calls import Attempt, no_leader
from spark_kafka_sink.consumer.requests.epoch_requests import (
    EpochAnswers,
    EpochEnd,
    epoch_request,
    positions_by_leader,
    read_epochs,
    supports_validation,
    unauthorized_error,
)
from spark_kafka_sink.errors import KafkaError, NetworkError
from spark_kafka_sink.model import NO_LEADER_EPOCH, UNKNOWN_OFFSET

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_kafka_sink.consumer.offsets.broker_requests import BrokerRequests
    from spark_kafka_sink.consumer.offsets.offset_calls import OffsetCalls
    from spark_kafka_sink.model import Node, TopicPartition

_UNKNOWN = EpochEnd(UNKNOWN_OFFSET, NO_LEADER_EPOCH)


class EpochCalls:
    """The calls; times are seconds of the loop's clock."""

    def __init__(self, requests: BrokerRequests, offsets: OffsetCalls) -> None:
        """Use the connections of `requests`, and the metadata and the attempts of `offsets`."""
        self._requests = requests
        self._offsets = offsets

    async def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], deadline: float
    ) -> dict[TopicPartition, EpochEnd]:
        """Return where the logs of epochs end, by the partitions' leaders.

        A leader does not know it if it has no such epoch, or is older than 2.3.

        Raises BrokerError for topics that this user may not describe, KafkaTimeoutError if there is
        no answer in time.
        """

        async def ask(left: Sequence[TopicPartition]) -> Attempt[EpochEnd]:
            positions = {each: self._position(each, epochs[each]) for each in left}
            groups = positions_by_leader(positions)
            leaderless = [each for each in left if positions[each].current_leader.leader is None]
            cause: KafkaError | None = no_leader(leaderless) if leaderless else None
            found: dict[TopicPartition, EpochEnd] = {}
            for answers in await asyncio.gather(
                *(self._ask_leader(node, asked, deadline) for node, asked in groups.items())
            ):
                if isinstance(answers, KafkaError):
                    cause = answers
                    continue
                if answers.unauthorized:
                    raise unauthorized_error(answers.unauthorized)
                found |= answers.found
            return Attempt(found, cause)

        return await self._offsets.repeat("OffsetForLeaderEpoch", epochs, deadline, ask)

    def _position(self, partition: TopicPartition, epoch: int) -> FetchPosition:
        snapshot = self._requests.client.metadata.snapshot
        known = snapshot.partition(partition)
        leader = LeaderAndEpoch(
            snapshot.leader_of(partition),
            NO_LEADER_EPOCH if known is None else known.leader_epoch,
        )
        return FetchPosition(UNKNOWN_OFFSET, epoch, leader)

    async def _ask_leader(
        self, node: Node, asked: Mapping[TopicPartition, FetchPosition], deadline: float
    ) -> EpochAnswers | KafkaError:
        try:
            connection = await self._requests.connection_to(node, deadline)
            if not supports_validation(connection.api_versions):
                return EpochAnswers(dict.fromkeys(asked, _UNKNOWN), (), ())
            response = await self._requests.ask(node, epoch_request(asked), deadline)
        except NetworkError as error:
            return error
        return read_epochs(response, asked)
