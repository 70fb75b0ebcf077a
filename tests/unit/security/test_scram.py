from __future__ import annotations

import base64

import pytest
from aiokafka.conn import ScramAuthenticator
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.devbroker.net.sasl_servers import ScramServer, scram_credential
from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.security.sasl import SaslMechanism
from spark_kafka_sink.security.scram import HASHES, ScramClient

MECHANISMS = list(HASHES)
# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = f"r={NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
CLIENT_FINAL = (
    f"c=biws,r={NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def client(mechanism=SaslMechanism.SCRAM_SHA_256, user="user", password="pencil", **options):  # noqa: S107
    return ScramClient(mechanism, user, password, **{"nonce": NONCE, **options})


def refusal(*challenges: bytes) -> str:
    """Return the error with which the broker's last message is refused."""
    scram = client()
    scram.initial_response()
    for challenge in challenges[:-1]:
        scram.evaluate_challenge(challenge)
    with pytest.raises(AuthenticationError) as caught:
        scram.evaluate_challenge(challenges[-1])
    assert not scram.is_complete
    return str(caught.value)


def test_the_example_of_the_rfc_is_reproduced():
    """RFC 7677's example is reproduced byte for byte."""
    scram = client()
    assert f"n,,n=user,r={NONCE}".encode() == scram.initial_response()
    assert CLIENT_FINAL == scram.evaluate_challenge(SERVER_FIRST)
    assert not scram.is_complete
    assert scram.evaluate_challenge(SERVER_FINAL) is None
    assert scram.is_complete


def test_aiokafkas_client_computes_the_same_proof():
    """An independent SCRAM-SHA-512 client computes the same proof for the same challenge."""
    other = ScramAuthenticator(
        loop=None,
        sasl_plain_username="a,user",
        sasl_plain_password="pencil",  # noqa: S106
        sasl_mechanism="SCRAM-SHA-512",
    )
    scram = client(SaslMechanism.SCRAM_SHA_512, "a,user", nonce=other._nonce)
    assert other.first_message().encode() == scram.initial_response()
    challenge = SERVER_FIRST.replace(NONCE.encode(), other._nonce.encode())
    other.process_server_first_message(challenge.decode())
    assert other.final_message().encode() == scram.evaluate_challenge(challenge)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@settings(max_examples=10)
@given(user=st.text(max_size=8), password=st.text(max_size=8))
def test_any_user_authenticates_at_a_server_written_from_the_rfc(mechanism, user, password):
    """Any user authenticates at a server that stores keys as in the RFC."""
    user = user.replace("\0", "") or "user"
    scram = client(mechanism, user, password)
    kept = scram_credential(mechanism, password, salt=b"salt of the test", iterations=4096)
    server = ScramServer(mechanism, lambda _: kept)
    answer = scram.evaluate_challenge(server.evaluate_response(scram.initial_response(), 0.0))
    assert scram.evaluate_challenge(server.evaluate_response(answer, 0.0)) is None
    assert user == server.user
    assert scram.is_complete


def test_each_exchange_has_its_own_nonce():
    """Each exchange has its own nonce of 24 random bytes."""
    said = [client(nonce=None).initial_response() for _ in range(2)]
    assert said[0] != said[1]
    assert len("n,,n=user,r=") + 32 == len(said[0])


def test_commas_and_equals_signs_are_escaped_in_names():
    """Characters that structure a message are escaped in a username."""
    assert f"n,,n=a=2Cb=3Dc,r={NONCE}".encode() == client(user="a,b=c").initial_response()


def test_a_delegation_token_is_announced():
    """The first message announces a delegation token (KIP-48)."""
    assert (
        f"n,,n=id,r={NONCE},tokenauth=true".encode()
        == client(user="id", token_auth=True).initial_response()
    )


def test_a_wrong_signature_is_refused():
    """A broker that does not know the password is refused."""
    wrong = b"v=" + base64.b64encode(bytes(32))
    assert "signature is wrong" in refusal(SERVER_FIRST, wrong)


def test_a_truncated_signature_is_refused():
    """A truncated signature is refused."""
    assert "signature is wrong" in refusal(SERVER_FIRST, b"v=6rri")


def test_the_error_contains_the_brokers_error():
    """The error contains the broker's objection to the proof."""
    expected = "the broker rejected the authentication: invalid-proof"
    assert expected == refusal(SERVER_FIRST, b"e=invalid-proof")


@pytest.mark.parametrize("iterations", [0, 1, 4095, 1_000_001, 999_999_999])
def test_iterations_out_of_bounds_are_refused(iterations):
    """Too few iterations help a fake broker, too many keep the client busy."""
    first = SERVER_FIRST.replace(b"4096", str(iterations).encode())
    assert (
        f"the broker requires {iterations} SCRAM iterations, "
        "but this client accepts 4096 to 1000000"
    ) == refusal(first)


@pytest.mark.parametrize("nonce", [NONCE, f"x{NONCE}", "other", NONCE[:-1]])
def test_a_nonce_that_does_not_continue_ours_is_refused(nonce):
    """A response to another exchange, or without a nonce of the broker's own, is refused."""
    assert "belongs to another exchange" in refusal(f"r={nonce},s=QSXCR+Q6sek8bf92,i=4096".encode())


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff",
        b"e=other-error",
        b"r=a,s=b",
        b"m=x," + SERVER_FIRST,
        SERVER_FIRST + b",",
        SERVER_FIRST.replace(b"s=", b"s=!"),
        SERVER_FIRST.replace(b"i=", b"i=-"),
        SERVER_FIRST.replace(b"4096", b"9" * 10),
    ],
)
def test_a_malformed_first_message_is_refused(first):
    """A first message that violates the RFC ends the exchange."""
    assert "the broker" in refusal(first)


def test_a_salt_of_invalid_base64_is_refused():
    """A salt that looks like base64 but is not ends the exchange."""
    assert "malformed base64" in refusal(SERVER_FIRST.replace(b"W22Za", b"W22Z"))


def test_base64_with_excess_padding_is_refused():
    """Python would ignore the padding, but the RFC does not allow it."""
    assert "malformed base64" in refusal(SERVER_FIRST, b"v=abc==")


@pytest.mark.parametrize("final", [b"", b"v=", b"v=?", b"v=ab,e=", b"x=y", b"v=abc=="])
def test_a_malformed_last_message_is_refused(final):
    """A malformed last message does not complete the exchange."""
    assert "the broker's" in refusal(SERVER_FIRST, final)


@given(first=st.binary(max_size=60), final=st.binary(max_size=60))
def test_garbage_is_refused(first, final):
    """Any input is refused with AuthenticationError, and with nothing else."""
    refusal(first)
    refusal(SERVER_FIRST, final)


def test_unknown_attributes_are_skipped():
    """Optional attributes at the end change nothing, but are signed."""
    assert client().evaluate_challenge(SERVER_FIRST + b",x=y") is not None


def test_the_password_is_not_normalized():
    """As in Kafka's tools, a password that SASLprep would change is used as it is."""
    said = {client(password=p).evaluate_challenge(SERVER_FIRST) for p in ("\ufb01", "fi")}
    assert 2 == len(said)
