"""Every message in every version, encoded and decoded again."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.codec import decode, encode_bytes
from tests.support.network.wire_messages import MESSAGES, messages, name_of, versions_of

#: An example has a message for each version.
_LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@pytest.mark.parametrize("message_class", MESSAGES, ids=name_of)
@settings(max_examples=8, deadline=None, suppress_health_check=_LARGE)
@given(data=st.data())
def test_messages_round_trip(message_class, data):
    """A message with any values is equal after encoding and decoding it."""
    for version in versions_of(message_class):
        message = data.draw(messages(message_class, version))
        assert message == decode(message_class, encode_bytes(message, version), version)


@pytest.mark.parametrize("message_class", MESSAGES, ids=name_of)
@settings(max_examples=20, deadline=None)
@given(garbage=st.binary(max_size=60))
def test_garbage_is_decoded_or_refused(message_class, garbage):
    """Any bytes are a message or a DecodeError, and a message can be encoded again."""
    for version in versions_of(message_class):
        try:
            message = decode(message_class, garbage, version)
        except DecodeError:
            continue
        assert message == decode(message_class, encode_bytes(message, version), version)
