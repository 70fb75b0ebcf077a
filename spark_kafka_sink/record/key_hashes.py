"""How Kafka's clients place a record by its key, one rule per client and setting.

Producers of one topic must agree on this, or a key has its records on two partitions. A rule is a
hash and the shortest key that is hashed: clients differ in whether they take an empty or a missing
key for a key. What is not hashed is a keyless record, and goes where the partitioner likes best.
Each hash makes its own number without sign, which modulo the number of partitions is the partition.

This module has the names; the compiled hashes are in `kernel_hashes`.
"""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class KeyHash(IntEnum):
    """A hash, together with how its client makes the result positive."""

    #: Java's `Utils.murmur2`, without the sign bit (`Utils.toPositive`).
    MURMUR2 = 0
    #: CRC-32 as of IEEE 802.3, a number without sign: librdkafka's `rd_crc32`.
    CRC32 = 1
    #: FNV-1a of 32 bits as an int32, without its sign: Sarama's `hashPartitioner`.
    FNV1A = 2


#: For `KeyRule.shortest_key`: a missing key is hashed as an empty one.
NULL_IS_HASHED: Final = -1
#: For `KeyRule.shortest_key`: a missing key is none, an empty one is a key.
EMPTY_IS_HASHED: Final = 0
#: For `KeyRule.shortest_key`: a missing key is none, and so is an empty one.
EMPTY_IS_KEYLESS: Final = 1


class KeyRule(NamedTuple):
    """Which keys are hashed, and how."""

    key_hash: KeyHash
    #: In bytes; a missing key counts as -1.
    shortest_key: int


#: Java's BuiltInPartitioner.partitionForKey.
DEFAULT_KEY_RULE: Final = KeyRule(KeyHash.MURMUR2, EMPTY_IS_HASHED)

#: The names of librdkafka's setting `partitioner`, but for two. Its `murmur2` and `fnv1a` put all
#: records without a key on one partition, while for users of Java and of Sarama these names stand
#: for the same hash with such records spread: here that is what they mean, and librdkafka's two
#: have the suffix that its `consistent` suggests.
KEY_RULES: Final[Mapping[str, KeyRule]] = MappingProxyType(
    {
        "murmur2": DEFAULT_KEY_RULE,
        "murmur2_random": DEFAULT_KEY_RULE,
        "murmur2_consistent": KeyRule(KeyHash.MURMUR2, NULL_IS_HASHED),
        "crc32": KeyRule(KeyHash.CRC32, EMPTY_IS_KEYLESS),
        "consistent_random": KeyRule(KeyHash.CRC32, EMPTY_IS_KEYLESS),
        "consistent": KeyRule(KeyHash.CRC32, NULL_IS_HASHED),
        "fnv1a": KeyRule(KeyHash.FNV1A, EMPTY_IS_HASHED),
        "fnv1a_random": KeyRule(KeyHash.FNV1A, EMPTY_IS_HASHED),
        "fnv1a_consistent": KeyRule(KeyHash.FNV1A, NULL_IS_HASHED),
    }
)
