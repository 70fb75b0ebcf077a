"""The test certificates: each one is what its name says."""

from __future__ import annotations

import socket
import ssl
import threading

import pytest

from spark_kafka_sink.security.tls import pkcs12_certificates, pkcs12_key_pair
from tests.support.security.certificates import CLIENT_NAME, STORE_PASSWORD


def handshake(server, trusted, client=None, client_authority=None):
    """Do a TLS handshake over a socket pair, and return the client's certificate."""
    ours = ssl.create_default_context(cafile=trusted.pem_file)
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(server.chain_file, server.key_file)
    if client_authority is not None:
        theirs.load_verify_locations(client_authority.pem_file)
        theirs.verify_mode = ssl.CERT_REQUIRED
    if client is not None:
        ours.load_cert_chain(client.encrypted_pem_file, password=STORE_PASSWORD)
    near, far = socket.socketpair()
    shown = []

    def serve():
        try:
            with far, theirs.wrap_socket(far, server_side=True) as accepted:
                shown.append(accepted.getpeercert())
                accepted.sendall(b".")
        except (ssl.SSLError, ConnectionError):
            pass  # The client's side reports the reason.

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with near, ours.wrap_socket(near, server_hostname="localhost") as connected:
            connected.recv(1)
    finally:
        thread.join()
    return shown[0]


def test_a_client_that_trusts_the_authority_trusts_the_server(certificates):
    """The server's certificate is for localhost and signed by the authority."""
    assert None is handshake(certificates.server, certificates.authority)


@pytest.mark.parametrize(
    ("server", "trusted", "reason"),
    [
        ("server", "stranger", "unable to get local issuer|self.signed certificate"),
        ("other_host", "authority", "Hostname mismatch"),
        ("expired", "authority", "certificate has expired"),
    ],
)
def test_each_invalid_certificate_has_a_single_fault(certificates, server, trusted, reason):
    """An unknown authority, another host and an expired certificate are each refused as such."""
    with pytest.raises(ssl.SSLCertVerificationError, match=reason):
        handshake(getattr(certificates, server), getattr(certificates, trusted))


def test_a_client_certificate_has_the_name_of_the_client(certificates):
    """A server that requires a certificate accepts the client's, which names alice."""
    shown = handshake(
        certificates.server, certificates.authority, certificates.client, certificates.authority
    )

    assert (("commonName", CLIENT_NAME),) in shown["subject"]


def test_stores_have_the_same_certificates_as_pem(certificates):
    """PKCS#12 stores contain the same certificates as the PEM files."""
    trusted = pkcs12_certificates(certificates.authority.pkcs12_file.read_bytes(), STORE_PASSWORD)
    pair = pkcs12_key_pair(certificates.server.pkcs12_file.read_bytes(), STORE_PASSWORD)

    assert certificates.authority.pem == trusted
    assert certificates.server.chain == pair.certificates


def test_files_with_keys_are_private(certificates):
    """Other users cannot read a key file."""
    assert 0o600 == certificates.server.key_file.stat().st_mode & 0o777
