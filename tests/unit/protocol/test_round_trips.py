"""Every message in every version, encoded and decoded again."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.schema import decode, encode_bytes
from tests.support.network.wire_messages import MESSAGE_VERSIONS, case_id, messages


@pytest.mark.parametrize(("message_class", "version"), MESSAGE_VERSIONS, ids=case_id)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_messages_round_trip(message_class, version, data):
    """A message with any values is equal after encoding and decoding it."""
    message = data.draw(messages(message_class, version))
    assert message == decode(message_class, encode_bytes(message, version), version)


@pytest.mark.parametrize(("message_class", "version"), MESSAGE_VERSIONS, ids=case_id)
@settings(max_examples=20, deadline=None)
@given(garbage=st.binary(max_size=60))
def test_garbage_is_decoded_or_refused(message_class, version, garbage):
    """Any bytes are a message or a DecodeError, and a message can be encoded again."""
    try:
        message = decode(message_class, garbage, version)
    except DecodeError:
        return
    assert message == decode(message_class, encode_bytes(message, version), version)
