"""The GSSAPI exchange without a library's context, and the options of Krb5LoginModule."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import AuthenticationError, IllegalStateError
from spark_kafka_sink.security.kerberos import (
    TRANSITIONS,
    GssapiClient,
    GssapiState,
    KerberosLogin,
)
from spark_kafka_sink.security.login import TokenSettings, read_login
from spark_kafka_sink.security.sasl import SaslMechanism

S = GssapiState
MODULE = "com.sun.security.auth.module.Krb5LoginModule required"
NO_LAYER = b"\x01\x00\x00\x00"


class Context:
    """A context that returns the given answers and is established by the last one."""

    def __init__(self, *answers, is_mutual=True):
        self._answers = list(answers)
        self.is_mutual = is_mutual
        self.taken = []

    @property
    def is_established(self):
        """Whether all answers were returned."""
        return not self._answers

    def step(self, token):
        """Return the next answer."""
        self.taken.append(token)
        return self._answers.pop(0)

    def unwrap(self, message):
        """Remove the mark."""
        if not message.startswith(b"wrapped:"):
            raise AuthenticationError("the broker's message does not belong to this context: no")
        return message.removeprefix(b"wrapped:")

    def wrap(self, message):
        """Mark a message."""
        return b"wrapped:" + message


def client(*answers, **options):
    """Return an exchange that has begun."""
    made = GssapiClient(
        Context(*answers, **options), b"first", principal="alice@R", service="kafka/host"
    )
    assert b"first" == made.initial_response()
    return made


def chosen(offer):
    """Return what an established exchange chooses among the offered layers."""
    made = client(None)
    assert b"" == made.evaluate_challenge(b"reply")
    return made.evaluate_challenge(b"wrapped:" + offer)


def test_an_exchange_authenticates_both_sides():
    """Tokens authenticate both sides; then come an empty answer, no layer, and no name."""
    made = client(None)
    assert (SaslMechanism.GSSAPI, "alice@R", "") == (made.mechanism, made.user, made.secret)
    assert S.ESTABLISHING is made.state
    assert b"" == made.evaluate_challenge(b"reply")
    assert (S.CHOOSING, False) == (made.state, made.is_complete)
    assert b"wrapped:\x01\x00\x00\x00" == made.evaluate_challenge(b"wrapped:\x07\xff\xff\xff")
    assert (S.COMPLETE, True) == (made.state, made.is_complete)
    assert "current key of kafka/host" in made.advice


def test_a_context_may_need_several_tokens():
    """Every token of the broker is processed and every answer sent, including the last."""
    made = client(b"second", b"third")
    assert b"second" == made.evaluate_challenge(b"a")
    assert S.ESTABLISHING is made.state
    assert b"third" == made.evaluate_challenge(b"b")
    assert S.CHOOSING is made.state


@pytest.mark.parametrize("offer", [NO_LAYER, b"\x05\x00\x00\x01", b"\xff\xff\xff\xff"])
def test_the_client_never_chooses_a_security_layer(offer):
    """Whatever is offered, the client chooses no layer, and therefore no size."""
    assert b"wrapped:" + NO_LAYER == chosen(offer)


@pytest.mark.parametrize(
    ("offer", "problem"),
    [
        (b"\x06\x00\x10\x00", r"a security layer of SASL \(integrity or confidentiality\)"),
        (b"\x02\x00\x10\x00", r"requires a security layer of SASL \(integrity\)"),
        (b"\x04\x00\x10\x00", r"requires a security layer of SASL \(confidentiality\)"),
        (b"\xf8\x00\x10\x00", r"requires a security layer of SASL \(none\)"),
        (b"\x00\x00\x00\x00", r"requires a security layer of SASL \(none\)"),
        (b"", "has 0 bytes instead of 4"),
        (NO_LAYER + b"alice", "has 9 bytes instead of 4"),
    ],
)
def test_an_unacceptable_offer_is_refused(offer, problem):
    """An error describes a broker that insists on a layer, or whose offer is malformed."""
    with pytest.raises(AuthenticationError, match=problem):
        chosen(offer)


def test_an_unwrapped_offer_is_refused():
    """The offer has to come from the broker that has authenticated."""
    made = client(None)
    made.evaluate_challenge(b"reply")
    with pytest.raises(AuthenticationError, match="does not belong to this context"):
        made.evaluate_challenge(NO_LAYER)
    assert S.FAILED is made.state


def test_the_broker_must_authenticate_itself():
    """A context that ends without the broker's authentication is refused."""
    made = client(None, is_mutual=False)
    with pytest.raises(AuthenticationError, match="did not prove that it is kafka/host"):
        made.evaluate_challenge(b"reply")
    assert S.FAILED is made.state


def test_a_context_without_a_token_ends_the_exchange():
    """A context that neither ends nor answers would otherwise wait forever."""
    with pytest.raises(AuthenticationError, match="was not completed"):
        client(b"", b"never").evaluate_challenge(b"reply")


def test_a_message_after_the_end_is_refused():
    """A broker that continues after the choice is refused."""
    made = client(None)
    made.evaluate_challenge(b"reply")
    made.evaluate_challenge(b"wrapped:" + NO_LAYER)
    with pytest.raises(AuthenticationError, match="unexpected extra message"):
        made.evaluate_challenge(b"more")


@pytest.mark.parametrize("state", list(S))
def test_an_exchange_cannot_be_used_twice(state):
    """An exchange cannot be used twice."""
    assert (state in {S.COMPLETE, S.FAILED}) == (not TRANSITIONS[state])
    assert S.INITIAL not in TRANSITIONS[state]


def test_an_ended_exchange_cannot_be_started_again():
    """Starting an exchange again after its end is a mistake in our code."""
    made = client(None)
    made.evaluate_challenge(b"reply")
    made.evaluate_challenge(b"wrapped:" + NO_LAYER)
    with pytest.raises(IllegalStateError, match="does not go from COMPLETE to ESTABLISHING"):
        made.initial_response()


# --- the login module


def login(options, service="kafka"):
    return read_login("GSSAPI", f"{MODULE} {options};", TokenSettings(), service_name=service)


@pytest.mark.parametrize(
    ("options", "expected", "named"),
    [
        (
            'useKeyTab=true storeKey=true keyTab="/etc/a.keytab" principal="alice@R"',
            {"keytab": "/etc/a.keytab", "principal": "alice@R"},
            "the keytab /etc/a.keytab",
        ),
        (
            "useTicketCache=true renewTGT=false doNotPrompt=true debug=true",
            {"use_ticket_cache": True},
            "the ticket cache (the default one)",
        ),
        (
            'useTicketCache=TRUE ticketCache="/run/c" principal="alice" isInitiator=true',
            {"use_ticket_cache": True, "ticket_cache": "/run/c", "principal": "alice"},
            "the ticket cache /run/c",
        ),
        (
            'useTicketCache=true useKeyTab=true keyTab="file:///k" principal="a" serviceName=kafka',
            {"use_ticket_cache": True, "keytab": "/k", "principal": "a"},
            "the ticket cache (the default one), and the keytab /k",
        ),
    ],
)
def test_java_login_module_options_are_accepted(options, expected, named):
    """Ticket cache, keytab and principal have Java's names; irrelevant options are accepted."""
    made = login(options)
    assert KerberosLogin(service_name="kafka", **expected) == made
    assert named == str(made)


@pytest.mark.parametrize(
    ("options", "service", "problem"),
    [
        ("", "kafka", "would ask for a password"),
        ("useTicketCache=false useKeyTab=false", "kafka", "would ask for a password"),
        ("useKeyTab=true principal=a", "kafka", "useKeyTab=true requires keyTab"),
        ('useKeyTab=true keyTab="/k"', "kafka", "useKeyTab=true requires keyTab.* and principal"),
        (
            "useTicketCache=true renewTGT=true",
            "kafka",
            r"renewTGT=true is not supported: the ticket",
        ),
        ("useTicketCache=true isInitiator=false", "kafka", "isInitiator=false is not supported"),
        ("useTicketCache=true useFirstPass=true", "kafka", "useFirstPass=true is not supported"),
        ("useTicketCache=true keytabb=x", "kafka", "Krb5LoginModule has no option 'keytabb'"),
        ('useTicketCache=true ticketCache=""', "kafka", "ticketCache must not be empty"),
        ('useTicketCache=true principal=""', "kafka", "principal must not be empty"),
        ("useTicketCache=true", None, "sasl.kerberos.service.name is required with sasl.mechan"),
        ("useTicketCache=true", "kafka/h", "'kafka/h' must be only the first part of the brok"),
        ("useTicketCache=true serviceName=k", "kafka", "is 'kafka', and serviceName in sasl.jaas"),
    ],
)
def test_unsupported_options_are_refused(options, service, problem):
    """Each error names the setting and what to do."""
    with pytest.raises(ValueError, match=problem) as caught:
        login(options, service)
    assert str(caught.value).startswith("sasl.")


def test_the_login_module_may_have_the_service_name():
    """As in Java, serviceName can replace sasl.kerberos.service.name."""
    assert "broker" == login("useTicketCache=true serviceName=broker", None).service_name


def test_a_login_module_is_required():
    """The error for Java's default mechanism says how to configure it or choose another one."""
    with pytest.raises(ValueError, match=r"sasl.jaas.config is required.*set another one if"):
        read_login("GSSAPI", None, TokenSettings(), service_name="kafka")
