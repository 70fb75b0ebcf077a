"""API keys, and the first flexible version of each API.

The first flexible version decides which request and response header an API uses (KIP-482), so it
is needed even for APIs that this package does not implement: a broker must read such a request's
header before it can reject it. Keys and versions are those of Apache Kafka 4.4
(org.apache.kafka.common.protocol.ApiKeys); keys 4 to 7 were removed with ZooKeeper.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Self

#: The first flexible version of an API or a schema that has none.
NEVER_FLEXIBLE: Final = 32767


class ApiKey(IntEnum):
    """All of Kafka's APIs, under Kafka's names.

    >>> ApiKey.PRODUCE, ApiKey["METADATA"].value
    (<ApiKey.PRODUCE: 0>, 3)
    """

    #: The API's first flexible version.
    flexible_from: int

    def __new__(cls, key: int, flexible_from: int = NEVER_FLEXIBLE) -> Self:
        """Create a member with the key as its value and the version as an attribute."""
        member = int.__new__(cls, key)
        member._value_ = key
        member.flexible_from = flexible_from
        return member

    PRODUCE = 0, 9
    FETCH = 1, 12
    LIST_OFFSETS = 2, 6
    METADATA = 3, 9
    LEADER_AND_ISR = 4, 4
    STOP_REPLICA = 5, 2
    UPDATE_METADATA = 6, 6
    CONTROLLED_SHUTDOWN = 7, 3
    OFFSET_COMMIT = 8, 8
    OFFSET_FETCH = 9, 6
    FIND_COORDINATOR = 10, 3
    JOIN_GROUP = 11, 6
    HEARTBEAT = 12, 4
    LEAVE_GROUP = 13, 4
    SYNC_GROUP = 14, 4
    DESCRIBE_GROUPS = 15, 5
    LIST_GROUPS = 16, 3
    SASL_HANDSHAKE = 17, NEVER_FLEXIBLE
    API_VERSIONS = 18, 3
    CREATE_TOPICS = 19, 5
    DELETE_TOPICS = 20, 4
    DELETE_RECORDS = 21, 2
    INIT_PRODUCER_ID = 22, 2
    OFFSET_FOR_LEADER_EPOCH = 23, 4
    ADD_PARTITIONS_TO_TXN = 24, 3
    ADD_OFFSETS_TO_TXN = 25, 3
    END_TXN = 26, 3
    WRITE_TXN_MARKERS = 27, 1
    TXN_OFFSET_COMMIT = 28, 3
    DESCRIBE_ACLS = 29, 2
    CREATE_ACLS = 30, 2
    DELETE_ACLS = 31, 2
    DESCRIBE_CONFIGS = 32, 4
    ALTER_CONFIGS = 33, 2
    ALTER_REPLICA_LOG_DIRS = 34, 2
    DESCRIBE_LOG_DIRS = 35, 2
    SASL_AUTHENTICATE = 36, 2
    CREATE_PARTITIONS = 37, 2
    CREATE_DELEGATION_TOKEN = 38, 2
    RENEW_DELEGATION_TOKEN = 39, 2
    EXPIRE_DELEGATION_TOKEN = 40, 2
    DESCRIBE_DELEGATION_TOKEN = 41, 2
    DELETE_GROUPS = 42, 2
    ELECT_LEADERS = 43, 2
    INCREMENTAL_ALTER_CONFIGS = 44, 1
    ALTER_PARTITION_REASSIGNMENTS = 45, 0
    LIST_PARTITION_REASSIGNMENTS = 46, 0
    OFFSET_DELETE = 47, NEVER_FLEXIBLE
    DESCRIBE_CLIENT_QUOTAS = 48, 1
    ALTER_CLIENT_QUOTAS = 49, 1
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50, 0
    ALTER_USER_SCRAM_CREDENTIALS = 51, 0
    VOTE = 52, 0
    BEGIN_QUORUM_EPOCH = 53, 1
    END_QUORUM_EPOCH = 54, 1
    DESCRIBE_QUORUM = 55, 0
    ALTER_PARTITION = 56, 0
    UPDATE_FEATURES = 57, 0
    ENVELOPE = 58, 0
    FETCH_SNAPSHOT = 59, 0
    DESCRIBE_CLUSTER = 60, 0
    DESCRIBE_PRODUCERS = 61, 0
    BROKER_REGISTRATION = 62, 0
    BROKER_HEARTBEAT = 63, 0
    UNREGISTER_BROKER = 64, 0
    DESCRIBE_TRANSACTIONS = 65, 0
    LIST_TRANSACTIONS = 66, 0
    ALLOCATE_PRODUCER_IDS = 67, 0
    CONSUMER_GROUP_HEARTBEAT = 68, 0
    CONSUMER_GROUP_DESCRIBE = 69, 0
    CONTROLLER_REGISTRATION = 70, 0
    GET_TELEMETRY_SUBSCRIPTIONS = 71, 0
    PUSH_TELEMETRY = 72, 0
    ASSIGN_REPLICAS_TO_DIRS = 73, 0
    LIST_CONFIG_RESOURCES = 74, 0
    DESCRIBE_TOPIC_PARTITIONS = 75, 0
    SHARE_GROUP_HEARTBEAT = 76, 0
    SHARE_GROUP_DESCRIBE = 77, 0
    SHARE_FETCH = 78, 0
    SHARE_ACKNOWLEDGE = 79, 0
    ADD_RAFT_VOTER = 80, 0
    REMOVE_RAFT_VOTER = 81, 0
    UPDATE_RAFT_VOTER = 82, 0
    INITIALIZE_SHARE_GROUP_STATE = 83, 0
    READ_SHARE_GROUP_STATE = 84, 0
    WRITE_SHARE_GROUP_STATE = 85, 0
    DELETE_SHARE_GROUP_STATE = 86, 0
    READ_SHARE_GROUP_STATE_SUMMARY = 87, 0
    STREAMS_GROUP_HEARTBEAT = 88, 0
    STREAMS_GROUP_DESCRIBE = 89, 0
    DESCRIBE_SHARE_GROUP_OFFSETS = 90, 0
    ALTER_SHARE_GROUP_OFFSETS = 91, 0
    DELETE_SHARE_GROUP_OFFSETS = 92, 0
