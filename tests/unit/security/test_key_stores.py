from __future__ import annotations

import sys

import pytest
from cryptography.hazmat.primitives.serialization import NoEncryption, load_pem_private_key, pkcs12

from spark_kafka_sink.security.tls import (
    KeyStoreError,
    pem_certificates,
    pem_key,
    pkcs12_key_pair,
)
from tests.support.security.certificates import STORE_PASSWORD

KEY = "-----BEGIN PRIVATE KEY-----AAAA-----END PRIVATE KEY-----"


def test_a_block_on_one_line_is_wrapped():
    """Lines have 64 characters, as OpenSSL requires; text around the block is left out."""
    text = f"Bag Attributes\n-----BEGIN CERTIFICATE-----{'A' * 130}-----END CERTIFICATE-----\nend"
    expected = [
        "-----BEGIN CERTIFICATE-----",
        "A" * 64,
        "A" * 64,
        "AA",
        "-----END CERTIFICATE-----",
    ]
    assert expected == pem_certificates(text).splitlines()


@pytest.mark.parametrize(
    ("text", "keys"), [("", "no private key in"), (KEY * 2, "2 private keys in")]
)
def test_a_store_must_have_exactly_one_key(text, keys):
    """The error says how many there are."""
    with pytest.raises(KeyStoreError, match=f"^contains {keys} PEM .*, but must contain one$"):
        pem_key(text)


def test_the_key_of_a_store_is_encrypted_with_a_random_password(certificates):
    """The password is generated each time and is known to nothing else."""
    data = certificates.client.pkcs12_file.read_bytes()
    first, second = (pkcs12_key_pair(data, STORE_PASSWORD) for _ in range(2))
    assert 43 == len(first.password)
    assert first.password != second.password
    assert certificates.client.chain.split() == first.certificates.split()
    load_pem_private_key(first.key.encode(), first.password.encode())


def test_a_store_without_a_key_or_its_certificate_is_refused(certificates):
    """A truststore has no key, and a key without a certificate identifies no one."""
    key = load_pem_private_key(certificates.client.key.encode(), None)
    alone = pkcs12.serialize_key_and_certificates(b"key", key, None, None, NoEncryption())
    truststore = certificates.authority.pkcs12_file.read_bytes()
    for data, password in ((truststore, STORE_PASSWORD), (alone, None)):
        with pytest.raises(KeyStoreError, match="contains no private key with its certificate"):
            pkcs12_key_pair(data, password)


def test_a_pkcs12_store_requires_the_library(monkeypatch):
    """The error says what to install, and how to do without it."""
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(KeyStoreError, match=r"the library 'cryptography' .* openssl pkcs12"):
        pkcs12_key_pair(b"\x30", STORE_PASSWORD)
