"""The broker's side of SCRAM: the example of RFC 7677, and refusals."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.devbroker.net.sasl_servers import (
    Credentials,
    SaslAuthenticationError,
    SaslRefusedError,
    ScramServer,
    scram_credential,
)
from spark_kafka_sink.security.sasl import SaslMechanism

# The example of RFC 7677, section 3.
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
SERVER_FIRST = f"r={CLIENT_NONCE}{NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
PROOF = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
CLIENT_FINAL = f"c=biws,r={CLIENT_NONCE}{NONCE},p={PROOF}".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
CREDENTIAL = scram_credential(
    SaslMechanism.SCRAM_SHA_256,
    "pencil",
    salt=base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="),
    iterations=4096,
)


def server():
    return ScramServer(SaslMechanism.SCRAM_SHA_256, {"user": CREDENTIAL}.get, nonce=NONCE)


def refusal(*messages):
    """Return the error with which the last message is refused."""
    scram = server()
    for message in messages[:-1]:
        scram.evaluate_response(message, 0.0)
    with pytest.raises(SaslRefusedError) as caught:
        scram.evaluate_response(messages[-1], 0.0)
    assert not scram.is_complete
    return caught.value


def test_the_exchange_of_the_rfc():
    """The responses match the example of RFC 7677 byte for byte."""
    scram = server()
    assert SERVER_FIRST == scram.evaluate_response(CLIENT_FIRST, 0.0)
    assert not scram.is_complete
    assert SERVER_FINAL == scram.evaluate_response(CLIENT_FINAL, 0.0)
    assert scram.is_complete
    assert "user" == scram.user


def test_the_client_cannot_distinguish_an_unknown_user_from_a_wrong_password():
    """Both are refused without a message for the client."""
    unknown = refusal(CLIENT_FIRST.replace(b"user", b"other"))
    wrong = refusal(CLIENT_FIRST, CLIENT_FINAL.replace(b"dHz", b"dHy"))

    assert "user 'other' does not exist" == str(unknown)
    assert "the password of user 'user' is wrong" == str(wrong)
    assert {SaslRefusedError} == {type(unknown), type(wrong)}


def test_another_authorization_id_is_refused():
    """An authorization id other than the user's is refused, and the client gets the reason."""
    refused = refusal(CLIENT_FIRST.replace(b"n,,", b"n,a=other,"))
    assert isinstance(refused, SaslAuthenticationError)
    assert "authorization id" in str(refused)


def test_delegation_tokens_are_unknown():
    """This broker has no delegation tokens."""
    assert "delegation token" in str(refusal(CLIENT_FIRST + b",tokenauth=true"))


def test_a_repeated_nonce_is_refused():
    """The last message has to repeat the nonce of this exchange."""
    assert "a different nonce" in str(refusal(CLIENT_FIRST, CLIENT_FINAL.replace(b"%hv", b"%hw")))


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff",
        b"n,,n=user",
        b"y,,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,m=x,n=user,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
    ],
)
def test_a_malformed_first_message_is_refused(first):
    """A first message that does not follow the RFC ends the exchange."""
    assert "SCRAM" in str(refusal(first))


@pytest.mark.parametrize(
    "final",
    [
        b"",
        b"\xff",
        CLIENT_FINAL.partition(b",p=")[0],
        CLIENT_FINAL.replace(PROOF.encode(), b""),
        CLIENT_FINAL.replace(PROOF.encode(), b"AAAA"),
        CLIENT_FINAL.replace(PROOF.encode(), b"A"),
    ],
)
def test_a_malformed_last_message_is_refused(final):
    """A last message that does not follow the RFC or has no proof ends the exchange."""
    assert "SCRAM" in str(refusal(CLIENT_FIRST, final))


@given(first=st.binary(max_size=60), final=st.binary(max_size=60))
def test_garbage_is_refused(first, final):
    """Any garbage is refused with SaslRefusedError and no other error."""
    refusal(first)
    refusal(CLIENT_FIRST, final)


def test_salts_and_nonces_are_not_used_twice():
    """Users with the same password have different keys, and exchanges have different nonces."""
    credentials = Credentials({"a": "secret", "b": "secret"}, iterations=4096)
    one, other = (credentials.scram(SaslMechanism.SCRAM_SHA_512, user) for user in "ab")
    said = {
        ScramServer(SaslMechanism.SCRAM_SHA_256, {"user": CREDENTIAL}.get).evaluate_response(
            CLIENT_FIRST, 0.0
        )
        for _ in range(2)
    }

    assert one.salt != other.salt
    assert one.stored_key != other.stored_key
    assert 2 == len(said)


def test_keys_are_derived_once():
    """The keys derived from a password do not change while the broker runs."""
    credentials = Credentials({"a": "secret"}, iterations=4096)
    kept = [credentials.scram(SaslMechanism.SCRAM_SHA_256, "a") for _ in range(2)]
    assert kept[0] is kept[1]
    assert None is credentials.scram(SaslMechanism.SCRAM_SHA_256, "b")
