"""GSSAPI (RFC 4752) with Kerberos: the exchange, and what Java's Krb5LoginModule says of a login.

    ESTABLISHING  tokens of the context, both ways, until client and broker have proved themselves
    CHOOSING      the broker offers security layers, wrapped; the client takes none of them
    COMPLETE      the choice was sent; what is left is the broker's consent

Kafka uses no security layer of SASL's: what encrypts is TLS (`SASL_SSL`). As in RFC 4752 no name is
sent to act for: the client is who its ticket says. The context itself is a library's, and comes
from outside; its first token too, since getting it asks a KDC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

from spark_kafka_sink.errors import AuthenticationError, IllegalStateError
from spark_kafka_sink.security.sasl import SaslMechanism

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

KRB5_LOGIN_MODULE: Final = "com.sun.security.auth.module.Krb5LoginModule"
_LAYER_OFFER_BYTES: Final = 4
_NO_LAYER: Final = 1
#: No layer, and so no message of one: a largest size of 0.
_CHOICE: Final = bytes((_NO_LAYER, 0, 0, 0))
_LAYERS: Final = {2: "integrity", 4: "confidentiality"}
#: What says how Java's module is to go about what is done here in its own way, or not at all.
_WITHOUT_EFFECT: Final = frozenset(
    {"donotprompt", "storekey", "refreshkrb5config", "debug", "refreshticket"}
)
#: What would need a password, or has somebody else's work done, by the value that does without.
_REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    "renewtgt": ("false", "a ticket cache is renewed by who fills it (kinit -R, k5start)"),
    "isinitiator": ("true", "this client only initiates"),
    "usefirstpass": ("false", "there are no passwords here, only keys and tickets"),
    "tryfirstpass": ("false", "there are no passwords here, only keys and tickets"),
    "storepass": ("false", "there are no passwords here, only keys and tickets"),
    "clearpass": ("false", "there are no passwords here, only keys and tickets"),
}
_READ: Final = frozenset({"useticketcache", "ticketcache", "usekeytab", "keytab", "principal"})
_SERVICE_NAME: Final = "servicename"


class GssContext(Protocol):
    """A context of a GSSAPI library's that initiates; its errors are AuthenticationError."""

    @property
    def is_established(self) -> bool:
        """Whether both sides have proved who they are."""

    @property
    def is_mutual(self) -> bool:
        """Whether the broker has proved itself too."""

    def step(self, token: bytes) -> bytes | None:
        """Take the broker's token; give the next one, if there is one."""

    def unwrap(self, message: bytes) -> bytes:
        """Take the protection off a message of the broker's, making sure of it."""

    def wrap(self, message: bytes) -> bytes:
        """Protect a message against changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KerberosLogin:
    """Where tickets come from. With both a cache and a keytab, the cache goes first, as in Java."""

    #: What the brokers are called by: `kafka` of `kafka/host@REALM`.
    service_name: str
    #: Who logs in; None for whoever the ticket cache belongs to.
    principal: str | None = None
    use_ticket_cache: bool = False
    #: None for the system's default (KRB5CCNAME).
    ticket_cache: str | None = field(default=None, repr=False)
    keytab: str | None = field(default=None, repr=False)

    mechanism = SaslMechanism.GSSAPI

    def __str__(self) -> str:
        """Name the source of tickets in a sentence."""
        cache = f"the ticket cache {self.ticket_cache or '(the default one)'}"
        keytab = f"the keytab {self.keytab}"
        if self.keytab is None:
            return cache
        return f"{cache}, and {keytab}" if self.use_ticket_cache else keytab


def read_kerberos(options: Mapping[str, str], service_name: str | None) -> KerberosLogin:
    """Read the options of Krb5LoginModule, and sasl.kerberos.service.name.

    Raises ValueError, a sentence that begins with a setting, for what is wrong and for what cannot
    be done here.
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
            "sasl.jaas.config: Krb5LoginModule would ask for a password, which nobody is there to "
            'give: use useTicketCache=true, or useKeyTab=true keyTab="/path" principal="..."'
        )
    if use_keytab and not (given.get("keytab") and given.get("principal")):
        raise ValueError(
            "sasl.jaas.config: useKeyTab=true needs keyTab, a file that the driver and every task "
            "can read, and principal"
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
            f"{jaas!r}: name one"
        )
    name = setting or jaas
    if not name:
        raise ValueError(
            "sasl.kerberos.service.name is required with sasl.mechanism=GSSAPI: the first part of "
            "the brokers' principal, mostly 'kafka'"
        )
    if not set("/@").isdisjoint(name):
        raise ValueError(
            f"sasl.kerberos.service.name {name!r} must be the first part of the brokers' principal "
            "alone: neither host nor realm"
        )
    return name


class GssapiState(Enum):
    """Where an exchange is."""

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
    """One exchange."""

    mechanism = SaslMechanism.GSSAPI
    #: Keys and tickets never come near a text.
    secret = ""
    hidden: Collection[str] = ()
    #: GSSAPI has no message for refusals.
    failure = None

    def __init__(
        self, context: GssContext, first_token: bytes, *, principal: str, service: str
    ) -> None:
        """Take a context, and the token that it has begun with.

        `principal` is who logs in, `service` the broker's principal, without its realm.
        """
        self._context = context
        self._first_token = first_token
        self.user = principal
        self.advice = (
            f"Check that the broker's keytab holds the current key of {service}, that its "
            f"sasl.kerberos.principal.to.local.rules know {principal}, and the clocks"
        )
        self._service = service
        self._state = _S.INITIAL

    @property
    def state(self) -> GssapiState:
        """Where it is."""
        return self._state

    @property
    def is_complete(self) -> bool:
        """See `SaslClient`."""
        return self._state is _S.COMPLETE

    def _move(self, target: GssapiState) -> None:
        if target not in TRANSITIONS[self._state]:
            raise IllegalStateError(
                f"an exchange of GSSAPI does not go from {self._state.name} to {target.name}"
            )
        self._state = target

    def initial_response(self) -> bytes:
        """See `SaslClient`."""
        self._move(_S.ESTABLISHING)
        return self._first_token

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:
        """See `SaslClient`."""
        steps = {_S.ESTABLISHING: self._establish, _S.CHOOSING: self._choose}
        step = steps.get(self._state)
        if step is None:
            raise AuthenticationError("the broker sent more than the exchange has")
        try:
            return step(challenge)
        except AuthenticationError:
            self._move(_S.FAILED)
            raise

    def _establish(self, challenge: bytes) -> bytes:
        answer = self._context.step(challenge)
        if not self._context.is_established:
            if not answer:
                raise AuthenticationError("the context came to no end")
            self._move(_S.ESTABLISHING)
            return answer
        if not self._context.is_mutual:
            raise AuthenticationError(f"the broker has not proved that it is {self._service}")
        self._move(_S.CHOOSING)
        # The broker speaks next, and waits for an answer even where there is none to give.
        return answer or b""

    def _choose(self, challenge: bytes) -> bytes:
        offer = self._context.unwrap(challenge)
        if len(offer) != _LAYER_OFFER_BYTES:
            raise AuthenticationError(
                f"the broker's offer of security layers has {len(offer)} bytes, and must have "
                f"{_LAYER_OFFER_BYTES}"
            )
        if not offer[0] & _NO_LAYER:
            offered = [name for bit, name in _LAYERS.items() if offer[0] & bit]
            raise AuthenticationError(
                f"the broker wants a security layer of SASL's ({' or '.join(offered) or 'none'}), "
                "which Kafka has no use for: encrypt by TLS (security.protocol SASL_SSL)"
            )
        choice = self._context.wrap(_CHOICE)
        self._move(_S.COMPLETE)
        return choice
