"""The texts that came from references in the settings, and their removal from errors."""

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
    """Return what errors must not show: the values of references, and the paths within them.

    A reference may stand for the whole sasl.jaas.config, and errors name the files in it.
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
    """Remove the texts from the message of a KafkaError that the block raises."""
    try:
        yield
    except KafkaError as error:
        error.args = (hide(str(error), texts),)
        raise
