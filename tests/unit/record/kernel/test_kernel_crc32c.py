"""The compiled checksum, compared with the library's."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numba import types

from spark_kafka_sink.record.crc32c import crc32c
from spark_kafka_sink.record.kernel.kernel_crc32c import small_crc32c
from spark_kafka_sink.record.kernel.kernel_support import kernel


@kernel(types.int64(types.int64, types.int64))
def _small_crc32c(address, count):
    return small_crc32c(address, count)


def test_the_check_value_of_the_algorithm():
    """The digits 1 to 9 have the published checksum."""
    assert 0xE3069283 == computed(b"123456789")


@given(data=st.binary(max_size=100), skipped=st.integers(0, 8))
def test_the_kernel_and_the_library_agree(data, skipped):
    """The checksum is that of the library, for any length and alignment."""
    assert crc32c(data[skipped:]) == computed(data, skipped)


def computed(data: bytes, skipped: int = 0) -> int:
    array = np.frombuffer(data + b"x", np.uint8)[min(skipped, len(data)) :]
    return _small_crc32c(array.ctypes.data, array.size - 1)
