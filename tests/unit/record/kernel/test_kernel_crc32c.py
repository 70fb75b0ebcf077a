"""The compiled checksums, compared with the library's."""

from __future__ import annotations

import platform

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.record.kernel import kernel_crc32c
from spark_kafka_sink.record.kernel.kernel_crc32c import small_crc32c, table_crc32c
from spark_kafka_sink.record.kernel.kernel_support import kernel
from spark_kafka_sink.record.record_batch import crc32c


@kernel(1, int, int)
def _by_table(address, count):
    return table_crc32c(address, count)


@kernel(1, int, int)
def _by_chosen_way(address, count):
    return small_crc32c(address, count)


WAYS = pytest.mark.parametrize("compiled", [_by_table, _by_chosen_way], ids=["table", "chosen"])


def computed(compiled, data: bytes, skipped: int = 0) -> int:
    array = np.frombuffer(data + b"x", np.uint8)[min(skipped, len(data)) :]
    return compiled(array.ctypes.data, array.size - 1)


@WAYS
def test_the_check_value_of_the_algorithm(compiled):
    """The digits 1 to 9 have the published checksum."""
    assert 0xE3069283 == computed(compiled, b"123456789")


@WAYS
@given(data=st.binary(max_size=100), skipped=st.integers(0, 8))
def test_the_kernels_and_the_library_agree(compiled, data, skipped):
    """The checksum is that of the library, for any length and alignment."""
    assert crc32c(data[skipped:]) == computed(compiled, data, skipped)


@pytest.mark.parametrize(
    ("machine", "features", "told", "expected"),
    [
        ("x86_64", {"sse4.2": True, "crc32": True}, {}, True),
        ("x86_64", {"sse4.2": True, "crc32": True}, {"NUMBA_CPU_NAME": "generic"}, False),
        ("x86_64", {"sse4.2": True, "crc32": True}, {"NUMBA_CPU_FEATURES": ""}, False),
        ("x86_64", {"sse4.2": True, "crc32": False}, {}, False),
        ("x86_64", {}, {}, False),
        ("aarch64", {"crc": True}, {}, False),
    ],
)
def test_the_instruction_is_used_only_where_it_exists(
    monkeypatch, machine, features, told, expected
):
    """The compiler would end the process if the target had no such instruction."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(kernel_crc32c.binding, "get_host_cpu_features", lambda: features)
    for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert expected == kernel_crc32c.has_instruction()


def test_a_configuration_file_of_numba_may_name_another_processor(tmp_path, monkeypatch):
    """In a directory with numba's configuration file, the instruction is not used."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".numba_config.yaml").write_text("cpu_name: generic\n")
    assert not kernel_crc32c.has_instruction()
