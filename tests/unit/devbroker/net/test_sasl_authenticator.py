"""The order of an authentication: Kafka's response to each step, in and out of order."""

from __future__ import annotations

import struct

import pytest

from spark_kafka_sink.devbroker.base.refusal import CloseConnectionError
from spark_kafka_sink.devbroker.net.listener import SERVED_MECHANISMS, SaslSettings
from spark_kafka_sink.devbroker.net.sasl_authenticator import (
    EXPECTED,
    TRANSITIONS,
    AuthenticationFailedError,
    SaslAuthenticator,
    SaslState,
)
from spark_kafka_sink.devbroker.net.sasl_servers import Credentials
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest
from spark_kafka_sink.protocol.registry import RequestHeader, decode_response, encode_request
from spark_kafka_sink.security.oauth_bearer import OAuthBearerClient, unsecured_token
from spark_kafka_sink.security.sasl import SaslMechanism
from spark_kafka_sink.security.scram import ScramClient
from tests.support.devbroker.broker_requests import NOW, broker_with

API_VERSIONS = ApiVersionsRequest(client_software_name="test", client_software_version="1")
METADATA = MetadataRequest(topics=())
HANDSHAKE = SaslHandshakeRequest(mechanism="PLAIN")
ALICE = SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret")
BOB = SaslAuthenticateRequest(auth_bytes=b"\0bob\0secret too")
WRONG = SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong")


class Client:
    """A client of an authenticator, without a socket."""

    def __init__(self, **settings):
        users = {"alice": "secret", "bob": "secret too"}
        sasl = SaslSettings(**{"users": users, "mechanisms": SERVED_MECHANISMS, **settings})
        credentials = Credentials(sasl.users, iterations=sasl.scram_iterations)
        self.authenticator = SaslAuthenticator(sasl, credentials, broker_with(), name="1")
        self.now = NOW

    @property
    def state(self):
        """The state of the authenticator."""
        return self.authenticator.state

    def say(self, request, version=None):
        """Send a request and return the response."""
        if version is None:
            version = type(request).versions.max
        return self.hear(self.say_bytes(frame(request, version)), request.api_key, version)

    def say_bytes(self, data):
        """Send a frame and return the response as one frame."""
        assert self.authenticator.takes(memoryview(data), self.now)
        return b"".join(self.authenticator.receive(memoryview(data), self.now))

    @staticmethod
    def hear(answer, api_key, version):
        """Decode a response."""
        (size,) = struct.unpack_from(">i", answer)
        assert len(answer) == size + 4
        return decode_response(api_key, version, answer[4:])[1]

    def fail(self, request, version=None):
        """Send a request that fails, and return the response, or None if there is none."""
        if version is None:
            version = type(request).versions.max
        with pytest.raises(AuthenticationFailedError) as caught:
            self.say_bytes(frame(request, version))
        assert SaslState.FAILED is self.state
        answer = b"".join(caught.value.answer)
        return self.hear(answer, request.api_key, version) if answer else None

    def authenticate(self, first=ALICE):
        """Request PLAIN and authenticate."""
        self.say(HANDSHAKE)
        return self.say(first)


def frame(request, version):
    header = RequestHeader(
        request_api_key=request.api_key,
        request_api_version=version,
        correlation_id=7,
        client_id="test",
    )
    return bytearray(b"".join(encode_request(header, request))[4:])


@pytest.fixture
def client():
    return Client()


def test_a_client_asks_for_versions_and_a_mechanism_and_authenticates(client):
    """Each step gets a response, and afterwards requests go to the broker."""
    states = [client.state]
    answers = []
    for request in (API_VERSIONS, HANDSHAKE, ALICE):
        answers.append(client.say(request).error_code)
        states.append(client.state)

    assert [ErrorCode.NONE] * 3 == answers
    assert [
        SaslState.INITIAL_REQUEST,
        SaslState.HANDSHAKE_REQUEST,
        SaslState.AUTHENTICATE,
        SaslState.COMPLETE,
    ] == states
    assert "alice" == client.authenticator.user
    assert not client.authenticator.takes(memoryview(frame(METADATA, 9)), NOW + 10**9)


def test_the_handshake_lists_the_mechanisms(client):
    """The response to SaslHandshake lists the mechanisms of the listener."""
    assert SERVED_MECHANISMS == client.say(HANDSHAKE).mechanisms


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_version_of_sasl_authenticate(version):
    """All versions of SaslAuthenticate complete the exchange."""
    client = Client()
    client.say(HANDSHAKE)
    assert ErrorCode.NONE == client.say(ALICE, version).error_code
    assert client.authenticator.is_complete


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("version", [0, 1])
def test_scram_in_requests_and_without(mechanism, version):
    """SCRAM messages are sent in requests, or after SaslHandshake 0 with only their size."""
    client = Client()
    scram = ScramClient(SaslMechanism(mechanism), "alice", "secret")
    client.say(SaslHandshakeRequest(mechanism=mechanism), version)
    said = scram.initial_response()
    while said is not None:
        if version == 0:
            answer = client.say_bytes(bytearray(said))[4:]
        else:
            answer = client.say(SaslAuthenticateRequest(auth_bytes=said)).auth_bytes
        said = scram.evaluate_challenge(bytes(answer))

    assert scram.is_complete
    assert client.authenticator.is_complete


def test_a_wrong_scram_password_gets_a_general_message(client):
    """The error message for SCRAM contains only the mechanism."""
    scram = ScramClient(SaslMechanism.SCRAM_SHA_256, "alice", "wrong")
    client.say(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
    first = client.say(SaslAuthenticateRequest(auth_bytes=scram.initial_response()))
    final = scram.evaluate_challenge(first.auth_bytes)
    failure = client.fail(SaslAuthenticateRequest(auth_bytes=final))

    assert ErrorCode.SASL_AUTHENTICATION_FAILED == failure.error_code
    assert (
        "Authentication failed during authentication due to invalid credentials with SASL "
        "mechanism SCRAM-SHA-256"
    ) == failure.error_message


def test_a_wrong_password_gets_an_error_message(client):
    """The error message for PLAIN says that the user or the password is wrong."""
    client.say(HANDSHAKE)
    failure = client.fail(WRONG)
    assert ErrorCode.SASL_AUTHENTICATION_FAILED == failure.error_code
    assert "Authentication failed: Invalid username or password" == failure.error_message


def test_a_wrong_password_without_headers_gets_no_response(client):
    """After SaslHandshake 0 there is no response that could carry an error."""
    client.say(HANDSHAKE, 0)
    with pytest.raises(AuthenticationFailedError) as caught:
        client.say_bytes(bytearray(b"\0alice\0wrong"))
    assert [] == caught.value.answer


def test_a_refused_token_gets_a_challenge_and_then_an_error(client):
    """OAUTHBEARER first refuses with a challenge, and then with an error."""
    ended = OAuthBearerClient(unsecured_token({"sub": "a"}, now=NOW - 100, lifetime=10))
    client.say(SaslHandshakeRequest(mechanism="OAUTHBEARER"))
    challenge = client.say(SaslAuthenticateRequest(auth_bytes=ended.initial_response()))
    assert ErrorCode.NONE == challenge.error_code
    said = ended.evaluate_challenge(challenge.auth_bytes)
    failure = client.fail(SaslAuthenticateRequest(auth_bytes=said))

    assert ErrorCode.SASL_AUTHENTICATION_FAILED == failure.error_code
    assert '{"status":"invalid_token"}' == failure.error_message


@pytest.mark.parametrize("mechanism", ["GSSAPI", "plain", "", "x" * 30_000])
def test_an_unknown_mechanism_is_refused(client, mechanism):
    """The response lists the supported mechanisms."""
    failure = client.fail(SaslHandshakeRequest(mechanism=mechanism))
    assert ErrorCode.UNSUPPORTED_SASL_MECHANISM == failure.error_code
    assert SERVED_MECHANISMS == failure.mechanisms


def test_requests_before_authentication_get_no_answer(client):
    """A request for the broker fails the connection and is not even decoded."""
    assert None is client.fail(METADATA)


def test_versions_may_be_requested_once(client):
    """After ApiVersions the client must send SaslHandshake."""
    client.say(API_VERSIONS)
    assert None is client.fail(API_VERSIONS)


def test_an_unknown_version_of_api_versions_may_be_asked_again(client):
    """After the response in version 0 the client may send ApiVersions again (KIP-511)."""
    data = frame(API_VERSIONS, 4)
    data[2:4] = struct.pack(">h", 99)
    answer = client.hear(client.say_bytes(data), ApiKey.API_VERSIONS, 0)
    assert ErrorCode.UNSUPPORTED_VERSION == answer.error_code
    assert ErrorCode.NONE == client.say(API_VERSIONS).error_code
    assert SaslState.HANDSHAKE_REQUEST is client.state


def test_an_authentication_without_handshake_gets_no_answer(client):
    """SaslAuthenticate must follow SaslHandshake."""
    assert None is client.fail(ALICE)


def test_another_request_in_the_exchange_is_an_illegal_state(client):
    """During the exchange any request but SaslAuthenticate gets its own error response."""
    client.say(HANDSHAKE)
    assert ErrorCode.ILLEGAL_SASL_STATE == client.fail(HANDSHAKE).error_code


@pytest.mark.parametrize("data", [b"", b"\0", b"\x60\x82abc", b"\x7f\xff\0\0\0\0\0\0\xff\xff"])
def test_garbage_closes_the_connection(client, data):
    """Bytes that are not a request get no response, without a delay."""
    with pytest.raises(DecodeError):
        client.say_bytes(bytearray(data))
    assert SaslState.FAILED is client.state


def test_an_unknown_version_of_sasl_handshake_closes_the_connection(client):
    """An unknown version of SaslHandshake cannot get a response."""
    data = frame(HANDSHAKE, 1)
    data[2:4] = struct.pack(">h", 9)
    with pytest.raises(CloseConnectionError):
        client.say_bytes(data)


def test_sessions_that_end_say_when():
    """Since version 1 the last response has connections.max.reauth.ms (KIP-368)."""
    client = Client(max_reauth_ms=5000)
    assert 5000 == client.authenticate().session_lifetime_ms
    assert NOW + 5 == client.authenticator.session_expires_at


@pytest.mark.parametrize(
    ("max_reauth_ms", "lifetime", "expected"),
    [(0, 20, 20_000), (5000, 20, 5000), (60_000, 20, 20_000), (0, 1e30, 2**63 - 1)],
)
def test_a_token_ends_the_session(max_reauth_ms, lifetime, expected):
    """A session ends with its token, or earlier if the listener limits its length."""
    client = Client(max_reauth_ms=max_reauth_ms)
    oauth = OAuthBearerClient(unsecured_token({"sub": "a"}, now=NOW, lifetime=lifetime))
    client.say(SaslHandshakeRequest(mechanism="OAUTHBEARER"))
    answer = client.say(SaslAuthenticateRequest(auth_bytes=oauth.initial_response()))
    assert expected == answer.session_lifetime_ms


def test_a_session_is_prolonged():
    """After another handshake by the same user, the session is extended from that time."""
    client = Client(max_reauth_ms=5000)
    client.authenticate()
    client.now += 4
    assert 5000 == client.authenticate().session_lifetime_ms
    assert NOW + 9 == client.authenticator.session_expires_at


def test_a_session_over_its_end_may_still_be_prolonged():
    """After its end a session can still be extended if the next request is SaslHandshake."""
    client = Client(max_reauth_ms=5000)
    client.authenticate()
    client.now += 6
    assert ErrorCode.NONE == client.authenticate().error_code


def test_a_request_after_the_session_closes_the_connection():
    """A client that continues past the end without authenticating again is disconnected."""
    client = Client(max_reauth_ms=5000)
    client.authenticate()
    requests = memoryview(frame(METADATA, 9))
    assert not client.authenticator.takes(requests, NOW + 5)
    with pytest.raises(CloseConnectionError, match="session has expired"):
        client.authenticator.takes(requests, NOW + 5.001)


def test_a_session_is_not_prolonged_twice_in_a_second():
    """A second handshake within a second goes to the broker, which refuses it."""
    client = Client(max_reauth_ms=5000)
    client.authenticate()
    client.authenticate()
    assert not client.authenticator.takes(memoryview(frame(HANDSHAKE, 1)), NOW + 0.5)
    assert client.authenticator.takes(memoryview(frame(HANDSHAKE, 1)), NOW + 1)


def test_a_session_without_end_is_not_prolonged(client):
    """If sessions do not end, a handshake goes to the broker, which refuses it."""
    client.authenticate()
    assert not client.authenticator.takes(memoryview(frame(HANDSHAKE, 1)), NOW + 10)


def test_a_session_stays_its_users():
    """Authenticating again as another user is refused with Kafka's error message."""
    client = Client(max_reauth_ms=5000)
    client.authenticate()
    client.say(HANDSHAKE)
    failure = client.fail(BOB)
    assert ErrorCode.SASL_AUTHENTICATION_FAILED == failure.error_code
    assert (
        "Cannot change principals during re-authentication from User.alice: User.bob"
        == failure.error_message
    )


def test_a_session_stays_with_its_mechanism():
    """The handshake for another mechanism succeeds, but the next request fails the connection."""
    client = Client(max_reauth_ms=5000)
    client.authenticate()
    answer = client.say(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
    assert ErrorCode.NONE == answer.error_code
    assert SaslState.REAUTH_BAD_MECHANISM is client.state
    assert None is client.fail(ALICE)


def test_a_failed_reauthentication_ends_the_session():
    """A wrong password while extending a session ends it."""
    client = Client(max_reauth_ms=5000)
    client.authenticate()
    client.say(HANDSHAKE)
    assert ErrorCode.SASL_AUTHENTICATION_FAILED == client.fail(WRONG).error_code


def test_a_failed_connection_does_nothing_more(client):
    """After a failure every request is refused."""
    client.fail(METADATA)
    for request in (API_VERSIONS, HANDSHAKE, ALICE):
        with pytest.raises((AuthenticationFailedError, CloseConnectionError)):
            client.say(request)
    assert SaslState.FAILED is client.state


def test_the_table_knows_every_state():
    """Each state has its expected requests and transitions; FAILED has neither."""
    assert set(SaslState) == set(TRANSITIONS) == set(EXPECTED)
    assert {SaslState.COMPLETE, SaslState.FAILED, SaslState.REAUTH_BAD_MECHANISM} == {
        state for state, expected in EXPECTED.items() if not expected
    }
    assert frozenset() == TRANSITIONS[SaslState.FAILED]
    assert {SaslState.AUTHENTICATE} == {
        state for state, ways in TRANSITIONS.items() if SaslState.COMPLETE in ways
    }
