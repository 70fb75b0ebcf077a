from __future__ import annotations

import struct

import pytest

from spark_kafka_sink.security.kerberos import keytab_principals

#: An entry as `kadmin.local ktadd` writes it, with an empty key.
ALICE = bytes.fromhex(
    "0001 0009 53494e4b2e54455354 0005 616c696365 00000001 6540a1b2 02 0011 0010"
    "00000000 00000000 00000000 00000000 00000002"
)
SERVICE = b"\x00\x02\x00\x01R\x00\x05kafka\x00\x04host\x00\x00\x00\x01rest"


def entry(data):
    return struct.pack(">i", len(data)) + data


def test_principals_are_listed_once_in_order():
    """Principals are returned with name and realm; holes and further keys are skipped."""
    hole = struct.pack(">i", -7) + b"removed"
    data = b"\x05\x02" + entry(ALICE) + hole + entry(SERVICE) + entry(ALICE)
    assert ["alice@SINK.TEST", "kafka/host@R"] == keytab_principals(data)
    assert [] == keytab_principals(b"\x05\x02")
    assert ["kafka/host@R"] == keytab_principals(b"\x05\x02" + entry(SERVICE) + bytes(40))
    never_written = bytes(4) + entry(ALICE)
    assert ["kafka/host@R"] == keytab_principals(b"\x05\x02" + entry(SERVICE) + never_written)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is not a keytab"),
        (b"\x05\x01" + entry(ALICE), "it is not a keytab"),
        (b"-----BEGIN", "it is not a keytab"),
        (b"\x05\x02\x00", "it is a truncated keytab"),
        (b"\x05\x02" + entry(SERVICE)[:12], "it is a truncated keytab"),
        (b"\x05\x02" + entry(b"\x00\x01\x00\x01\xff\x00\x00"), "it is a truncated keytab"),
    ],
)
def test_an_invalid_keytab_raises_value_error(data, reason):
    """Another kind of file, or a truncated one, raises ValueError and nothing else."""
    with pytest.raises(ValueError, match=reason):
        keytab_principals(data)
