"""TLS contexts from Java's settings, for clients and for the embedded broker.

`TlsSettings` are the `ssl.*` settings, checked against each other as in Kafka's
DefaultSslEngineFactory. `tls_context` creates an `ssl.SSLContext` from them and from the contents
of the files that they name, which the caller has read. Python loads a key only from a named file;
here that file is in memory if the system supports it (memfd), and private in any case.

A client trusts what Java trusts: every certificate in the truststore, even one that is not a root
(X509_V_FLAG_PARTIAL_CHAIN), and without a truststore the system's certificates.

Certificates and keys are in the formats of Kafka's settings: PEM and PKCS12, but not JKS, which is
Java's own; the error explains how to convert it. PEM is parsed leniently, as in Kafka
(DefaultSslEngineFactory.PemParser): text around the blocks is skipped, and a block may be on a
single line, as in a .properties file. PKCS12 needs the library `cryptography`.
"""

from __future__ import annotations

import os
import re
import secrets
import ssl
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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


STORE_TYPES: Final = ("JKS", "PKCS12", PEM)
_VERSIONS: Final[Mapping[str, ssl.TLSVersion]] = MappingProxyType(
    {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
)
#: The values of `ssl.protocol`, and the highest version that each allows.
_HIGHEST: Final[Mapping[str, str]] = MappingProxyType(
    {"TLS": "TLSv1.3", "TLSv1.3": "TLSv1.3", "TLSv1.2": "TLSv1.2"}
)
#: Python cannot choose among these: it enables all of them, or none.
_TLS_1_3_SUITES: Final = frozenset(
    {"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"}
)
#: Java's names (IANA's) of the TLS 1.2 cipher suites -> OpenSSL's names.
_TLS_1_2_SUITES: Final[Mapping[str, str]] = MappingProxyType(
    {
        f"TLS_{exchange}WITH_{cipher}": f"{theirs}{openssl}"
        for exchange, theirs in (
            ("ECDHE_ECDSA_", "ECDHE-ECDSA-"),
            ("ECDHE_RSA_", "ECDHE-RSA-"),
            ("DHE_RSA_", "DHE-RSA-"),
            ("RSA_", ""),
        )
        for cipher, openssl in (
            ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
            ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
            ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
            *(
                (("AES_256_CBC_SHA384", "AES256-SHA384"), ("AES_128_CBC_SHA256", "AES128-SHA256"))
                if exchange.startswith("ECDHE")
                else (
                    ("AES_256_CBC_SHA256", "AES256-SHA256"),
                    ("AES_128_CBC_SHA256", "AES128-SHA256"),
                )
            ),
            ("AES_256_CBC_SHA", "AES256-SHA"),
            ("AES_128_CBC_SHA", "AES128-SHA"),
        )
        if not (exchange == "RSA_" and cipher.startswith("CHACHA20"))
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The `ssl.*` settings under their own names; the repr shows neither secrets nor paths.

    `protocol` and `enabled_protocols` are TLS versions; `cipher_suites` are Java's (IANA's) names.
    `truststore_type` and `keystore_type` are PEM, PKCS12 or JKS in any case, and are kept in upper
    case; JKS stands for a PKCS12 file, as in most Java stores. `truststore_location` and
    `keystore_location` are paths of files that `truststore_password`, `keystore_password` and
    `key_password` decrypt. `keystore_certificate_chain` is PEM text, like `keystore_key`. Raises
    ValueError for contradictory settings.

    >>> TlsSettings(keystore_type="PEM", keystore_location="server.pem").keystore_type
    'PEM'
    """

    protocol: str = "TLSv1.3"
    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()
    #: Whether the certificate must match the host's name (ssl.endpoint.identification.algorithm).
    check_hostname: bool = True
    truststore_type: str = "JKS"
    truststore_location: str | None = field(default=None, repr=False)
    truststore_password: str | None = field(default=None, repr=False)
    #: PEM text, instead of a location.
    truststore_certificates: str | None = field(default=None, repr=False)
    keystore_type: str = "JKS"
    keystore_location: str | None = field(default=None, repr=False)
    keystore_password: str | None = field(default=None, repr=False)
    #: PEM text, instead of a location.
    keystore_key: str | None = field(default=None, repr=False)
    keystore_certificate_chain: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raise ValueError, whose message begins with a setting, for contradictory settings."""
        for setting in fields(self):
            # An empty value must not mean the default: without a truststore, the system's
            # certificate authorities are trusted.
            if getattr(self, setting.name) == "":
                raise ValueError(f"ssl.{setting.name.replace('_', '.')} must not be empty")
        # Java's KeyStore.getInstance ignores case.
        object.__setattr__(self, "truststore_type", self.truststore_type.upper())
        object.__setattr__(self, "keystore_type", self.keystore_type.upper())
        self._check_truststore()
        self._check_keystore()
        _version_bounds(self)
        _openssl_ciphers(self)

    def _check_truststore(self) -> None:
        _check_type("ssl.truststore.type", self.truststore_type)
        if self.truststore_certificates is not None:
            _check_inline(
                "ssl.truststore.certificates",
                "ssl.truststore",
                self.truststore_type,
                self.truststore_location,
            )
        if self.truststore_password is None:
            return
        if self.truststore_type == PEM:
            raise ValueError(
                "ssl.truststore.password does not apply to PEM: certificates are not secret"
            )
        if self.truststore_location is None:
            raise ValueError("ssl.truststore.password requires ssl.truststore.location")

    def _check_keystore(self) -> None:
        _check_type("ssl.keystore.type", self.keystore_type)
        are_set = self.keystore_key is not None, self.keystore_certificate_chain is not None
        if any(are_set) and not all(are_set):
            raise ValueError(
                "ssl.keystore.key and ssl.keystore.certificate.chain must be set together"
            )
        if all(are_set):
            _check_inline(
                "ssl.keystore.key", "ssl.keystore", self.keystore_type, self.keystore_location
            )
        if self.keystore_type == PEM:
            if self.keystore_password is not None:
                raise ValueError(
                    "ssl.keystore.password does not apply to PEM: use ssl.key.password for the key"
                )
        elif self.keystore_location is None and self.keystore_password is not None:
            raise ValueError("ssl.keystore.password requires ssl.keystore.location")
        elif self.keystore_location is not None and self.keystore_password is None:
            raise ValueError(
                "ssl.keystore.location requires ssl.keystore.password; or, if the file is in PEM, "
                "ssl.keystore.type=PEM"
            )
        elif self.keystore_password not in {None, self.key_password or self.keystore_password}:
            raise ValueError(
                "ssl.key.password must be the same as ssl.keystore.password: a PKCS12 store has one"
            )
        if self.key_password is not None and not (self.keystore_location or any(are_set)):
            raise ValueError("ssl.key.password requires ssl.keystore.location or ssl.keystore.key")


def _check_type(setting: str, store_type: str) -> None:
    if store_type not in STORE_TYPES:
        raise ValueError(f"{setting} must be one of: {', '.join(STORE_TYPES)}, not {store_type!r}")


def _check_inline(setting: str, store: str, store_type: str, location: str | None) -> None:
    if store_type != PEM:
        raise ValueError(f"{setting} requires {store}.type=PEM")
    if location is not None:
        raise ValueError(f"{setting} and {store}.location cannot both be set")


def _version_bounds(settings: TlsSettings) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
    """Return the lowest and the highest version of TLS that are allowed."""
    if settings.protocol not in _HIGHEST:
        raise ValueError(
            f"ssl.protocol must be one of: {', '.join(_HIGHEST)}, not {settings.protocol!r}: older "
            "ones are not secure"
        )
    for version in settings.enabled_protocols:
        if version not in _VERSIONS:
            raise ValueError(
                f"ssl.enabled.protocols must be some of: {', '.join(_VERSIONS)}, not {version!r}: "
                "older ones are not secure"
            )
    enabled = {_VERSIONS[version] for version in settings.enabled_protocols or _VERSIONS}
    allowed = {version for version in enabled if version <= _VERSIONS[_HIGHEST[settings.protocol]]}
    if not allowed:
        raise ValueError(f"ssl.protocol={settings.protocol} allows none of ssl.enabled.protocols")
    suites = set(settings.cipher_suites)
    if suites and not suites & _TLS_1_3_SUITES:
        allowed.discard(ssl.TLSVersion.TLSv1_3)
    elif suites and suites <= _TLS_1_3_SUITES:
        allowed.discard(ssl.TLSVersion.TLSv1_2)
    if not allowed:
        raise ValueError("ssl.cipher.suites has no suite for the enabled TLS versions")
    return min(allowed), max(allowed)


def _openssl_ciphers(settings: TlsSettings) -> str | None:
    """Return OpenSSL's names of the chosen TLS 1.2 suites; None if none were chosen."""
    suites = settings.cipher_suites
    if not suites:
        return None
    for suite in suites:
        if suite not in _TLS_1_2_SUITES and suite not in _TLS_1_3_SUITES:
            raise ValueError(f"ssl.cipher.suites: {suite!r} is unknown or insecure")
    chosen = _TLS_1_3_SUITES.intersection(suites)
    if chosen and chosen != _TLS_1_3_SUITES:
        raise ValueError(
            "ssl.cipher.suites cannot choose among the suites of TLS 1.3, all of which are secure: "
            f"name all of {', '.join(sorted(_TLS_1_3_SUITES))}, or none of them to use TLS 1.2"
        )
    return ":".join(_TLS_1_2_SUITES[suite] for suite in suites if suite in _TLS_1_2_SUITES) or None


def tls_context(
    settings: TlsSettings, *, truststore: bytes | None = None, keystore: bytes | None = None
) -> ssl.SSLContext:
    """Create a client's context; `truststore` and `keystore` are the contents of the files.

    Raises ValueError, whose message begins with a setting, if a store cannot be used.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT, settings)
    context.check_hostname = settings.check_hostname
    context.verify_mode = ssl.CERT_REQUIRED
    _load_trusted(context, settings, truststore)
    _load_own(context, settings, keystore)
    return context


class ClientAuth(StrEnum):
    """Whether a server requests its clients' certificates (`ssl.client.auth`).

    >>> ClientAuth("required")
    <ClientAuth.REQUIRED: 'required'>
    """

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


_VERIFY_MODES: Final[Mapping[ClientAuth, ssl.VerifyMode]] = MappingProxyType(
    {
        ClientAuth.NONE: ssl.CERT_NONE,
        ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
        ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
    }
)


def tls_server_context(
    settings: TlsSettings,
    client_auth: ClientAuth,
    *,
    truststore: bytes | None = None,
    keystore: bytes | None = None,
) -> ssl.SSLContext:
    """Create a server's context, like `tls_context`; it needs a certificate to present."""
    if settings.keystore_key is None and settings.keystore_location is None:
        raise ValueError("ssl.keystore.location is needed: a server shows a certificate")
    context = _context(ssl.PROTOCOL_TLS_SERVER, settings)
    if client_auth is not ClientAuth.NONE:
        _load_trusted(context, settings, truststore)
    context.verify_mode = _VERIFY_MODES[client_auth]
    _load_own(context, settings, keystore)
    return context


def _context(protocol: int, settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    # Disable TLS 1.2 renegotiation, which Kafka's brokers do not allow either.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.minimum_version, context.maximum_version = _version_bounds(settings)
    ciphers = _openssl_ciphers(settings)
    if ciphers is not None:
        try:
            context.set_ciphers(ciphers)
        except ssl.SSLError:
            raise ValueError(
                "ssl.cipher.suites names no suite that this OpenSSL supports"
            ) from None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # Java does not enforce all that RFC 5280 demands of certificates; nor did Python before 3.13.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _load_trusted(context: ssl.SSLContext, settings: TlsSettings, content: bytes | None) -> None:
    if settings.truststore_certificates is None and settings.truststore_location is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    setting = f"ssl.truststore.location {settings.truststore_location}"
    try:
        if settings.truststore_certificates is not None:
            setting = "ssl.truststore.certificates"
            certificates = pem_certificates(settings.truststore_certificates)
        elif settings.truststore_type == PEM:
            certificates = pem_certificates(_text(content))
        else:
            certificates = pkcs12_certificates(content or b"", settings.truststore_password)
    except KeyStoreError as error:
        raise ValueError(f"{setting} {error}") from None
    try:
        context.load_verify_locations(cadata=certificates)
    except ssl.SSLError:
        raise ValueError(f"{setting} contains a certificate that cannot be read") from None


def _load_own(context: ssl.SSLContext, settings: TlsSettings, content: bytes | None) -> None:
    setting = f"ssl.keystore.location {settings.keystore_location}"
    try:
        if settings.keystore_key is not None:
            setting = "ssl.keystore.key"
            pair = KeyPair(
                pem_certificates(settings.keystore_certificate_chain or ""),
                pem_key(settings.keystore_key),
                settings.key_password,
            )
        elif settings.keystore_location is None:
            return
        elif settings.keystore_type == PEM:
            text = _text(content)
            pair = KeyPair(pem_certificates(text), pem_key(text), settings.key_password)
        else:
            pair = pkcs12_key_pair(content or b"", settings.keystore_password)
    except KeyStoreError as error:
        raise ValueError(f"{setting} {error}") from None
    with _private_file(f"{pair.key}{pair.certificates}".encode()) as path:
        try:
            # Without a password, OpenSSL would prompt for one on the terminal.
            context.load_cert_chain(path, password=pair.password or "")
        except (ssl.SSLError, ValueError):
            raise ValueError(
                f"{setting} has a key that cannot be read (check ssl.key.password), or that "
                "does not belong to the first certificate"
            ) from None


def _text(content: bytes | None) -> str:
    return (content or b"").decode("utf-8", "replace")


@contextmanager
def _private_file(data: bytes) -> Iterator[str]:
    """Yield the name of a file that only this user can read, and that is deleted afterwards."""
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("key"), "wb") as file:  # noqa: PTH123 -- by descriptor
            file.write(data)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            yield file.name
