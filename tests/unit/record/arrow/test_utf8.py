"""UTF-8 that is invalid is replaced as in Java; see golden/Utf8Goldens.java."""

from __future__ import annotations

import json
from pathlib import Path

from spark_kafka_sink.record.decode import decode_utf8

CASES = [
    (bytes.fromhex(encoded), bytes.fromhex(expected).decode())
    for encoded, expected in json.loads(
        (Path(__file__).parents[1] / "golden" / "java_utf8.json").read_text()
    )
]


def test_strings_are_decoded_as_in_java():
    """Malformed sequences of all kinds are replaced by as many characters as in Java."""
    different = [
        (encoded, expected, decode_utf8(encoded))
        for encoded, expected in CASES
        if decode_utf8(encoded) != expected
    ]
    assert [] == different


def test_java_replaces_more_bytes_together_than_python():
    """The golden cases include those where Java and Python differ."""
    assert any(encoded.decode(errors="replace") != expected for encoded, expected in CASES)
