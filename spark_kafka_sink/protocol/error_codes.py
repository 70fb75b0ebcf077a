"""Kafka's error codes, their kinds and their meanings.

Codes, names and kinds are those of Apache Kafka 4.4 (org.apache.kafka.common.protocol.Errors and
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

    UNKNOWN_SERVER_ERROR = -1, _FINAL, "the broker had an unexpected error; see its log"
    NONE = 0, _FINAL, "no error"
    OFFSET_OUT_OF_RANGE = 1, _FINAL, "the offset is outside the partition's log"
    CORRUPT_MESSAGE = 2, _RETRIABLE, "a batch arrived with an invalid checksum or size"
    UNKNOWN_TOPIC_OR_PARTITION = 3, _METADATA, "the broker does not have this topic or partition"
    INVALID_FETCH_SIZE = 4, _FINAL, "the fetch size is out of range"
    LEADER_NOT_AVAILABLE = 5, _METADATA, "the partition has no leader at the moment"
    NOT_LEADER_OR_FOLLOWER = 6, _METADATA, "the broker no longer leads the partition"
    REQUEST_TIMED_OUT = 7, _RETRIABLE, "the broker did not complete the request in time"
    BROKER_NOT_AVAILABLE = 8, _FINAL, "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, _METADATA, "the broker's replica is not available at the moment"
    MESSAGE_TOO_LARGE = 10, _FINAL, "a batch exceeds the topic's max.message.bytes"
    STALE_CONTROLLER_EPOCH = 11, _FINAL, "another controller has taken over"
    OFFSET_METADATA_TOO_LARGE = 12, _FINAL, "the metadata committed with an offset is too long"
    NETWORK_EXCEPTION = 13, _METADATA, "the connection closed before the response arrived"
    COORDINATOR_LOAD_IN_PROGRESS = 14, _RETRIABLE, "the coordinator is still loading its state"
    COORDINATOR_NOT_AVAILABLE = 15, _RETRIABLE, "the coordinator is not available"
    NOT_COORDINATOR = 16, _RETRIABLE, "the broker is no longer the coordinator"
    INVALID_TOPIC_EXCEPTION = 17, _FINAL, "the topic name is invalid or reserved"
    RECORD_LIST_TOO_LARGE = 18, _FINAL, "a batch is larger than a segment (segment.bytes)"
    NOT_ENOUGH_REPLICAS = 19, _RETRIABLE, "not written: there are too few in-sync replicas"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, _RETRIABLE, "written, but to too few in-sync replicas"
    INVALID_REQUIRED_ACKS = 21, _FINAL, "acks must be 0, 1 or all"
    ILLEGAL_GENERATION = 22, _FINAL, "the group has moved on to another generation"
    INCONSISTENT_GROUP_PROTOCOL = 23, _FINAL, "the member has no protocol in common with the group"
    INVALID_GROUP_ID = 24, _FINAL, "the group id is invalid"
    UNKNOWN_MEMBER_ID = 25, _FINAL, "the group does not know this member"
    INVALID_SESSION_TIMEOUT = 26, _FINAL, "the session timeout is out of the broker's range"
    REBALANCE_IN_PROGRESS = 27, _FINAL, "the group is rebalancing"
    INVALID_COMMIT_OFFSET_SIZE = 28, _FINAL, "the offset commit is too large"
    TOPIC_AUTHORIZATION_FAILED = 29, _FINAL, "the user is not authorized to access the topic"
    GROUP_AUTHORIZATION_FAILED = 30, _FINAL, "the user is not authorized to access the group"
    CLUSTER_AUTHORIZATION_FAILED = 31, _FINAL, "no authorization for this operation on the cluster"
    INVALID_TIMESTAMP = 32, _FINAL, "a timestamp is too far from the broker's clock"
    UNSUPPORTED_SASL_MECHANISM = 33, _FINAL, "the broker does not offer this SASL mechanism"
    ILLEGAL_SASL_STATE = 34, _FINAL, "the state of the authentication does not allow this request"
    UNSUPPORTED_VERSION = 35, _FINAL, "the broker does not support this version of the API"
    TOPIC_ALREADY_EXISTS = 36, _FINAL, "a topic of this name already exists"
    INVALID_PARTITIONS = 37, _FINAL, "the number of partitions is out of range"
    INVALID_REPLICATION_FACTOR = 38, _FINAL, "more replicas than brokers, or fewer than one"
    INVALID_REPLICA_ASSIGNMENT = 39, _FINAL, "the replica assignment is invalid"
    INVALID_CONFIG = 40, _FINAL, "a setting is invalid"
    NOT_CONTROLLER = 41, _RETRIABLE, "the broker is not the controller"
    INVALID_REQUEST = 42, _FINAL, "the request is invalid; see the broker's log"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, _FINAL, "the message format does not support this"
    POLICY_VIOLATION = 44, _FINAL, "a policy of the cluster forbids this"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, _FINAL, "a batch does not follow the previous one"
    DUPLICATE_SEQUENCE_NUMBER = 46, _FINAL, "a batch with this sequence number was already written"
    INVALID_PRODUCER_EPOCH = 47, _FINAL, "the producer's epoch is out of date"
    INVALID_TXN_STATE = 48, _FINAL, "the state of the transaction does not allow this"
    INVALID_PRODUCER_ID_MAPPING = (
        49,
        _FINAL,
        "the transactional id has expired (transactional.id.expiration.ms) or has another producer",
    )
    INVALID_TRANSACTION_TIMEOUT = 50, _FINAL, "the timeout exceeds transaction.max.timeout.ms"
    CONCURRENT_TRANSACTIONS = 51, _RETRIABLE, "the transaction is still busy with another operation"
    TRANSACTION_COORDINATOR_FENCED = 52, _FINAL, "a newer coordinator has taken over"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, _FINAL, "no authorization for the transactional id"
    SECURITY_DISABLED = 54, _FINAL, "the required security feature is disabled"
    OPERATION_NOT_ATTEMPTED = 55, _FINAL, "not attempted: another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, _METADATA, "the broker had a disk error"
    LOG_DIR_NOT_FOUND = 57, _FINAL, "the broker does not have this log directory"
    SASL_AUTHENTICATION_FAILED = 58, _FINAL, "the broker rejected the credentials"
    UNKNOWN_PRODUCER_ID = 59, _FINAL, "the broker no longer knows this producer"
    REASSIGNMENT_IN_PROGRESS = 60, _FINAL, "the partition is being moved to other brokers"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, _FINAL, "delegation tokens are disabled"
    DELEGATION_TOKEN_NOT_FOUND = 62, _FINAL, "the broker does not know the delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, _FINAL, "only the token's owner or renewer may do this"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, _FINAL, "not allowed on this kind of connection"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, _FINAL, "no authorization for the delegation token"
    DELEGATION_TOKEN_EXPIRED = 66, _FINAL, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, _FINAL, "the principal type is not supported"
    NON_EMPTY_GROUP = 68, _FINAL, "the group still has members"
    GROUP_ID_NOT_FOUND = 69, _FINAL, "the group does not exist"
    FETCH_SESSION_ID_NOT_FOUND = 70, _RETRIABLE, "the broker does not know the fetch session"
    INVALID_FETCH_SESSION_EPOCH = 71, _RETRIABLE, "the fetch session has a different epoch"
    LISTENER_NOT_FOUND = 72, _METADATA, "the partition's leader does not have this listener"
    TOPIC_DELETION_DISABLED = 73, _FINAL, "topic deletion is disabled"
    FENCED_LEADER_EPOCH = 74, _METADATA, "the leader epoch is older than the broker's"
    UNKNOWN_LEADER_EPOCH = 75, _RETRIABLE, "the leader epoch is newer than the broker's"
    UNSUPPORTED_COMPRESSION_TYPE = 76, _FINAL, "this API version does not support the codec"
    STALE_BROKER_EPOCH = 77, _FINAL, "the broker has registered again since"
    OFFSET_NOT_AVAILABLE = 78, _RETRIABLE, "the new leader's offsets are not known yet"
    MEMBER_ID_REQUIRED = 79, _FINAL, "the member must rejoin with the member id it was assigned"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, _METADATA, "the preferred leader is not available"
    GROUP_MAX_SIZE_REACHED = 81, _FINAL, "the group is full"
    FENCED_INSTANCE_ID = 82, _FINAL, "another member uses the same group.instance.id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, _METADATA, "no eligible leader is available"
    ELECTION_NOT_NEEDED = 84, _METADATA, "the partition needs no leader election"
    NO_REASSIGNMENT_IN_PROGRESS = 85, _FINAL, "the partition is not being reassigned"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, _FINAL, "the group still subscribes to the topic"
    INVALID_RECORD = 87, _FINAL, "the broker rejected a record (null key in a compacted topic?)"
    UNSTABLE_OFFSET_COMMIT = 88, _RETRIABLE, "an open transaction has pending offset commits"
    THROTTLING_QUOTA_EXCEEDED = 89, _RETRIABLE, "the quota is exceeded at the moment"
    PRODUCER_FENCED = 90, _FINAL, "a newer producer has taken over the transactional id"
    RESOURCE_NOT_FOUND = 91, _FINAL, "the request names a resource that does not exist"
    DUPLICATE_RESOURCE = 92, _FINAL, "the request names a resource twice"
    UNACCEPTABLE_CREDENTIAL = 93, _FINAL, "the credential does not meet the requirements"
    INCONSISTENT_VOTER_SET = 94, _FINAL, "sender or recipient is not a voter of the quorum"
    INVALID_UPDATE_VERSION = 95, _FINAL, "the update version is invalid"
    FEATURE_UPDATE_FAILED = 96, _FINAL, "the feature could not be updated"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, _FINAL, "the forwarded principal cannot be decoded"
    SNAPSHOT_NOT_FOUND = 98, _FINAL, "the snapshot does not exist"
    POSITION_OUT_OF_RANGE = 99, _FINAL, "the position is outside the snapshot"
    UNKNOWN_TOPIC_ID = 100, _METADATA, "the broker does not have a topic with this id"
    DUPLICATE_BROKER_REGISTRATION = 101, _FINAL, "a broker with this id is already registered"
    BROKER_ID_NOT_REGISTERED = 102, _FINAL, "no broker with this id is registered"
    INCONSISTENT_TOPIC_ID = 103, _METADATA, "the topic was recreated and has another id"
    INCONSISTENT_CLUSTER_ID = 104, _FINAL, "the request is for another cluster"
    TRANSACTIONAL_ID_NOT_FOUND = 105, _FINAL, "the coordinator does not know the transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, _RETRIABLE, "the fetch session mixes topic names and ids"
    INELIGIBLE_REPLICA = 107, _FINAL, "the new ISR contains an ineligible replica"
    NEW_LEADER_ELECTED = 108, _FINAL, "the change succeeded, but elected a new leader"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, _FINAL, "the offset is in tiered storage only"
    FENCED_MEMBER_EPOCH = 110, _FINAL, "the member's epoch was fenced: it must rejoin"
    UNRELEASED_INSTANCE_ID = 111, _FINAL, "another member still uses the group.instance.id"
    UNSUPPORTED_ASSIGNOR = 112, _FINAL, "the group does not support this assignor"
    STALE_MEMBER_EPOCH = 113, _FINAL, "the member's epoch is too old"
    MISMATCHED_ENDPOINT_TYPE = 114, _FINAL, "sent to a broker, not a controller, or vice versa"
    UNSUPPORTED_ENDPOINT_TYPE = 115, _FINAL, "this type of endpoint is not supported"
    UNKNOWN_CONTROLLER_ID = 116, _FINAL, "no controller has this id"
    UNKNOWN_SUBSCRIPTION_ID = 117, _FINAL, "the telemetry subscription is out of date"
    TELEMETRY_TOO_LARGE = 118, _FINAL, "the telemetry exceeds the broker's limit"
    INVALID_REGISTRATION = 119, _FINAL, "the controller rejected the registration"
    TRANSACTION_ABORTABLE = 120, _FINAL, "the transaction must be aborted before continuing"
    INVALID_RECORD_STATE = 121, _FINAL, "the state of the record does not allow this"
    SHARE_SESSION_NOT_FOUND = 122, _RETRIABLE, "the broker does not know the share session"
    INVALID_SHARE_SESSION_EPOCH = 123, _RETRIABLE, "the share session has a different epoch"
    FENCED_STATE_EPOCH = 124, _FINAL, "the share group's state has a different epoch"
    INVALID_VOTER_KEY = 125, _FINAL, "the voter key does not match the replica's key"
    DUPLICATE_VOTER = 126, _FINAL, "the voter is already in the quorum"
    VOTER_NOT_FOUND = 127, _FINAL, "the voter is not in the quorum"
    INVALID_REGULAR_EXPRESSION = 128, _FINAL, "the regular expression is invalid"
    REBOOTSTRAP_REQUIRED = 129, _FINAL, "the client must connect to bootstrap.servers again"
    STREAMS_INVALID_TOPOLOGY = 130, _FINAL, "the topology is invalid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, _FINAL, "the topology's epoch is invalid"
    STREAMS_TOPOLOGY_FENCED = 132, _FINAL, "the topology's epoch is out of date"
    SHARE_SESSION_LIMIT_REACHED = 133, _RETRIABLE, "the broker has too many share sessions"
    GROUP_DELETION_FAILED = 134, _FINAL, "the group could not be deleted"
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = (
        135,
        _FINAL,
        "the description of the topology could not be stored",
    )
    CONTROLLER_ID_NOT_REGISTERED = 136, _FINAL, "no controller with this id is registered"


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
    meaning = "this client does not know the error code" if known is None else known.meaning
    end = "" if advice is None else f". {advice}"
    return BrokerError(
        f"{context}: {meaning} ({error_name(code)}, code {code}){end}",
        code=code,
        name=error_name(code),
        retriable=is_retriable(code),
        invalid_metadata=is_invalid_metadata(code),
    )
