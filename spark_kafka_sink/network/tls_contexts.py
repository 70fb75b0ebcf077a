"""TLS contexts for connections, built from files that may be replaced at any time.

The files are read for every connection, so that the next one uses a renewed certificate. If they
cannot be used (someone may be writing them right now), the previous context stays in use and a
warning is logged.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spark_kafka_sink.config.allow_lists import read_named_file
from spark_kafka_sink.config.config_def import plain_text
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.security.redaction import hide
from spark_kafka_sink.security.tls import TlsSettings, tls_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Collection

    from spark_kafka_sink.config.security_settings import SecuritySettings

logger = logging.getLogger(__name__)


def tls_settings(settings: SecuritySettings) -> TlsSettings:
    """Return the `ssl.*` settings of a client; ValueError if they contradict each other."""
    return TlsSettings(
        protocol=settings.ssl_protocol,
        enabled_protocols=settings.ssl_enabled_protocols,
        cipher_suites=settings.ssl_cipher_suites,
        check_hostname=bool(settings.ssl_endpoint_identification_algorithm),
        truststore_type=settings.ssl_truststore_type,
        truststore_location=settings.ssl_truststore_location,
        truststore_password=plain_text(settings.ssl_truststore_password),
        truststore_certificates=plain_text(settings.ssl_truststore_certificates),
        keystore_type=settings.ssl_keystore_type,
        keystore_location=settings.ssl_keystore_location,
        keystore_password=plain_text(settings.ssl_keystore_password),
        keystore_key=plain_text(settings.ssl_keystore_key),
        keystore_certificate_chain=plain_text(settings.ssl_keystore_certificate_chain),
        key_password=plain_text(settings.ssl_key_password),
    )


class TlsContexts:
    """The source of the TLS context for each new connection."""

    def __init__(
        self, settings: TlsSettings, prefix: str = "", hidden: Collection[str] = ()
    ) -> None:
        """Create the source without reading any file.

        `prefix` precedes the names of settings in errors; errors show nothing of `hidden`.
        """
        self._settings = settings
        self._prefix = prefix
        self._hidden = hidden
        self._stores: tuple[bytes | None, bytes | None] | None = None
        self._context: ssl.SSLContext | None = None

    def current(self) -> ssl.SSLContext:
        """Return a context built from the current files. May block.

        Raises ConfigError if the files cannot be used and never could.
        """
        try:
            stores = (
                self._read("ssl.truststore.location", self._settings.truststore_location),
                self._read("ssl.keystore.location", self._settings.keystore_location),
            )
            if self._context is None or stores != self._stores:
                truststore, keystore = stores
                self._context = tls_context(
                    self._settings, truststore=truststore, keystore=keystore
                )
                self._stores = stores
        except ValueError as error:
            problem = f"{self._prefix}{hide(str(error), self._hidden)}"
            if self._context is None:
                raise ConfigError(problem) from None
            logger.warning("%s; its previous content remains in use", problem)
        return self._context

    def _read(self, setting: str, location: str | None) -> bytes | None:
        if location is None:
            return None
        try:
            return read_named_file(location)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ValueError(f"{setting} {location} cannot be read: {reason}") from None
