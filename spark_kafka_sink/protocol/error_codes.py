"""Kafka's error codes, their kinds and their meanings.

Codes, names and kinds are those of Apache Kafka 4.3 (org.apache.kafka.common.protocol.Errors and
its exception classes); the descriptions are ours. On the wire a code is only a number, and a newer
broker may send one that is not listed here: it keeps its number and is not retriable.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Self

from spark_kafka_sink.errors import BrokerError


class _Kind(NamedTuple):
    """The flags that Java expresses as RetriableException and InvalidMetadataException."""

    retriable: bool
    invalid_metadata: bool


_FINAL = _Kind(retriable=False, invalid_metadata=False)
_RETRIABLE = _Kind(retriable=True, invalid_metadata=False)
_METADATA = _Kind(retriable=True, invalid_metadata=True)


class ErrorCode(IntEnum):
    """All of Kafka's error codes, under Kafka's names.

    >>> ErrorCode.NOT_LEADER_OR_FOLLOWER.value, ErrorCode(3).name
    (6, 'UNKNOWN_TOPIC_OR_PARTITION')
    """

    #: Whether the same request may succeed when it is resent.
    retriable: bool
    #: Whether the error shows that the client's metadata is out of date.
    invalid_metadata: bool
    #: The meaning, as the end of a sentence.
    meaning: str

    def __new__(cls, code: int, kind: _Kind = _FINAL, meaning: str = "") -> Self:
        """Create a member with the code as its value and the rest as attributes."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = kind.retriable
        member.invalid_metadata = kind.invalid_metadata
        member.meaning = meaning
        return member

    UNKNOWN_SERVER_ERROR = -1, _FINAL, "the broker failed unexpectedly; its log says more"
    NONE = 0, _FINAL, "no error"
    OFFSET_OUT_OF_RANGE = 1, _FINAL, "the partition does not hold that offset, or not any more"
    CORRUPT_MESSAGE = 2, _RETRIABLE, "a batch came with a wrong checksum or size"
    UNKNOWN_TOPIC_OR_PARTITION = 3, _METADATA, "the broker does not have this topic or partition"
    INVALID_FETCH_SIZE = 4, _FINAL, "the fetch size is out of range"
    LEADER_NOT_AVAILABLE = 5, _METADATA, "the partition has no leader at the moment"
    NOT_LEADER_OR_FOLLOWER = 6, _METADATA, "the broker does not lead the partition any more"
    REQUEST_TIMED_OUT = 7, _RETRIABLE, "the broker did not finish in the time it was given"
    BROKER_NOT_AVAILABLE = 8, _FINAL, "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, _METADATA, "the broker's replica cannot be used at the moment"
    MESSAGE_TOO_LARGE = 10, _FINAL, "a batch is above max.message.bytes of the topic"
    STALE_CONTROLLER_EPOCH = 11, _FINAL, "another controller has taken over"
    OFFSET_METADATA_TOO_LARGE = 12, _FINAL, "the text committed with an offset is too long"
    NETWORK_EXCEPTION = 13, _METADATA, "the connection ended before the answer came"
    COORDINATOR_LOAD_IN_PROGRESS = 14, _RETRIABLE, "the coordinator is still loading its state"
    COORDINATOR_NOT_AVAILABLE = 15, _RETRIABLE, "the coordinator cannot be reached"
    NOT_COORDINATOR = 16, _RETRIABLE, "the broker is not the coordinator any more"
    INVALID_TOPIC_EXCEPTION = 17, _FINAL, "the topic's name is invalid, or reserved"
    RECORD_LIST_TOO_LARGE = 18, _FINAL, "a batch is larger than a segment (segment.bytes)"
    NOT_ENOUGH_REPLICAS = 19, _RETRIABLE, "not written: too few in-sync replicas"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, _RETRIABLE, "written, but to too few in-sync replicas"
    INVALID_REQUIRED_ACKS = 21, _FINAL, "acks must be 0, 1 or all"
    ILLEGAL_GENERATION = 22, _FINAL, "the group has moved on to another generation"
    INCONSISTENT_GROUP_PROTOCOL = 23, _FINAL, "the member shares no protocol with the group"
    INVALID_GROUP_ID = 24, _FINAL, "the group id is invalid"
    UNKNOWN_MEMBER_ID = 25, _FINAL, "the group does not know this member"
    INVALID_SESSION_TIMEOUT = 26, _FINAL, "the session timeout is out of the broker's range"
    REBALANCE_IN_PROGRESS = 27, _FINAL, "the group is rebalancing"
    INVALID_COMMIT_OFFSET_SIZE = 28, _FINAL, "the offsets to commit take too much room"
    TOPIC_AUTHORIZATION_FAILED = 29, _FINAL, "this user has no right to do that with the topic"
    GROUP_AUTHORIZATION_FAILED = 30, _FINAL, "this user has no right to the group"
    CLUSTER_AUTHORIZATION_FAILED = 31, _FINAL, "this user has no right to do that with the cluster"
    INVALID_TIMESTAMP = 32, _FINAL, "a timestamp is too far from the broker's clock"
    UNSUPPORTED_SASL_MECHANISM = 33, _FINAL, "the broker does not offer this SASL mechanism"
    ILLEGAL_SASL_STATE = 34, _FINAL, "the request does not fit the authentication's state"
    UNSUPPORTED_VERSION = 35, _FINAL, "the broker does not have this version of the API"
    TOPIC_ALREADY_EXISTS = 36, _FINAL, "a topic of this name exists already"
    INVALID_PARTITIONS = 37, _FINAL, "the number of partitions is out of range"
    INVALID_REPLICATION_FACTOR = 38, _FINAL, "replicas below 1, or more than brokers"
    INVALID_REPLICA_ASSIGNMENT = 39, _FINAL, "the assignment of replicas is invalid"
    INVALID_CONFIG = 40, _FINAL, "a setting is invalid"
    NOT_CONTROLLER = 41, _RETRIABLE, "the broker is not the controller"
    INVALID_REQUEST = 42, _FINAL, "the broker finds the request itself invalid; its log says more"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, _FINAL, "the message format cannot do that"
    POLICY_VIOLATION = 44, _FINAL, "a policy of the cluster forbids it"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, _FINAL, "a batch does not follow the one before"
    DUPLICATE_SEQUENCE_NUMBER = 46, _FINAL, "a batch of this number was written before"
    INVALID_PRODUCER_EPOCH = 47, _FINAL, "the producer's epoch is out of date"
    INVALID_TXN_STATE = 48, _FINAL, "the transaction is in a state that does not allow it"
    INVALID_PRODUCER_ID_MAPPING = 49, _FINAL, "producer id and transactional id do not match"
    INVALID_TRANSACTION_TIMEOUT = 50, _FINAL, "it is above transaction.max.timeout.ms"
    CONCURRENT_TRANSACTIONS = 51, _RETRIABLE, "the transaction is still busy with something else"
    TRANSACTION_COORDINATOR_FENCED = 52, _FINAL, "the coordinator has changed"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, _FINAL, "no right to use the transactional id"
    SECURITY_DISABLED = 54, _FINAL, "the broker runs without the security feature needed"
    OPERATION_NOT_ATTEMPTED = 55, _FINAL, "not tried: another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, _METADATA, "the broker cannot use its disk"
    LOG_DIR_NOT_FOUND = 57, _FINAL, "the broker has no such log directory"
    SASL_AUTHENTICATION_FAILED = 58, _FINAL, "the broker did not accept the credentials"
    UNKNOWN_PRODUCER_ID = 59, _FINAL, "the broker has forgotten this producer"
    REASSIGNMENT_IN_PROGRESS = 60, _FINAL, "the partition is being moved to other brokers"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, _FINAL, "delegation tokens are switched off"
    DELEGATION_TOKEN_NOT_FOUND = 62, _FINAL, "the broker does not know the token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, _FINAL, "only its owner or renewer may do that"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, _FINAL, "not over a connection like this"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, _FINAL, "no right to do that with the token"
    DELEGATION_TOKEN_EXPIRED = 66, _FINAL, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, _FINAL, "the kind of principal is not supported"
    NON_EMPTY_GROUP = 68, _FINAL, "the group still has members"
    GROUP_ID_NOT_FOUND = 69, _FINAL, "there is no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, _RETRIABLE, "the broker does not know the fetch session"
    INVALID_FETCH_SESSION_EPOCH = 71, _RETRIABLE, "the fetch session has another epoch"
    LISTENER_NOT_FOUND = 72, _METADATA, "the partition's leader has no listener of this kind"
    TOPIC_DELETION_DISABLED = 73, _FINAL, "topics cannot be deleted on this cluster"
    FENCED_LEADER_EPOCH = 74, _METADATA, "the leader epoch is older than the broker's"
    UNKNOWN_LEADER_EPOCH = 75, _RETRIABLE, "the leader epoch is newer than the broker's"
    UNSUPPORTED_COMPRESSION_TYPE = 76, _FINAL, "this version of the API lacks the codec"
    STALE_BROKER_EPOCH = 77, _FINAL, "the broker has registered anew meanwhile"
    OFFSET_NOT_AVAILABLE = 78, _RETRIABLE, "the new leader cannot tell its offsets yet"
    MEMBER_ID_REQUIRED = 79, _FINAL, "the member must join again with the id given"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, _METADATA, "the preferred leader is away"
    GROUP_MAX_SIZE_REACHED = 81, _FINAL, "the group is full"
    FENCED_INSTANCE_ID = 82, _FINAL, "another member uses the same group.instance.id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, _METADATA, "no replica that could lead is there"
    ELECTION_NOT_NEEDED = 84, _METADATA, "the partition needs no election"
    NO_REASSIGNMENT_IN_PROGRESS = 85, _FINAL, "the partition is not being moved"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, _FINAL, "the group still reads the topic"
    INVALID_RECORD = 87, _FINAL, "the broker refused a record (null key in a compacted topic?)"
    UNSTABLE_OFFSET_COMMIT = 88, _RETRIABLE, "offsets of an open transaction are unsettled"
    THROTTLING_QUOTA_EXCEEDED = 89, _RETRIABLE, "the quota is used up for now"
    PRODUCER_FENCED = 90, _FINAL, "a newer producer has taken over the transactional id"
    RESOURCE_NOT_FOUND = 91, _FINAL, "the request names something that does not exist"
    DUPLICATE_RESOURCE = 92, _FINAL, "the request names the same thing twice"
    UNACCEPTABLE_CREDENTIAL = 93, _FINAL, "the new credential does not meet the rules"
    INCONSISTENT_VOTER_SET = 94, _FINAL, "sender or receiver is no voter of the quorum"
    INVALID_UPDATE_VERSION = 95, _FINAL, "the version to update to is invalid"
    FEATURE_UPDATE_FAILED = 96, _FINAL, "the feature's version could not be changed"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, _FINAL, "brokers cannot pass this user on"
    SNAPSHOT_NOT_FOUND = 98, _FINAL, "there is no such snapshot"
    POSITION_OUT_OF_RANGE = 99, _FINAL, "the position is outside the snapshot"
    UNKNOWN_TOPIC_ID = 100, _METADATA, "the broker does not have a topic of this id"
    DUPLICATE_BROKER_REGISTRATION = 101, _FINAL, "a broker of this id is registered"
    BROKER_ID_NOT_REGISTERED = 102, _FINAL, "no broker of this id is registered"
    INCONSISTENT_TOPIC_ID = 103, _METADATA, "the topic was created anew: its id has changed"
    INCONSISTENT_CLUSTER_ID = 104, _FINAL, "the request was meant for another cluster"
    TRANSACTIONAL_ID_NOT_FOUND = 105, _FINAL, "the coordinator does not know the id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, _RETRIABLE, "the session mixes topic names and ids"
    INELIGIBLE_REPLICA = 107, _FINAL, "a replica was named that may not be in sync"
    NEW_LEADER_ELECTED = 108, _FINAL, "the change was made, and brought a new leader"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, _FINAL, "the offset is in tiered storage only"
    FENCED_MEMBER_EPOCH = 110, _FINAL, "the member's epoch is wrong: it must rejoin"
    UNRELEASED_INSTANCE_ID = 111, _FINAL, "another member holds the group.instance.id"
    UNSUPPORTED_ASSIGNOR = 112, _FINAL, "the group cannot use this assignor"
    STALE_MEMBER_EPOCH = 113, _FINAL, "the member's epoch is too old"
    MISMATCHED_ENDPOINT_TYPE = 114, _FINAL, "sent to a broker for a controller, or the reverse"
    UNSUPPORTED_ENDPOINT_TYPE = 115, _FINAL, "this kind of endpoint is not supported"
    UNKNOWN_CONTROLLER_ID = 116, _FINAL, "there is no controller of this id"
    UNKNOWN_SUBSCRIPTION_ID = 117, _FINAL, "the telemetry subscription is out of date"
    TELEMETRY_TOO_LARGE = 118, _FINAL, "the telemetry is larger than the broker takes"
    INVALID_REGISTRATION = 119, _FINAL, "the controller refuses the registration"
    TRANSACTION_ABORTABLE = 120, _FINAL, "the transaction failed: abort it, then go on"
    INVALID_RECORD_STATE = 121, _FINAL, "the record's state does not allow it"
    SHARE_SESSION_NOT_FOUND = 122, _RETRIABLE, "the broker does not know the share session"
    INVALID_SHARE_SESSION_EPOCH = 123, _RETRIABLE, "the share session has another epoch"
    FENCED_STATE_EPOCH = 124, _FINAL, "the share group's state has another epoch"
    INVALID_VOTER_KEY = 125, _FINAL, "the voter's key is not that of the replica"
    DUPLICATE_VOTER = 126, _FINAL, "the voter belongs to the quorum already"
    VOTER_NOT_FOUND = 127, _FINAL, "the voter does not belong to the quorum"
    INVALID_REGULAR_EXPRESSION = 128, _FINAL, "the regular expression is invalid"
    REBOOTSTRAP_REQUIRED = 129, _FINAL, "what we know of the cluster is out of date: begin anew"
    STREAMS_INVALID_TOPOLOGY = 130, _FINAL, "the topology is invalid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, _FINAL, "the topology's epoch is invalid"
    STREAMS_TOPOLOGY_FENCED = 132, _FINAL, "the topology's epoch is out of date"
    SHARE_SESSION_LIMIT_REACHED = 133, _RETRIABLE, "the broker has no room for another one"


_BY_NUMBER: dict[int, ErrorCode] = {code.value: code for code in ErrorCode}


def error_name(code: int) -> str:
    """Return Kafka's name of a code; UNKNOWN_CODE_999 for an unknown code 999."""
    known = _BY_NUMBER.get(code)
    return f"UNKNOWN_CODE_{code}" if known is None else known.name


def is_retriable(code: int) -> bool:
    """Return whether the same request may succeed when it is resent."""
    known = _BY_NUMBER.get(code)
    return known is not None and known.retriable


def is_invalid_metadata(code: int) -> bool:
    """Return whether the error shows that the client's metadata is out of date."""
    known = _BY_NUMBER.get(code)
    return known is not None and known.invalid_metadata


def broker_error(code: int, context: str, advice: str | None = None) -> BrokerError:
    """Build the error for a code.

    `context` says what failed, and where; `advice` says what to do, without a full stop.
    """
    known = _BY_NUMBER.get(code)
    meaning = "this client does not know the code" if known is None else known.meaning
    end = "" if advice is None else f". {advice}"
    return BrokerError(
        f"{context}: {meaning} ({error_name(code)}, code {code}){end}",
        code=code,
        name=error_name(code),
        retriable=is_retriable(code),
        invalid_metadata=is_invalid_metadata(code),
    )
