"""The rules by which Kafka's clients choose a partition for a key, one per client and setting.

Producers of one topic must use the same rule, otherwise the records of a key end up in two
partitions. A rule is a hash and the shortest key that is hashed: clients differ in whether an empty
or a null key counts as a key. A record whose key is not hashed is keyless, and the partitioner may
choose any partition for it. Each hash yields an unsigned number, which modulo the number of
partitions is the partition.

This module has the names; the compiled hashes are in `kernel_hashes`.
"""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class KeyHash(IntEnum):
    """A hash, including how its client makes the result positive."""

    #: Java's `Utils.murmur2` with the sign bit cleared (`Utils.toPositive`).
    MURMUR2 = 0
    #: CRC-32 of IEEE 802.3, an unsigned number: librdkafka's `rd_crc32`.
    CRC32 = 1
    #: The absolute value of 32-bit FNV-1a read as an int32: Sarama's `hashPartitioner`.
    FNV1A = 2


#: For `KeyRule.shortest_key`: a null key is hashed like an empty one.
NULL_IS_HASHED: Final = -1
#: For `KeyRule.shortest_key`: an empty key is hashed, a null key is not.
EMPTY_IS_HASHED: Final = 0
#: For `KeyRule.shortest_key`: neither an empty nor a null key is hashed.
EMPTY_IS_KEYLESS: Final = 1


class KeyRule(NamedTuple):
    """A hash, and the keys that it applies to."""

    key_hash: KeyHash
    #: The length of the shortest key that is hashed, in bytes; a null key has the length -1.
    shortest_key: int


#: Java's BuiltInPartitioner.partitionForKey.
DEFAULT_KEY_RULE: Final = KeyRule(KeyHash.MURMUR2, EMPTY_IS_HASHED)

#: The names of librdkafka's setting `partitioner`, with two exceptions. Its `murmur2` and `fnv1a`
#: send all records without a key to one partition, while users of Java and Sarama expect the same
#: hash with such records spread over all partitions. Here the two names mean the latter, and
#: librdkafka's versions have the suffix `_consistent`, after its `consistent`.
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
