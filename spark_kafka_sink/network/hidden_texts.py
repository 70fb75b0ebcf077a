"""Texts that came from references in the settings, and errors that show nothing of them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.security.kerberos import KerberosLogin
from spark_kafka_sink.security.login import TokenLogin
from spark_kafka_sink.security.redaction import hide

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from spark_kafka_sink.config.security_settings import SecuritySettings
    from spark_kafka_sink.security.login import Login

_STORES: Final = ("truststore", "keystore")


def hidden_texts(settings: SecuritySettings, login: Login | None) -> frozenset[str]:
    """Return what no error may show: what references stood for, and the paths within it.

    A reference may stand for all of sasl.jaas.config, of which errors name the files.
    """
    paths: list[str | None] = []
    if isinstance(login, KerberosLogin):
        paths = [login.keytab, login.ticket_cache]
    elif isinstance(login, TokenLogin):
        paths = [login.tls_options.get(f"ssl.{store}.location") for store in _STORES]
    texts = settings.hidden_texts
    return texts | {path for path in paths if path and any(path in text for text in texts)}


@contextmanager
def errors_hiding(texts: Collection[str]) -> Iterator[None]:
    """Take texts out of the message of an error of ours that passes."""
    try:
        yield
    except KafkaError as error:
        error.args = (hide(str(error), texts),)
        raise
