"""How a library's errors are handled; `tests/kafka/test_kerberos.py` uses the real library."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from spark_kafka_sink.config.allow_lists import PATHS
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import AuthenticationError, ConfigError, NetworkError
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.authentication import kerberos_tickets
from spark_kafka_sink.network.authentication.connection_security import ConnectionSecurity
from spark_kafka_sink.network.authentication.kerberos_tickets import begin_gssapi
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.security.kerberos import KerberosLogin

KRB5 = 0x96C73A00
#: A client or a ticket that is not valid yet, a replay, and a KDC that is unavailable.
PASSING = (21, 29, 33, 34, 156)
#: A keytab with a key of alice@R.
ALICES_KEYTAB = b"\x05\x02\x00\x00\x00\x0d\x00\x01\x00\x01R\x00\x05alice\x00"
CACHE = KerberosLogin(service_name="kafka", use_ticket_cache=True)
SETTINGS = {
    "bootstrap.servers": "localhost:9092",
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.kerberos.service.name": "kafka",
    "sasl.jaas.config": (
        "com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;"
    ),
}


class GSSError(Exception):
    """An error like the library's: two numbers, and texts for each."""

    def __init__(self, maj_code, min_code, text="what the library says"):
        super().__init__(text)
        self.maj_code, self.min_code, self._text = maj_code, min_code, text

    def get_all_statuses(self, code, is_major):
        """Return the texts of a number."""
        return [f"{'major' if is_major else self._text}."]


class MissingCredentialsError(GSSError):
    """There is no ticket."""


class ExpiredCredentialsError(GSSError):
    """The ticket has expired."""


class Library(ModuleType):
    """A stand-in for the package, whose parts return or raise as scripted."""

    def __init__(self, **parts):
        super().__init__("gssapi")
        self.exceptions = SimpleNamespace(
            GSSError=GSSError,
            MissingCredentialsError=MissingCredentialsError,
            ExpiredCredentialsError=ExpiredCredentialsError,
        )
        self.MechType = SimpleNamespace(kerberos="krb5")
        self.NameType = SimpleNamespace(hostbased_service="service", kerberos_principal="name")
        self.RequirementFlag = SimpleNamespace(mutual_authentication=2, integrity=32)
        self.Name = lambda name, kind: (name, kind)
        self.Credentials = lambda **_: SimpleNamespace(lifetime=60, name="alice@R")
        self.SecurityContext = parts.get("context", Context)


class Context:
    """A context that is established by the broker's second message."""

    raises = None
    actual_flags = 2
    complete = False

    def __init__(self, **options):
        self.options = options

    def step(self, token=None):
        """Process a token; return the next one."""
        if self.raises is not None:
            raise self.raises
        self.complete = token is not None
        return None if self.complete else b"first"

    def unwrap(self, message):
        """Return the message unchanged."""
        return SimpleNamespace(message=message)

    def wrap(self, message, encrypt):
        """Mark a message."""
        assert not encrypt
        return SimpleNamespace(message=b"wrapped:" + message)


def begin(monkeypatch, library, login=CACHE):
    monkeypatch.setitem(sys.modules, "gssapi", library)
    return asyncio.run(begin_gssapi(login, "host"))


def failing(error):
    return Library(context=type("Failing", (Context,), {"raises": error}))


def test_an_exchange_uses_a_context_of_the_library(monkeypatch):
    """The exchange uses the library's tokens and protected messages."""
    client = begin(monkeypatch, Library())
    assert "alice@R" == client.user
    assert b"first" == client.initial_response()
    assert b"" == client.evaluate_challenge(b"reply")
    assert b"wrapped:\x01\x00\x00\x00" == client.evaluate_challenge(b"\x01\x00\x00\x00")


def test_a_ticket_for_the_brokers_service_is_requested(monkeypatch):
    """The service consists of sasl.kerberos.service.name and the connection's host."""
    calls = []
    library = Library(context=lambda **options: calls.append(options) or Context())
    monkeypatch.setitem(sys.modules, "gssapi", library)
    monkeypatch.setattr(kerberos_tickets, "find_spec", lambda _: True)

    async def run():
        given = {**SETTINGS, "sasl.kerberos.service.name": "broker"}
        security = ConnectionSecurity(ProducerConfig.from_mapping(given).security, lambda: 0.0)
        return await security.sasl_client(Node(7, "one.example", 9092))

    client = asyncio.run(run())
    assert ("broker@one.example", "service") == calls[0]["name"]
    assert 2 | 32 == calls[0]["flags"]
    assert "current key of broker/one.example" in client.advice


def test_the_context_must_offer_mutual_authentication(monkeypatch):
    """Integrity alone does not authenticate the peer."""
    context = type("OneSided", (Context,), {"actual_flags": 32})
    client = begin(monkeypatch, Library(context=context))
    client.initial_response()
    with pytest.raises(AuthenticationError, match="did not prove that it is kafka/host"):
        client.evaluate_challenge(b"reply")


@pytest.mark.parametrize(("principal", "name"), [(None, None), ("bob@R", ("bob@R", "name"))])
def test_credentials_belong_to_the_principal(monkeypatch, principal, name):
    """Without a principal they belong to the owner of the ticket cache."""
    calls = []
    library = Library()
    library.Credentials = lambda **given: (
        calls.append(given) or SimpleNamespace(lifetime=60, name="alice@R")
    )
    login = KerberosLogin(service_name="kafka", use_ticket_cache=True, principal=principal)
    begin(monkeypatch, library, login)
    assert [{"name": name, "usage": "initiate", "mechs": ["krb5"], "store": None}] == calls


def test_a_message_that_the_library_rejects_is_refused(monkeypatch):
    """A message that the library rejects is refused, with the library's message."""
    client = begin(monkeypatch, Library())
    client.initial_response()
    monkeypatch.setattr(Context, "raises", GSSError(9 << 16, 0))
    with pytest.raises(AuthenticationError, match="does not belong to this context: major"):
        client.evaluate_challenge(b"garbage")


@pytest.mark.parametrize("code", PASSING)
def test_transient_errors_are_retried(monkeypatch, code):
    """Kafka's retriable Kerberos errors, and an unavailable KDC, are transient."""
    with pytest.raises(NetworkError, match=r"kafka/host \(GSSAPI\): what the library says"):
        begin(monkeypatch, failing(GSSError(0, KRB5 + code)))


def test_an_expired_ticket_is_renewed_from_a_keytab(monkeypatch, tmp_path):
    """With a keytab the login is retried; with only a ticket the advice is kinit."""
    # The ticket may also expire before its lifetime is read, which is an error without a code.
    errors = [GSSError(13 << 16, KRB5 + 32), ExpiredCredentialsError(11 << 16, 0)]
    path = tmp_path / "keytab"
    path.write_bytes(ALICES_KEYTAB)
    keytab = KerberosLogin(service_name="kafka", keytab=str(path), principal="alice@R")
    for error in errors:
        with pytest.raises(NetworkError, match="of 'alice@R' for the service kafka/host"):
            begin(monkeypatch, failing(error), keytab)
        with pytest.raises(AuthenticationError, match=r"; get a (new )?ticket with kinit"):
            begin(monkeypatch, failing(error))
    for permanent in (31, 37):
        with pytest.raises(AuthenticationError, match="of 'alice@R' for the service kafka/host"):
            begin(monkeypatch, failing(GSSError(13 << 16, KRB5 + permanent)), keytab)


#: The advice for an error, by its code: RFC 4120's, and libkrb5's own from 128 on.
ADVICE = {
    1: "; ask the administrator of the KDC to renew the principal",
    6: "; check principal in sasl.jaas.config, and its realm",
    7: (
        "; check sasl.kerberos.service.name, and that the brokers' advertised.listeners use the "
        "host names that the KDC knows"
    ),
    14: "; client and KDC have no encryption type in common: create a new keytab",
    24: "; the keytab's key is out of date: create a new keytab",
    31: "; the keytab's key is out of date: create a new keytab",
    32: "; get a new ticket with kinit",
    37: "; synchronize the clocks of this machine and the KDC",
    154: "; check the realm, and krb5.conf (KRB5_CONFIG) where this process runs, driver or task",
}


def test_every_kerberos_error_has_the_advice_of_the_table(monkeypatch):
    """A permanent error names service, cause and store, with advice by its code alone."""
    said = {}
    for code in set(range(256)) - set(PASSING):
        with pytest.raises(AuthenticationError) as caught:
            begin(monkeypatch, failing(GSSError(13 << 16, KRB5 + code)))
        said[code] = str(caught.value)
    sentence = (
        "no Kerberos ticket of the ticket cache's owner for the service kafka/host (GSSAPI): what "
        "the library says. Looked in the ticket cache (the default one)"
    )
    assert {code: sentence + ADVICE.get(code, "") for code in said} == said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MissingCredentialsError(7 << 16, KRB5 + 141), "what the library says"),
        (ExpiredCredentialsError(11 << 16, 1), "the ticket has expired"),
    ],
)
def test_a_missing_ticket_comes_with_advice_to_get_one(monkeypatch, error, said):
    """An error without advice of its own says how to get a missing ticket."""
    advice = (
        "; get a ticket with kinit where this process runs (driver or task), or log in with "
        "useKeyTab, keyTab and principal"
    )
    with pytest.raises(AuthenticationError) as caught:
        begin(monkeypatch, failing(error))
    sentence = f"for the service kafka/host (GSSAPI): {said}. Looked in the ticket cache"
    assert sentence in str(caught.value)
    assert str(caught.value).endswith(advice)


def stores_tried(monkeypatch, login, errors):
    """Return the stores that a login tries; those of a kind in `errors` fail."""
    calls = []

    def credentials(*, store, **_):
        calls.append(store)
        kind = "keytab" if store is not None and "client_keytab" in store else "cache"
        if kind in errors:
            raise errors[kind]
        return SimpleNamespace(lifetime=60, name="alice@R")

    library = Library()
    library.Credentials = credentials
    try:
        begin(monkeypatch, library, login)
    except AuthenticationError as error:
        return [*calls, str(error)]
    return calls


def test_a_keytab_is_used_if_the_cache_has_no_ticket(monkeypatch, tmp_path):
    """The cache is tried first, and the keytab only if the cache has no valid ticket."""
    path = tmp_path / "keytab"
    path.write_bytes(ALICES_KEYTAB)
    login = KerberosLogin(
        service_name="kafka",
        use_ticket_cache=True,
        ticket_cache="/c",
        keytab=str(path),
        principal="alice@R",
    )
    cache = {"ccache": "/c"}
    assert [cache] == stores_tried(monkeypatch, login, {})
    for error in (MissingCredentialsError(7 << 16, 1), ExpiredCredentialsError(11 << 16, 1)):
        first, second = stores_tried(monkeypatch, login, {"cache": error})
        assert cache == first
        assert f"FILE:{path}" == second["client_keytab"]
        assert re.fullmatch("MEMORY:spark-kafka-sink-[0-9a-f]{16}", second["ccache"])
    first, said = stores_tried(monkeypatch, login, {"cache": GSSError(13 << 16, KRB5 + 37)})
    assert cache == first
    assert "synchronize the clocks of this machine" in said
    assert [None] == stores_tried(monkeypatch, CACHE, {})


@pytest.mark.parametrize(
    ("content", "principal", "said"),
    [
        (
            None,
            "alice@R",
            "of 'alice@R' (GSSAPI) cannot be read: No such file or directory. The driver",
        ),
        (b"not a keytab", "alice", "of 'alice' (GSSAPI) cannot be read: it is not a keytab"),
        (b"\x05\x02", "alice", "has no key for 'alice' (GSSAPI); it has keys for: no principal"),
        (ALICES_KEYTAB, "bob", "has no key for 'bob' (GSSAPI); it has keys for: alice@R"),
        (ALICES_KEYTAB, "alice@S", "has no key for 'alice@S' (GSSAPI); it has keys for: alice@R"),
        (ALICES_KEYTAB, "alice@R", None),
        (ALICES_KEYTAB, "alice", None),
    ],
)
def test_a_keytab_is_checked_before_the_library_is_called(
    monkeypatch, tmp_path, content, principal, said
):
    """A keytab that is missing, corrupt or for others is named with the reason."""
    path = tmp_path / "keytab"
    if content is not None:
        path.write_bytes(content)
    login = KerberosLogin(service_name="kafka", keytab=str(path), principal=principal)
    if said is None:
        assert "alice@R" == begin(monkeypatch, Library(), login).user
        return
    with pytest.raises(AuthenticationError) as caught:
        begin(monkeypatch, Library(), login)
    assert f"sasl.jaas.config: the keytab {path} {said}" in str(caught.value)


def test_the_library_reads_the_keytab_that_was_checked(monkeypatch, tmp_path):
    """A link that is exchanged after the check does not lead to another keytab."""
    (tmp_path / "alices").write_bytes(ALICES_KEYTAB)
    (tmp_path / "others").write_bytes(b"secret")
    link = tmp_path / "keytab"
    link.symlink_to("alices")
    monkeypatch.setenv(PATHS, str(tmp_path / "alices"))
    library = Library()
    read = []

    def credentials(store, **_):
        link.unlink()
        link.symlink_to("others")
        read.append(Path(store["client_keytab"].removeprefix("FILE:")).read_bytes())
        return SimpleNamespace(lifetime=60, name="alice@R")

    library.Credentials = credentials
    login = KerberosLogin(service_name="kafka", keytab=str(link), principal="alice")
    assert "alice@R" == begin(monkeypatch, library, login).user
    assert [ALICES_KEYTAB] == read
    with pytest.raises(AuthenticationError, match=f"cannot be read: {PATHS} does not allow it"):
        begin(monkeypatch, library, login)


def test_a_missing_package_is_reported_at_once(monkeypatch):
    """Creating a producer without the package fails at once, with how to install it."""
    monkeypatch.setattr(kerberos_tickets, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'spark-kafka-sink\[kerberos\]'"):
        KafkaProducer(SETTINGS)


def test_a_missing_c_library_is_reported(monkeypatch):
    """If the C library is missing the package cannot be loaded, and the error names it."""
    with pytest.raises(ConfigError, match=r"cannot be loaded.*libgssapi-krb5-2"):
        begin(monkeypatch, None)


def test_settings_of_javas_ticket_thread_are_refused():
    """Settings of Java's ticket thread have no effect, so only their defaults are accepted."""
    default = {"sasl.kerberos.kinit.cmd": "/usr/bin/kinit"}
    assert "GSSAPI" == ProducerConfig.from_mapping({**SETTINGS, **default}).security.sasl_mechanism
    with pytest.raises(
        ConfigError, match=r"kinit\.cmd.*a ticket cache must be renewed by the program"
    ):
        ProducerConfig.from_mapping({**SETTINGS, "sasl.kerberos.kinit.cmd": "/opt/kinit"})
