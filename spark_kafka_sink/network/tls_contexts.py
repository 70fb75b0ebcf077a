"""TLS contexts for connections, made of files that may be replaced meanwhile.

The files are read for each connection, so that a renewed certificate is used by the next one. One
that cannot be used (somebody may be writing it right now) is passed over with a warning as long as
there is one from before.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spark_kafka_sink.config.named_files import read_named_file
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.security.redaction import hide
from spark_kafka_sink.security.tls import tls_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Collection

    from spark_kafka_sink.security.tls import TlsSettings

logger = logging.getLogger(__name__)


class TlsContexts:
    """Gives the context for the next connection."""

    def __init__(
        self, settings: TlsSettings, prefix: str = "", hidden: Collection[str] = ()
    ) -> None:
        """Read nothing yet.

        `prefix` goes before the names of settings in errors, which show nothing of `hidden`.
        """
        self._settings = settings
        self._prefix = prefix
        self._hidden = hidden
        self._stores: tuple[bytes | None, bytes | None] | None = None
        self._context: ssl.SSLContext | None = None

    def current(self) -> ssl.SSLContext:
        """Return a context of what the files hold now. It may block.

        Raises ConfigError where they cannot be used, and never could.
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
            logger.warning("%s; what it held before stays in use", problem)
        return self._context

    def _read(self, setting: str, location: str | None) -> bytes | None:
        if location is None:
            return None
        try:
            return read_named_file(location)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ValueError(f"{setting} {location} cannot be read: {reason}") from None
