"""The checksum."""

from __future__ import annotations

import numpy as np
import pytest

from spark_kafka_sink.record.record_batch import crc32c


def test_the_standard_check_value_is_reproduced():
    """The digits 1 to 9 have the checksum listed in the CRC catalogue."""
    assert 0xE3069283 == crc32c(b"123456789")


@pytest.mark.parametrize("cut", range(10))
def test_a_checksum_can_be_continued(cut):
    """A checksum can be continued from that of the preceding bytes."""
    assert 0xE3069283 == crc32c(b"123456789"[cut:], crc32c(b"123456789"[:cut]))


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_type_of_buffer_is_accepted(wrap):
    """The checksum accepts bytes, bytearrays and memory views."""
    assert 0xE3069283 == crc32c(wrap(b"123456789"))


def test_numpy_arrays_are_accepted():
    """The checksum accepts numpy arrays."""
    assert 0xE3069283 == crc32c(np.frombuffer(b"123456789", np.uint8))
