"""Certificates and keys out of what Kafka's settings hold: PEM, PKCS12, and no JKS.

PEM is read leniently, as Kafka reads it (DefaultSslEngineFactory.PemParser): text around the blocks
is skipped, and a block may stand on one line, as it does in a .properties file. PKCS12 needs the
library `cryptography`. JKS is Java's own format: the error says how to convert it.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PEM: Final = "PEM"
#: What is between the two lines has no five dashes: a search for an end that is missing stops at
#: the next block.
_BLOCK: Final = re.compile(
    r"-----BEGIN ([A-Z0-9 ]{1,64})-----((?:[^-]|-(?!----))*+)-----END \1-----"
)
#: Lines before the base64 of an old encrypted key: "Proc-Type: 4,ENCRYPTED".
_PARAMETER: Final = re.compile(r"^[^\r\n:]+:[^\r\n]*$", re.MULTILINE)
_CERTIFICATES: Final = frozenset({"CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE"})
_LINE: Final = 64
_JKS_MAGICS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")


class KeyStoreError(ValueError):
    """A store cannot be read; the message is the end of a sentence about the setting."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate with the chain behind it, and its private key; both PEM."""

    certificates: str
    key: str = field(repr=False)
    #: What the key is encrypted with, if it is.
    password: str | None = field(repr=False, default=None)


def pem_certificates(text: str) -> str:
    """Give the certificates in a text; KeyStoreError when there is none."""
    blocks = [block for label, block in _blocks(text) if label in _CERTIFICATES]
    if not blocks:
        raise KeyStoreError("holds no certificate in PEM (-----BEGIN CERTIFICATE-----)")
    return "".join(blocks)


def pem_key(text: str) -> str:
    """Give the one private key in a text; KeyStoreError when there is none, or another one."""
    keys = [block for label, block in _blocks(text) if label.endswith("PRIVATE KEY")]
    if len(keys) != 1:
        raise KeyStoreError(
            f"holds {len(keys) or 'no'} private key{'s' * bool(keys)} in PEM "
            "(-----BEGIN PRIVATE KEY-----), and must hold one"
        )
    return keys[0]


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    for found in _BLOCK.finditer(text):
        label, content = found.groups()
        parameters = _PARAMETER.findall(content)
        base64 = "".join(_PARAMETER.sub("", content).split())
        lines = [base64[i : i + _LINE] for i in range(0, len(base64), _LINE)]
        head = [*parameters, ""] if parameters else []
        body = "\n".join([*head, *lines])
        yield label, f"-----BEGIN {label}-----\n{body}\n-----END {label}-----\n"


def pkcs12_certificates(data: bytes, password: str | None) -> str:
    """Give all certificates of a PKCS12 store as PEM; KeyStoreError when it cannot be read."""
    serialization, store = _load(data, password)
    certificates = [store.cert, *store.additional_certs]
    pem = "".join(
        entry.certificate.public_bytes(serialization.Encoding.PEM).decode()
        for entry in certificates
        if entry is not None
    )
    if not pem:
        raise KeyStoreError("holds no certificate")
    return pem


def pkcs12_key_pair(data: bytes, password: str | None) -> KeyPair:
    """Give the key of a PKCS12 store with its chain; KeyStoreError when it has none.

    The key comes encrypted with a password that nobody else has, so that no plain copy is made.
    """
    serialization, store = _load(data, password)
    if store.key is None or store.cert is None:
        raise KeyStoreError("holds no private key with its certificate")
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
    # By content, as Java does: what is called JKS there has long been PKCS12 most of the time.
    if data.startswith(_JKS_MAGICS):
        raise KeyStoreError(
            "is in Java's own format (JKS or JCEKS), which cannot be read here. Convert it: "
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
            "needs the library 'cryptography' to be read (pip install 'spark-kafka-sink[pkcs12]'); "
            "or convert it to PEM: openssl pkcs12 -in STORE.p12 -out STORE.pem, and set the type "
            "to PEM"
        ) from None
    try:
        store = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except (ValueError, UnsupportedAlgorithm):
        # Its message is of no help, and may have parts of the store in it.
        raise KeyStoreError("is no PKCS12 store, or its password is wrong") from None
    return serialization, store
