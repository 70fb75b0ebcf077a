"""Every kind of TLS failure has its sentence; `test_secured_connections.py` has real ones."""

from __future__ import annotations

import ssl

import pytest

from spark_kafka_sink.errors import AuthenticationError, NetworkError
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection.connection_errors import (
    alert_failure,
    looks_like_tls,
    peer_speaks_tls,
    tls_failure,
)

NODE = Node(7, "broker.example", 9093)
UNTRUSTED = (
    "is not trusted (why): add the certificate of its authority to ssl.truststore.location or "
    "ssl.truststore.certificates"
)
WRONG_HOST = (
    "is not for the host 'broker.example' (why): check the address, or use a certificate that "
    "names it; ssl.endpoint.identification.algorithm= (empty) accepts any certificate of a trusted "
    "authority"
)
#: OpenSSL's X509_V_ERR_* with a sentence of their own; all others share one.
CERTIFICATES = {
    2: UNTRUSTED,
    9: "is not valid yet (why): check this machine's clock",
    10: (", or one in its chain, has expired (why): renew it, and check this machine's clock"),
    18: UNTRUSTED,
    19: UNTRUSTED,
    20: UNTRUSTED,
    21: UNTRUSTED,
    23: "was revoked (why)",
    27: UNTRUSTED,
    62: WRONG_HOST,
    64: WRONG_HOST,
}
OWN = "check the certificate in ssl.keystore.*"
WANTED = "it requires a client certificate that it trusts (ssl.client.auth): set ssl.keystore.*"
ALERTS = {
    "ACCESS_DENIED": f"it denies access to this client's certificate; {OWN}",
    "BAD_CERTIFICATE": WANTED,
    "CERTIFICATE_EXPIRED": f"this client's certificate has expired; {OWN}",
    "CERTIFICATE_REQUIRED": WANTED,
    "CERTIFICATE_REVOKED": f"this client's certificate was revoked; {OWN}",
    "CERTIFICATE_UNKNOWN": f"it rejects this client's certificate; {OWN}",
    "DECRYPT_ERROR": f"it cannot verify this client's certificate; {OWN}",
    "HANDSHAKE_FAILURE": (
        "it has no cipher suite or version in common with ssl.cipher.suites and "
        "ssl.enabled.protocols, or requires a client certificate (ssl.keystore.*)"
    ),
    "INSUFFICIENT_SECURITY": "it requires stronger cipher suites than ssl.cipher.suites has",
    "PROTOCOL_VERSION": (
        "it supports none of the TLS versions in ssl.enabled.protocols and ssl.protocol"
    ),
    "UNKNOWN_CA": f"it does not trust the issuer of this client's certificate; {OWN}",
    "UNRECOGNIZED_NAME": "it has no certificate for this host name",
    "UNSUPPORTED_CERTIFICATE": f"it cannot use this client's certificate; {OWN}",
}
NO_TLS = (
    "this listener does not use TLS: use the port of a TLS listener, or set security.protocol "
    "to PLAINTEXT or SASL_PLAINTEXT"
)
NOTHING_IN_COMMON = (
    "TLS handshake failed ({}): no TLS version or cipher suite in common; check "
    "ssl.protocol, ssl.enabled.protocols and ssl.cipher.suites"
)


def handshake(reason):
    """Return our error for a handshake that OpenSSL ended for a reason."""
    error = ssl.SSLError(1, "what OpenSSL says")
    error.reason = reason
    return tls_failure(error, NODE)


def said(error, kind):
    """Return what an error says about the node."""
    assert kind is type(error)
    text = str(error)
    assert text.startswith(f"{NODE}: ")
    return text.removeprefix(f"{NODE}: ")


def test_every_certificate_error_comes_with_advice():
    """Each of OpenSSL's errors about a broker's certificate comes with what to do about it."""
    sentences = {}
    for code in range(100):
        error = ssl.SSLCertVerificationError(1, "what OpenSSL says")
        error.verify_code, error.verify_message = code, "why"
        sentences[code] = said(tls_failure(error, NODE), AuthenticationError)
    start = "the broker's certificate"
    expected = {
        code: start + text if text.startswith(",") else f"{start} {text}"
        for code, text in CERTIFICATES.items()
    }
    assert {
        code: expected.get(code, f"{start} was rejected (why)") for code in sentences
    } == sentences


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_is_described_by_its_meaning(alert):
    """What the broker objects to is permanent, during the handshake and after it."""
    sentence = f"the broker rejected the TLS connection ({alert}): {ALERTS[alert]}"
    for reason in (f"TLSV1_ALERT_{alert}", f"SSLV3_ALERT_{alert}"):
        assert sentence == said(handshake(reason), AuthenticationError)
        assert sentence == said(alert_failure(reason, NODE), AuthenticationError)


def test_an_unknown_alert_is_retriable():
    """An alert such as for an internal error is retriable."""
    sentence = "the broker ended the TLS connection (INTERNAL_ERROR)"
    assert sentence == said(handshake("TLSV1_ALERT_INTERNAL_ERROR"), NetworkError)
    sentence = "the broker ended the TLS connection (BAD_RECORD_TYPE)"
    assert sentence == said(alert_failure("BAD_RECORD_TYPE", NODE), NetworkError)


#: OpenSSL's reason, with our sentence, in which `{}` stands for it.
REASONS = {
    "WRONG_VERSION_NUMBER": NO_TLS,
    "HTTP_REQUEST": NO_TLS,
    "UNKNOWN_PROTOCOL": NO_TLS,
    "RECORD_LAYER_FAILURE": NO_TLS,
    "UNSUPPORTED_PROTOCOL": NOTHING_IN_COMMON,
    "NO_PROTOCOLS_AVAILABLE": NOTHING_IN_COMMON,
    "WRONG_SSL_VERSION": NOTHING_IN_COMMON,
    "NO_CIPHERS_AVAILABLE": NOTHING_IN_COMMON,
    "BAD_SIGNATURE": "TLS handshake failed ({})",
    None: "TLS handshake failed (unknown)",
}


@pytest.mark.parametrize(("reason", "sentence"), REASONS.items())
def test_a_handshake_ended_by_this_side_names_the_reason(reason, sentence):
    """A peer without TLS, or with nothing in common, comes with advice; others do not."""
    assert sentence.format(reason) == said(handshake(reason), AuthenticationError)


@pytest.mark.parametrize("kind", [ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError])
def test_a_connection_lost_in_the_handshake_is_retriable(kind):
    """A broker that hangs up says nothing about TLS."""
    sentence = "the broker closed the connection during the TLS handshake"
    assert sentence == said(tls_failure(kind(8, "what OpenSSL says"), NODE), NetworkError)


def test_a_plain_connection_to_a_tls_listener_is_recognized_by_its_alert():
    """The first bytes of an alert, and no others, are recognized as TLS."""
    assert looks_like_tls(b"\x15\x03\x01\x00\x02\x02\x46")
    assert not looks_like_tls(b"\x16\x03\x01")
    assert not looks_like_tls(b"\x15")
    assert (
        "this listener uses TLS, but security.protocol does not: set it "
        "to SSL or SASL_SSL, or use the port of a listener without TLS"
    ) == said(peer_speaks_tls(NODE), AuthenticationError)
