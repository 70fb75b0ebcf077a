"""Properties of an authentication that hold whatever a broker sends."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_kafka_sink.errors import AuthenticationError, NetworkError
from spark_kafka_sink.network.authentication.sasl_authenticator import (
    AuthenticationState,
    SaslAuthenticator,
)
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeResponse
from spark_kafka_sink.security.sasl import SaslMechanism
from tests.support.fuzzing.fuzz_client import NODE, SECRET, sasl_client, whole_exchange

COMPLETE = AuthenticationState.COMPLETE
SCRAM = [SaslMechanism.SCRAM_SHA_256, SaslMechanism.SCRAM_SHA_512]
WITH_PROOF = [*SCRAM, SaslMechanism.GSSAPI]
mechanisms = st.sampled_from(SaslMechanism)
#: Words of the mechanisms, the secret, and anything else.
texts = st.one_of(
    st.text(),
    st.lists(
        st.sampled_from([SECRET, "r=fuzz", "s=c2FsdA==", "i=4096", "v=", "e=", ",", "\n"])
    ).map("".join),
)
challenges = st.one_of(st.binary(max_size=200), texts.map(lambda text: text.encode()))
handshakes = st.builds(
    SaslHandshakeResponse,
    error_code=st.sampled_from([0, 0, 0, 33, 34, 35, -1]),
    mechanisms=st.lists(texts, max_size=3).map(tuple),
)
answers = st.builds(
    SaslAuthenticateResponse,
    error_code=st.sampled_from([0, 0, 0, 0, 58, 34, -1, 9999]),
    error_message=st.none() | texts,
    auth_bytes=challenges,
    session_lifetime_ms=st.integers(-(2**63), 2**63 - 1),
)


def outcome(mechanism, said):
    """Authenticate against a broker's messages; return the outcome and the error's text."""
    authenticator = SaslAuthenticator(sasl_client(mechanism), NODE)
    authenticator.begin()
    try:
        for answer in said:
            if authenticator.receive(answer) is None:
                break
    except (AuthenticationError, NetworkError) as error:
        return authenticator.state, str(error)
    return authenticator.state, ""


@pytest.mark.parametrize("mechanism", SaslMechanism)
def test_valid_exchanges_succeed(mechanism):
    """The valid exchanges, of which all others here are variations, succeed."""
    assert (COMPLETE, "") == outcome(mechanism, whole_exchange(mechanism))


@given(mechanism=mechanisms, handshake=handshakes, said=st.lists(answers, max_size=5))
def test_an_error_has_one_line_and_shows_no_secret(mechanism, handshake, said):
    """In any case the error is ours, printable, of limited length, and without the secret."""
    _, text = outcome(mechanism, [handshake, *said])
    assert sasl_client(mechanism).secret == "" or SECRET not in text
    assert text.isprintable()
    assert len(text) < 10_000


@given(mechanism=st.sampled_from(WITH_PROOF), said=st.lists(challenges, max_size=4))
@example(mechanism=SaslMechanism.SCRAM_SHA_256, said=[b"v="])
@example(mechanism=SaslMechanism.SCRAM_SHA_256, said=[b"r=fuzzx,s=c2FsdA==,i=4096", b""])
def test_consent_without_proof_is_not_accepted(mechanism, said):
    """A broker that does not know the secret cannot authenticate by merely consenting."""
    handshake = SaslHandshakeResponse(mechanisms=(mechanism,))
    made = [SaslAuthenticateResponse(auth_bytes=challenge) for challenge in said]
    # The context of these tests accepts any token; only the offer of layers is left as proof.
    if mechanism is SaslMechanism.GSSAPI:
        made = [it for it in made if len(it.auth_bytes) != 4]
    state, _ = outcome(mechanism, [handshake, *made])
    assert state is not COMPLETE


@given(mechanism=st.sampled_from(SCRAM), data=st.data())
def test_a_changed_byte_invalidates_the_proof(mechanism, data):
    """A SCRAM exchange fails if any byte of the broker's messages is changed."""
    said = list(whole_exchange(mechanism))
    index = data.draw(st.sampled_from([1, 2]))
    changed = bytearray(said[index].auth_bytes)
    # The last character of base64 has bits without meaning.
    last = len(changed) - (1 if index == 1 else 5)
    position = data.draw(st.integers(0, last))
    changed[position] ^= data.draw(st.integers(1, 255))
    said[index] = SaslAuthenticateResponse(auth_bytes=bytes(changed))
    state, _ = outcome(mechanism, said)
    assert state is not COMPLETE
