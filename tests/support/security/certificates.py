"""Certificates for tests, as text and as files, of a trusted and an untrusted authority.

Keys are in PKCS#8, which Kafka requires. Files are written when they are first needed, and only
this user can read them. A whole test run shares one set: see the fixture `certificates`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

if TYPE_CHECKING:
    from pathlib import Path

#: The password of stores and keys, unless a test needs another one.
STORE_PASSWORD = "store-password"  # noqa: S105 - of test certificates
OTHER_HOST = "other-host.test"
#: The common name of the clients' certificate.
CLIENT_NAME = "alice"


class Authority:
    """A certificate authority that a client or server may trust."""

    def __init__(self, directory: Path, name: str) -> None:
        """Create an authority; its files are in `directory` and named after `name`."""
        self._directory = directory
        self._name = name
        self._ca = trustme.CA(organization_name=name)

    @property
    def pem(self) -> str:
        """The certificate, which is a trust store in PEM."""
        return self._ca.cert_pem.bytes().decode()

    @cached_property
    def pem_file(self) -> Path:
        """A file with the certificate."""
        return _write(self._directory / f"{self._name}.pem", self.pem.encode())

    @cached_property
    def pkcs12_file(self) -> Path:
        """A trust store in PKCS#12 that Java reads, encrypted with STORE_PASSWORD."""
        certificate = x509.load_pem_x509_certificate(self.pem.encode())
        entry = pkcs12.PKCS12Certificate(certificate, self._name.encode())
        encryption = BestAvailableEncryption(STORE_PASSWORD.encode())
        store = pkcs12.serialize_java_truststore([entry], encryption)
        return _write(self._directory / f"{self._name}.p12", store)

    def issue(
        self,
        name: str,
        *identities: str,
        common_name: str | None = None,
        not_after: datetime | None = None,
    ) -> Certificate:
        """Create a certificate for hosts or addresses that is valid from 366 days before its end.

        The files are named after `name`.
        """
        end = not_after or datetime.now(UTC) + timedelta(days=30)
        leaf = self._ca.issue_cert(
            *identities,
            common_name=common_name,
            not_before=end - timedelta(days=366),
            not_after=end,
        )
        return Certificate(self._directory, name, leaf)


class Certificate:
    """A certificate with its key, by which a server or a client authenticates."""

    def __init__(self, directory: Path, name: str, leaf: trustme.LeafCert) -> None:
        """Store what an authority has issued."""
        self._directory = directory
        self._name = name
        self._key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
        #: The certificate, and the intermediate certificates up to the authority.
        self.chain = "".join(blob.bytes().decode() for blob in leaf.cert_chain_pems)

    @property
    def key(self) -> str:
        """The key, not encrypted."""
        return self._key_pem(NoEncryption())

    def encrypted_key(self, password: str = STORE_PASSWORD) -> str:
        """Return the key, encrypted with a password."""
        return self._key_pem(BestAvailableEncryption(password.encode()))

    def _key_pem(self, encryption: NoEncryption | BestAvailableEncryption) -> str:
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()

    @cached_property
    def chain_file(self) -> Path:
        """A file with the certificate and its chain."""
        return _write(self._directory / f"{self._name}.crt", self.chain.encode())

    @cached_property
    def key_file(self) -> Path:
        """A file with only the key."""
        return _write(self._directory / f"{self._name}.key", self.key.encode())

    @cached_property
    def pem_file(self) -> Path:
        """A key store in PEM as Kafka requires it, with the key and the chain in one file."""
        return _write(self._directory / f"{self._name}.pem", f"{self.key}{self.chain}".encode())

    @cached_property
    def encrypted_pem_file(self) -> Path:
        """A key store in PEM, with its key encrypted with STORE_PASSWORD."""
        pem = f"{self.encrypted_key()}{self.chain}"
        return _write(self._directory / f"{self._name}.encrypted.pem", pem.encode())

    @cached_property
    def pkcs12_file(self) -> Path:
        """A key store in PKCS#12, encrypted with STORE_PASSWORD."""
        certificate, *others = x509.load_pem_x509_certificates(self.chain.encode())
        encryption = BestAvailableEncryption(STORE_PASSWORD.encode())
        store = pkcs12.serialize_key_and_certificates(
            self._name.encode(), self._key, certificate, others or None, encryption
        )
        return _write(self._directory / f"{self._name}.p12", store)


class Certificates:
    """All certificates of the tests: a trusted and an untrusted authority, and what they issued."""

    def __init__(self, directory: Path) -> None:
        """Create the certificates; files are written to `directory`."""
        yesterday = datetime.now(UTC) - timedelta(days=1)
        self.authority = Authority(directory, "authority")
        self.stranger = Authority(directory, "stranger")
        #: For this machine's loopback, by name and by address.
        self.server = self.authority.issue("server", "localhost", "127.0.0.1")
        #: For a host on which no test runs.
        self.other_host = self.authority.issue("other-host", OTHER_HOST)
        self.expired = self.authority.issue(
            "expired", "localhost", "127.0.0.1", not_after=yesterday
        )
        self.client = self.authority.issue("client", "client.test", common_name=CLIENT_NAME)
        #: For a client, by the untrusted authority.
        self.strange_client = self.stranger.issue(
            "strange-client", "client.test", common_name=CLIENT_NAME
        )


def _write(path: Path, content: bytes) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path
