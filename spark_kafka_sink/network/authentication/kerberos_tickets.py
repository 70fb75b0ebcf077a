"""Kerberos tickets and contexts, by libgssapi through the package `gssapi` (extra `kerberos`).

The library does the work of the Java client's refresh thread: given a keytab, it gets a ticket,
keeps it in memory and replaces it in time. The service tickets for all hosts are obtained with that
one ticket. A ticket cache is only read; its owner has to renew it. Every connection requests
its service ticket on a separate thread, since the request may have to go to a KDC.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.config.allow_lists import pinned_file, read_named_file
from spark_kafka_sink.errors import AuthenticationError, ConfigError, NetworkError
from spark_kafka_sink.network.daemon_thread import in_daemon_thread
from spark_kafka_sink.security.kerberos import GssapiClient, KerberosLogin, keytab_principals

if TYPE_CHECKING:
    from collections.abc import Mapping


_THREAD: Final = "kafka-kerberos"
#: The base of libkrb5's error codes: the codes of RFC 4120 follow it, and libkrb5's own from 128
#: on.
_KRB5_ERRORS: Final = 0x96C73A00
#: Transient errors, as in Kafka's KerberosError: the client or the ticket is not valid yet, or a
#: replay was detected. A KDC that is unavailable or does not answer is transient as well.
_PASSING: Final = frozenset({21, 33, 34, 29, 156})
_TICKET_EXPIRED: Final = 32
_ADVICE: Final[Mapping[int, str]] = {
    1: "ask the administrator of the KDC to renew the principal",
    6: "check principal in sasl.jaas.config, and its realm",
    7: (
        "check sasl.kerberos.service.name, and that the brokers' advertised.listeners use the "
        "host names that the KDC knows"
    ),
    14: "client and KDC have no encryption type in common: create a new keytab",
    24: "the keytab's key is out of date: create a new keytab",
    31: "the keytab's key is out of date: create a new keytab",
    _TICKET_EXPIRED: "get a new ticket with kinit",
    37: "synchronize the clocks of this machine and the KDC",
    154: "check the realm, and krb5.conf (KRB5_CONFIG) where this process runs, driver or task",
}


def check_gssapi() -> None:
    """Raise ConfigError if the package gssapi is not installed."""
    if find_spec("gssapi") is None:
        raise ConfigError(
            "sasl.mechanism GSSAPI requires the package gssapi: pip install "
            "'spark-kafka-sink[kerberos]', for the driver and for tasks; it is built against "
            "Kerberos' C library (on Debian: apt-get install gcc libkrb5-dev, at run time "
            "libgssapi-krb5-2)"
        )


async def begin_gssapi(login: KerberosLogin, host: str) -> GssapiClient:
    """Acquire a ticket for a broker and begin an exchange.

    Raises AuthenticationError, or NetworkError if it may succeed later; both name the principal,
    the service and the cause. Raises ConfigError if the package gssapi cannot be loaded.
    """
    client: GssapiClient = (await in_daemon_thread(_THREAD, _begin, login, host)).get()
    return client


def _begin(login: KerberosLogin, host: str) -> GssapiClient:
    try:
        import gssapi  # noqa: PLC0415 -- optional
    except ImportError as error:
        raise ConfigError(
            f"sasl.mechanism GSSAPI: the package gssapi cannot be loaded: {error}. Kerberos' C "
            "library is needed at run time (on Debian: apt-get install libgssapi-krb5-2)"
        ) from error
    service = f"{login.service_name}/{host}"
    kerberos = gssapi.MechType.kerberos
    try:
        # The library may read the keytab as late as in the first step.
        with ExitStack() as files:
            credentials, principal = _credentials(gssapi, login, files)
            library_context = gssapi.SecurityContext(
                name=gssapi.Name(f"{login.service_name}@{host}", gssapi.NameType.hostbased_service),
                creds=credentials,
                mech=kerberos,
                usage="initiate",
                flags=(
                    gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity
                ),
            )
            first_token = library_context.step() or b""
    except gssapi.exceptions.GSSError as error:
        raise _no_ticket(gssapi, login, service, error) from None
    context = _Context(gssapi, library_context)
    return GssapiClient(context, first_token, principal=principal, service=service)


def _credentials(gssapi: Any, login: KerberosLogin, files: ExitStack) -> tuple[Any, str]:
    """Return valid credentials and their principal, from the first store that has any.

    The files that they need stay open as long as `files`.
    """
    if login.use_ticket_cache:
        cache = None if login.ticket_cache is None else {"ccache": login.ticket_cache}
        if login.keytab is None:
            return _of_store(gssapi, login.principal, cache)
        with suppress(
            gssapi.exceptions.MissingCredentialsError,
            gssapi.exceptions.ExpiredCredentialsError,
        ):
            return _of_store(gssapi, login.principal, cache)
    keytab = _open_keytab(login.keytab or "", login.principal or "", files)
    # All logins with this principal and keytab share one cache, which ends with the process.
    key = hashlib.sha256(f"{login.principal}\0{login.keytab}".encode()).hexdigest()
    store = {"client_keytab": f"FILE:{keytab}", "ccache": f"MEMORY:spark-kafka-sink-{key[:16]}"}
    return _of_store(gssapi, login.principal, store)


def _of_store(gssapi: Any, principal: str | None, store: dict[str, str] | None) -> tuple[Any, str]:
    name = None
    if principal is not None:
        name = gssapi.Name(principal, gssapi.NameType.kerberos_principal)
    credentials = gssapi.Credentials(
        name=name, usage="initiate", mechs=[gssapi.MechType.kerberos], store=store
    )
    # Reading the lifetime raises an error if the ticket has expired.
    _ = credentials.lifetime
    return credentials, str(credentials.name)


def _open_keytab(path: str, principal: str, files: ExitStack) -> str:
    """Return the path by which the library finds a keytab as long as `files` is open.

    Raises AuthenticationError if the keytab cannot be read or lacks the principal's key. A
    principal without a realm belongs to the default realm, which only the library knows; such a
    principal is compared without realms.
    """
    try:
        pinned = files.enter_context(pinned_file(path))
        held = keytab_principals(read_named_file(pinned))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise AuthenticationError(
            f"sasl.jaas.config: the keytab {path} of {principal!r} (GSSAPI) cannot be read: "
            f"{reason}. The driver and every task must be able to read it"
        ) from None
    names = held if "@" in principal else [name.rpartition("@")[0] for name in held]
    if principal not in names:
        raise AuthenticationError(
            f"sasl.jaas.config: the keytab {path} has no key for {principal!r} (GSSAPI); it has "
            f"keys for: {', '.join(held) or 'no principal'}"
        )
    return pinned


def _no_ticket(
    gssapi: Any, login: KerberosLogin, service: str, error: Any
) -> AuthenticationError | NetworkError:
    """Return the error for a missing ticket: the service, the cause and what to do."""
    code = error.min_code - _KRB5_ERRORS
    lapsed = isinstance(error, gssapi.exceptions.ExpiredCredentialsError)
    cause = "the ticket has expired" if lapsed else _cause(error)
    owner = "the ticket cache's owner" if login.principal is None else repr(login.principal)
    sentence = f"no Kerberos ticket of {owner} for the service {service} (GSSAPI): {cause}"
    # With a keytab, the next attempt replaces a ticket that expired in the meantime.
    has_expired = lapsed or code == _TICKET_EXPIRED
    if code in _PASSING or (has_expired and login.keytab is not None):
        return NetworkError(sentence)
    advice = _ADVICE.get(code)
    if advice is None and (lapsed or isinstance(error, gssapi.exceptions.MissingCredentialsError)):
        advice = (
            "get a ticket with kinit where this process runs (driver or task), or log in with "
            "useKeyTab, keyTab and principal"
        )
    return AuthenticationError(
        f"{sentence}. Looked in {login}" + ("" if advice is None else f"; {advice}")
    )


def _cause(error: Any) -> str:
    """Return the library's description of an error, on one line."""
    code, is_major = (error.min_code, False) if error.min_code else (error.maj_code, True)
    return "; ".join(error.get_all_statuses(code, is_major)).rstrip(".")


class _Context:
    """A `GssContext` backed by the library; see `security.kerberos`."""

    def __init__(self, gssapi: Any, context: Any) -> None:
        self._gssapi = gssapi
        self._context = context

    @property
    def is_established(self) -> bool:
        return bool(self._context.complete)

    @property
    def is_mutual(self) -> bool:
        flag = self._gssapi.RequirementFlag.mutual_authentication
        return bool(self._context.actual_flags & flag)

    def step(self, token: bytes) -> bytes | None:
        answer: bytes | None = self._call(self._context.step, token)
        return answer

    def unwrap(self, message: bytes) -> bytes:
        return bytes(self._call(lambda: self._context.unwrap(message).message))

    def wrap(self, message: bytes) -> bytes:
        return bytes(self._call(lambda: self._context.wrap(message, encrypt=False).message))

    def _call(self, function: Any, *arguments: object) -> Any:
        try:
            return function(*arguments)
        except self._gssapi.exceptions.GSSError as error:
            raise AuthenticationError(
                f"the broker's message does not belong to this context: {_cause(error)}"
            ) from None
