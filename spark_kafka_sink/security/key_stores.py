"""Certificates and keys in the formats of Kafka's settings: PEM and PKCS12, but not JKS.

PEM is parsed leniently, as in Kafka (DefaultSslEngineFactory.PemParser): text around the blocks is
skipped, and a block may be on a single line, as in a .properties file. PKCS12 needs the library
`cryptography`. JKS is Java's own format; the error explains how to convert it.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PEM: Final = "PEM"
#: The content between the two lines cannot contain five dashes, so that a search for a missing end
#: stops at the next block.
_BLOCK: Final = re.compile(
    r"-----BEGIN ([A-Z0-9 ]{1,64})-----((?:[^-]|-(?!----))*+)-----END \1-----"
)
#: Header lines before the base64 of an encrypted key in the old format: "Proc-Type: 4,ENCRYPTED".
_PARAMETER: Final = re.compile(r"^[^\r\n:]+:[^\r\n]*$", re.MULTILINE)
_CERTIFICATES: Final = frozenset({"CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE"})
_LINE: Final = 64
_JKS_MAGICS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")


class KeyStoreError(ValueError):
    """A store that cannot be read; the message is the end of a sentence about the setting."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate with its chain, and its private key, both as PEM."""

    certificates: str
    key: str = field(repr=False)
    #: The password that the key is encrypted with, if any.
    password: str | None = field(repr=False, default=None)


def pem_certificates(text: str) -> str:
    """Return the certificates in a text; KeyStoreError if there are none."""
    blocks = [block for label, block in _blocks(text) if label in _CERTIFICATES]
    if not blocks:
        raise KeyStoreError("contains no certificate in PEM (-----BEGIN CERTIFICATE-----)")
    return "".join(blocks)


def pem_key(text: str) -> str:
    """Return the only private key in a text; KeyStoreError if there is none, or several."""
    keys = [block for label, block in _blocks(text) if label.endswith("PRIVATE KEY")]
    if len(keys) != 1:
        raise KeyStoreError(
            f"contains {len(keys) or 'no'} private key{'s' * bool(keys)} in PEM "
            "(-----BEGIN PRIVATE KEY-----), but must contain one"
        )
    return keys[0]


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    for match in _BLOCK.finditer(text):
        label, content = match.groups()
        parameters = _PARAMETER.findall(content)
        base64 = "".join(_PARAMETER.sub("", content).split())
        lines = [base64[i : i + _LINE] for i in range(0, len(base64), _LINE)]
        head = [*parameters, ""] if parameters else []
        body = "\n".join([*head, *lines])
        yield label, f"-----BEGIN {label}-----\n{body}\n-----END {label}-----\n"


def pkcs12_certificates(data: bytes, password: str | None) -> str:
    """Return all certificates of a PKCS12 store as PEM; KeyStoreError if there are none.

    Raises KeyStoreError as well if the store cannot be read.
    """
    serialization, store = _load(data, password)
    certificates = [store.cert, *store.additional_certs]
    pem = "".join(
        entry.certificate.public_bytes(serialization.Encoding.PEM).decode()
        for entry in certificates
        if entry is not None
    )
    if not pem:
        raise KeyStoreError("contains no certificate")
    return pem


def pkcs12_key_pair(data: bytes, password: str | None) -> KeyPair:
    """Return the key of a PKCS12 store with its chain; KeyStoreError if it has none.

    The key is encrypted with a new random password, so that no plain copy of it is made.
    """
    serialization, store = _load(data, password)
    if store.key is None or store.cert is None:
        raise KeyStoreError("contains no private key with its certificate")
    once = secrets.token_urlsafe(32)
    key = store.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(once.encode()),
    )
    chain = "".join(
        entry.certificate.public_bytes(serialization.Encoding.PEM).decode()
        for entry in (store.cert, *store.additional_certs)
    )
    return KeyPair(chain, key.decode(), once)


def _load(data: bytes, password: str | None) -> tuple[Any, Any]:
    # The format is recognized by content, as in Java: most stores called JKS there have long been
    # PKCS12.
    if data.startswith(_JKS_MAGICS):
        raise KeyStoreError(
            "is in Java's own format (JKS or JCEKS), which is not supported. Convert it: "
            "keytool -importkeystore -srckeystore OLD.jks -destkeystore NEW.p12 "
            "-deststoretype PKCS12, and set the type to PKCS12"
        )
    if data.lstrip().startswith(b"-----BEGIN"):
        raise KeyStoreError("is in PEM: set the type to PEM")
    try:
        from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 -- optional
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 -- optional
        from cryptography.hazmat.primitives.serialization import pkcs12  # noqa: PLC0415
    except ImportError:
        raise KeyStoreError(
            "requires the library 'cryptography' (pip install 'spark-kafka-sink[pkcs12]'); "
            "or convert it to PEM: openssl pkcs12 -in STORE.p12 -out STORE.pem, and set the type "
            "to PEM"
        ) from None
    try:
        store = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except (ValueError, UnsupportedAlgorithm):
        # Its message does not help, and may contain parts of the store.
        raise KeyStoreError("is not a PKCS12 store, or its password is wrong") from None
    return serialization, store
