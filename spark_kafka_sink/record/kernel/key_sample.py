"""A sample of the keys of many rows, by which several samples of one write can be compared.

The hash that places a key on a partition also chooses the sample: keys for which it is below a
threshold, which halves whenever there are too many of them. So a sample is small for any number of
rows, and all samples have the same keys in common. A sampled key is then hashed to 63 bits,
together with its topic: two keys that differ are taken for one with a chance of 2**-63. That hash
does not withstand keys that somebody has chosen to collide.

`assign_slots` calls this for keys that are below the threshold and not in the little table of those
seen last, which is to say, for few rows.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import numpy as np

from spark_kafka_sink.record.kernel.kernel_support import (
    kernel_part,
    load_int64,
    load_uint8,
    load_uint32,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_kafka_sink.record.columns import Int64Array

#: The most keys of a sample.
MOST_KEYS: Final = 128
#: The places of the table of keys seen last, which has their numbers (`key_number`) and topics.
_SEEN_PLACES: Final = 1024
#: The mask of the sum of both that is the place in that table.
SEEN_MASK: Final = _SEEN_PLACES - 1

# The state of a sample: the threshold for numbers, the count of sampled keys, the table of those
# seen last, and the numbers and hashes of the sampled ones, one more than there may be.
_THRESHOLD: Final = 0
_COUNT: Final = 1
SEEN: Final = 2
_NUMBERS: Final = SEEN + _SEEN_PLACES
_HASHES: Final = _NUMBERS + MOST_KEYS + 1
_STATE_SIZE: Final = _HASHES + MOST_KEYS + 1
#: Numbers are at most 2**32 - 1.
_NO_THRESHOLD: Final = 1 << 32

_MASK_63: Final = 0x7FFFFFFFFFFFFFFF
_MASK_32: Final = 0xFFFFFFFF
# Odd numbers with well mixed bits; below 2**63, since numba takes larger ones for unsigned.
_MULTIPLIER: Final = 0x2545F4914F6CDD1D
_LAST_MULTIPLIER: Final = 0x5851F42D4C957F2D


@kernel_part
def _widened(number: int) -> int:
    # With `int` it would remain unsigned.
    return np.int64(number)  # type: ignore[return-value]


@kernel_part
def _mixed(hashed: int, word: int, multiplier: int) -> int:
    hashed = (hashed ^ word) * multiplier
    return hashed ^ ((hashed >> 32) & _MASK_32)


@kernel_part
def _hash(data: int, length: int, seed: int) -> int:
    """Hash the bytes at address `data` to 63 bits."""
    hashed = _mixed(seed, length, _LAST_MULTIPLIER)
    end = data + length
    while data + 8 <= end:
        hashed = _mixed(hashed, load_int64(data), _MULTIPLIER)
        data += 8
    rest = end - data
    if rest >> 2:  # 4 or more, whose words may overlap
        word = _widened(load_uint32(data)) | (_widened(load_uint32(end - 4)) << 32)
        hashed = _mixed(hashed, word, _MULTIPLIER)
    elif rest:
        word = (
            _widened(load_uint8(data))
            | (_widened(load_uint8(data + (rest >> 1))) << 8)
            | (_widened(load_uint8(end - 1)) << 16)
        )
        hashed = _mixed(hashed, word, _MULTIPLIER)
    return _mixed(hashed, 0, _LAST_MULTIPLIER) & _MASK_63


@kernel_part
def sample_key(  # noqa: PLR0917  compiled functions get arguments by position
    state: Int64Array, number: int, topic: int, data: int, length: int, topic_seed: int
) -> int:
    """Add a key, whose number is below the threshold; return the threshold from now on."""
    state[SEEN + ((number + topic) & SEEN_MASK)] = number + (topic << 32) + 1
    hashed = _hash(data, length, topic_seed)
    threshold: int = state[_THRESHOLD]
    count: int = state[_COUNT]
    for place in range(count):
        if state[_HASHES + place] == hashed:
            return threshold
    state[_NUMBERS + count] = number
    state[_HASHES + count] = hashed
    count += 1
    while count > MOST_KEYS:
        threshold >>= 1
        kept = 0
        for place in range(count):
            if state[_NUMBERS + place] < threshold:
                state[_NUMBERS + kept] = state[_NUMBERS + place]
                state[_HASHES + kept] = state[_HASHES + place]
                kept += 1
        count = kept
    state[_THRESHOLD], state[_COUNT] = threshold, count
    return threshold


class KeySample:
    """The sample of one task: it grows with each `assign_slots` that it is given to."""

    def __init__(self) -> None:
        #: What the kernel changes; the first number is the threshold.
        self.state: Int64Array = np.zeros(_STATE_SIZE, np.int64)
        self.state[_THRESHOLD] = _NO_THRESHOLD
        self._seeds: dict[str, int] = {}

    def topic_seeds(self, topics: Iterable[str]) -> Int64Array:
        """Return a number for each topic, so that a key of two topics counts as two keys."""
        return np.array([self._seed(topic) for topic in topics], np.int64)

    def _seed(self, topic: str) -> int:
        seed = self._seeds.get(topic)
        if seed is None:
            digest = blake2b(topic.encode(), digest_size=8).digest()
            seed = self._seeds[topic] = int.from_bytes(digest, "little", signed=True)
        return seed

    def hashes(self) -> tuple[int, ...]:
        """Return the hashes of the sampled keys, in order."""
        hashes = self.state[_HASHES : _HASHES + int(self.state[_COUNT])]
        return tuple(sorted(hashes.tolist()))


#: For rows whose keys are not sampled: a threshold that no number is below.
NO_SAMPLE: Final = np.zeros(1, np.int64)
NO_SEEDS: Final = np.zeros(0, np.int64)
