"""GSSAPI (RFC 4752) with Kerberos: the exchange, and the options of Java's Krb5LoginModule.

    ESTABLISHING  the context's tokens go both ways until client and broker have authenticated
    CHOOSING      the broker offers security layers, wrapped; the client chooses none of them
    COMPLETE      the choice was sent; only the broker's consent is missing

Kafka uses none of SASL's security layers; TLS encrypts (`SASL_SSL`). No authorization identity is
sent (RFC 4752 makes it optional): the client is the principal of its ticket. A library provides the
context from outside this module, and also its first token, since getting it involves a KDC.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

from spark_kafka_sink.errors import AuthenticationError, IllegalStateError
from spark_kafka_sink.security.sasl import Expiry, SaslMechanism

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

KRB5_LOGIN_MODULE: Final = "com.sun.security.auth.module.Krb5LoginModule"
_LAYER_OFFER_BYTES: Final = 4
_NO_LAYER: Final = 1
#: No layer, and therefore a maximum message size of 0.
_CHOICE: Final = bytes((_NO_LAYER, 0, 0, 0))
_LAYERS: Final = {2: "integrity", 4: "confidentiality"}
#: Options that control details of Java's module; they have no effect here.
_WITHOUT_EFFECT: Final = frozenset(
    {"donotprompt", "storekey", "refreshkrb5config", "debug", "refreshticket"}
)
#: Unsupported options -> the one value that is accepted, and why others are not.
_REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    "renewtgt": (
        "false",
        "the ticket cache must be renewed outside of this process (kinit -R, k5start)",
    ),
    "isinitiator": ("true", "this client only initiates"),
    "usefirstpass": ("false", "there are no passwords here, only keys and tickets"),
    "tryfirstpass": ("false", "there are no passwords here, only keys and tickets"),
    "storepass": ("false", "there are no passwords here, only keys and tickets"),
    "clearpass": ("false", "there are no passwords here, only keys and tickets"),
}
_READ: Final = frozenset({"useticketcache", "ticketcache", "usekeytab", "keytab", "principal"})
_SERVICE_NAME: Final = "servicename"


class GssContext(Protocol):
    """An initiating context of a GSSAPI library; its errors are AuthenticationErrors."""

    @property
    def is_established(self) -> bool:
        """Whether both sides have completed the context."""

    @property
    def is_mutual(self) -> bool:
        """Whether the broker has authenticated as well."""

    def step(self, token: bytes) -> bytes | None:
        """Process the broker's token; return the next one, if there is one."""

    def unwrap(self, message: bytes) -> bytes:
        """Verify a message of the broker and return its content."""

    def wrap(self, message: bytes) -> bytes:
        """Protect a message against modification."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KerberosLogin:
    """The source of tickets. As in Java, the cache takes precedence over the keytab."""

    #: The service of the brokers' principals: `kafka` in `kafka/host@REALM`.
    service_name: str
    #: The principal that logs in; None for the owner of the ticket cache.
    principal: str | None = None
    use_ticket_cache: bool = False
    #: None for the system's default (KRB5CCNAME).
    ticket_cache: str | None = field(default=None, repr=False)
    keytab: str | None = field(default=None, repr=False)

    mechanism = SaslMechanism.GSSAPI

    def __str__(self) -> str:
        """Return the name of the source of tickets for use in a sentence."""
        cache = f"the ticket cache {self.ticket_cache or '(the default one)'}"
        keytab = f"the keytab {self.keytab}"
        if self.keytab is None:
            return cache
        return f"{cache}, and {keytab}" if self.use_ticket_cache else keytab


def read_kerberos(options: Mapping[str, str], service_name: str | None) -> KerberosLogin:
    """Parse the options of Krb5LoginModule and sasl.kerberos.service.name.

    Raises ValueError, whose message begins with a setting, for options that are invalid or not
    supported.
    """
    given = {name.lower(): value for name, value in options.items()}
    names = {name.lower(): name for name in options}
    for name, value in given.items():
        if name in _REFUSED and value.lower() != _REFUSED[name][0]:
            raise ValueError(
                f"sasl.jaas.config: {names[name]}={value} is not supported: {_REFUSED[name][1]}"
            )
        if name not in {*_READ, *_WITHOUT_EFFECT, *_REFUSED, _SERVICE_NAME}:
            raise ValueError(f"sasl.jaas.config: Krb5LoginModule has no option {names[name]!r}")
        if name in {"ticketcache", "principal"} and not value:
            raise ValueError(f"sasl.jaas.config: {names[name]} must not be empty")
    use_keytab, use_cache = (
        given.get(name, "").lower() == "true" for name in ("usekeytab", "useticketcache")
    )
    if not use_keytab and not use_cache:
        raise ValueError(
            "sasl.jaas.config: Krb5LoginModule would ask for a password, which is not possible "
            'here: use useTicketCache=true, or useKeyTab=true keyTab="/path" principal="..."'
        )
    if use_keytab and not (given.get("keytab") and given.get("principal")):
        raise ValueError(
            "sasl.jaas.config: useKeyTab=true requires keyTab, a file that the driver and every "
            "task can read, and principal"
        )
    return KerberosLogin(
        service_name=_service_name(given.get(_SERVICE_NAME), service_name),
        principal=given.get("principal"),
        use_ticket_cache=use_cache,
        ticket_cache=given.get("ticketcache") if use_cache else None,
        keytab=given["keytab"].removeprefix("file://") if use_keytab else None,
    )


def _service_name(jaas: str | None, setting: str | None) -> str:
    if jaas and setting and jaas != setting:
        raise ValueError(
            f"sasl.kerberos.service.name is {setting!r}, and serviceName in sasl.jaas.config is "
            f"{jaas!r}: set only one of them"
        )
    name = setting or jaas
    if not name:
        raise ValueError(
            "sasl.kerberos.service.name is required with sasl.mechanism=GSSAPI: the first part of "
            "the brokers' principal, usually 'kafka'"
        )
    if not set("/@").isdisjoint(name):
        raise ValueError(
            f"sasl.kerberos.service.name {name!r} must be only the first part of the brokers' "
            "principal, without host and realm"
        )
    return name


class GssapiState(Enum):
    """The state of an exchange."""

    INITIAL = auto()
    ESTABLISHING = auto()
    CHOOSING = auto()
    COMPLETE = auto()
    FAILED = auto()


_S = GssapiState

TRANSITIONS: Final[Mapping[GssapiState, frozenset[GssapiState]]] = {
    _S.INITIAL: frozenset({_S.ESTABLISHING}),
    _S.ESTABLISHING: frozenset({_S.ESTABLISHING, _S.CHOOSING, _S.FAILED}),
    _S.CHOOSING: frozenset({_S.COMPLETE, _S.FAILED}),
    _S.COMPLETE: frozenset(),
    _S.FAILED: frozenset(),
}


class GssapiClient:
    """One GSSAPI exchange."""

    mechanism = SaslMechanism.GSSAPI
    #: Keys and tickets never appear in a text.
    secret = ""
    hidden: Collection[str] = ()
    #: GSSAPI has no message for a refusal.
    failure = None
    expiry: Expiry | None = None

    def __init__(
        self, context: GssContext, first_token: bytes, *, principal: str, service: str
    ) -> None:
        """Set the context, and its first token.

        `principal` is the client's principal, `service` the broker's without its realm.
        """
        self._context = context
        self._first_token = first_token
        self.user = principal
        self.advice = (
            f"Check that the broker's keytab has the current key of {service}, that its "
            f"sasl.kerberos.principal.to.local.rules know {principal}, and the clocks"
        )
        self._service = service
        self._state = _S.INITIAL

    @property
    def state(self) -> GssapiState:
        """The current state."""
        return self._state

    @property
    def is_complete(self) -> bool:
        """Whether the exchange is complete; see `SaslClient`."""
        return self._state is _S.COMPLETE

    def _move(self, target: GssapiState) -> None:
        if target not in TRANSITIONS[self._state]:
            raise IllegalStateError(
                f"an exchange of GSSAPI does not go from {self._state.name} to {target.name}"
            )
        self._state = target

    def initial_response(self) -> bytes:
        """Return the first token; see `SaslClient`."""
        self._move(_S.ESTABLISHING)
        return self._first_token

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:
        """Handle the broker's message; see `SaslClient`."""
        steps = {_S.ESTABLISHING: self._establish, _S.CHOOSING: self._choose}
        step = steps.get(self._state)
        if step is None:
            raise AuthenticationError("the broker sent an unexpected extra message")
        try:
            return step(challenge)
        except AuthenticationError:
            self._move(_S.FAILED)
            raise

    def _establish(self, challenge: bytes) -> bytes:
        answer = self._context.step(challenge)
        if not self._context.is_established:
            if not answer:
                raise AuthenticationError("the security context was not completed")
            self._move(_S.ESTABLISHING)
            return answer
        if not self._context.is_mutual:
            raise AuthenticationError(f"the broker did not prove that it is {self._service}")
        self._move(_S.CHOOSING)
        # The broker speaks next, and it waits for an answer even if there is nothing to send.
        return answer or b""

    def _choose(self, challenge: bytes) -> bytes:
        offer = self._context.unwrap(challenge)
        if len(offer) != _LAYER_OFFER_BYTES:
            raise AuthenticationError(
                f"the broker's offer of security layers has {len(offer)} bytes instead of "
                f"{_LAYER_OFFER_BYTES}"
            )
        if not offer[0] & _NO_LAYER:
            offered = [name for bit, name in _LAYERS.items() if offer[0] & bit]
            raise AuthenticationError(
                f"the broker requires a security layer of SASL ({' or '.join(offered) or 'none'}), "
                "which Kafka does not use: encrypt with TLS (security.protocol SASL_SSL)"
            )
        choice = self._context.wrap(_CHOICE)
        self._move(_S.COMPLETE)
        return choice


# --- the principals of a keytab, MIT's file of Kerberos keys, so that errors can name them
#
# If a keytab is missing, has another format or belongs to another principal, the library only says
# that there are no credentials. Keys are skipped, unread. Layout (version 2, all big-endian):
#
#     0x0502, then entries: size:i32 (negative: a hole), components:u16, realm, component...,
#     name type:u32, timestamp:u32, ...; realm and components: length:u16 and bytes

_KEYTAB_VERSION: Final = b"\x05\x02"
_SIZE: Final = struct.Struct(">i")
_LENGTH: Final = struct.Struct(">H")


def keytab_principals(data: bytes) -> list[str]:
    """Return the distinct principals in a keytab, as `name@REALM`, in file order.

    Raises ValueError if it is not a keytab, or is truncated.
    """
    if not data.startswith(_KEYTAB_VERSION):
        raise ValueError("it is not a keytab")
    try:
        return list(dict.fromkeys(_principals(memoryview(data))))
    except (struct.error, UnicodeDecodeError):
        raise ValueError("it is a truncated keytab") from None


def _principals(data: memoryview) -> Iterator[str]:
    position = len(_KEYTAB_VERSION)
    while position < len(data):
        (size,) = _SIZE.unpack_from(data, position)
        position += _SIZE.size
        if size > 0:
            yield _principal(data[position : position + size])
        elif size == 0:
            # The rest of the file was never written.
            return
        position += abs(size)


def _principal(entry: memoryview) -> str:
    (count,) = _LENGTH.unpack_from(entry, 0)
    position = _LENGTH.size
    texts = []
    for _ in range(count + 1):
        (length,) = _LENGTH.unpack_from(entry, position)
        position += _LENGTH.size
        text = entry[position : position + length]
        if len(text) < length:
            raise struct.error("an entry ends early")
        texts.append(bytes(text).decode())
        position += length
    realm, *components = texts
    return f"{'/'.join(components)}@{realm}"
