"""Kerberos with a real KDC and a real broker: successful and failed logins, and their errors."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from spark_kafka_sink.config.allow_lists import PATHS
from spark_kafka_sink.errors import AuthenticationError, NetworkError
from spark_kafka_sink.network.authentication.kerberos_tickets import begin_gssapi
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.security.kerberos import read_kerberos
from spark_kafka_sink.security.login import parse_jaas
from tests.support.kafka.kafka_files import KAFKA_4
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, skip_or_fail
from tests.support.kafka.process_nodes import ProcessNodes
from tests.support.kafka.real_kafka import start_kafka
from tests.support.security.kdc import REALM, Kdc, keytab_module, module
from tests.support.security.secured_kafka import SESSION_MS, address, count_renewals

pytestmark = pytest.mark.kafka

#: The lifetime of the tickets of `brief`, in seconds.
BRIEF = 4
GUARDED = "KERBEROS"
RENEWED = "KERBEROSREAUTH"
#: A listener for which the broker has an outdated key.
STALE = "KERBEROSSTALE"


@pytest.fixture(scope="module")
def kdc(tmp_path_factory):
    """Yield a KDC, and make its configuration the only Kerberos configuration in use."""
    try:
        with Kdc(tmp_path_factory.mktemp("kdc")) as kdc, pytest.MonkeyPatch.context() as patch:
            for name, value in kdc.environment.items():
                patch.setenv(name, value)
            yield kdc
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)


@pytest.fixture(scope="module")
def keytabs(kdc):
    """Return the keytabs of the realm's principals, by name."""
    names = ("alice", "kafka/localhost", "stale/localhost")
    return {name: kdc.add(name) for name in names} | {"brief": kdc.add("brief", seconds=BRIEF)}


@pytest.fixture(scope="module")
def kerberos_kafka(kdc, keytabs):
    """Yield a broker with listeners for Kerberos."""
    properties = {}
    for listener, service in ((GUARDED, "kafka"), (RENEWED, "kafka"), (STALE, "stale")):
        principal = f"{service}/localhost"
        prefix = f"listener.name.{listener.lower()}"
        login = keytab_module(principal, keytabs[principal], storeKey="true")
        properties |= {
            f"{prefix}.sasl.enabled.mechanisms": "GSSAPI",
            f"{prefix}.sasl.kerberos.service.name": service,
            f"{prefix}.gssapi.sasl.jaas.config": login,
        }
    renewed = f"listener.name.{RENEWED.lower()}.gssapi.connections.max.reauth.ms"
    properties[renewed] = str(SESSION_MS)
    try:
        cluster = start_kafka(
            KAFKA_4,
            overrides=properties,
            java_options=("-Xmx512m", f"-Djava.security.krb5.conf={kdc.krb5_conf}"),
            secured=dict.fromkeys((GUARDED, RENEWED, STALE), "SASL_PLAINTEXT"),
            ways=(ProcessNodes,),
        )
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)
    with cluster:
        kdc.change_key("stale/localhost")
        yield cluster


def settings(kafka, login, listener=GUARDED, service="kafka", **others):
    return {
        "bootstrap.servers": address(kafka, listener),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": service,
        "sasl.jaas.config": login,
        **others,
    }


def write(kafka, login, **others):
    """Write records to a new topic, and check that their offsets are their numbers."""
    topic = kafka.create_topic(1)
    with KafkaProducer(settings(kafka, login, **others)) as producer:
        futures = [producer.send(topic, b"%d" % number) for number in range(10)]
        assert list(range(10)) == [future.result(60).offset for future in futures]


def refusal(kafka, login, *places, **others):
    """Return the error of a producer that fails to log in, long before its max.block.ms."""
    given = {"max.block.ms": 10**7, **settings(kafka, login, *places, **others)}
    producer = KafkaProducer(given)
    try:
        with pytest.raises(AuthenticationError) as caught:
            producer.send("events", b"v").result(60)
    finally:
        producer.close(0)
    return str(caught.value)


def begin(login, service="kafka", host="localhost"):
    """Begin a GSSAPI exchange as a connection does."""
    read = read_kerberos(parse_jaas(login).options, service)
    return asyncio.run(begin_gssapi(read, host))


# --- successful logins


def test_a_login_with_a_keytab_succeeds(kerberos_kafka, keytabs):
    """A JAAS login with a keytab works unchanged."""
    write(kerberos_kafka, keytab_module("alice", keytabs["alice"], storeKey="true"))


def test_a_login_succeeds_where_files_are_restricted(
    kerberos_kafka, keytabs, monkeypatch, tmp_path
):
    """The library reads the keytab that was checked, by the path of its descriptor."""
    # Under another name than in other tests, whose tickets are in a cache of this process.
    (tmp_path / "keytab").symlink_to(keytabs["alice"])
    monkeypatch.setenv(PATHS, str(keytabs["alice"]))
    write(kerberos_kafka, keytab_module("alice", tmp_path / "keytab"))


def test_a_login_with_a_ticket_cache_succeeds(kerberos_kafka, kdc, keytabs, monkeypatch):
    """A ticket from kinit is used, from a named cache and from the default one."""
    cache = kdc.kinit("alice", keytabs["alice"])
    write(kerberos_kafka, module(useTicketCache="true", ticketCache=cache))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{cache}")
    write(kerberos_kafka, module(useTicketCache="true", renewTGT="false"))


def test_the_keytab_is_used_if_there_is_no_ticket(kerberos_kafka, keytabs, tmp_path):
    """With a cache and a keytab, the keytab is used if the cache has no ticket."""
    both = {"useTicketCache": "true", "ticketCache": tmp_path / "none"}
    write(kerberos_kafka, keytab_module("alice", keytabs["alice"], **both))


def test_expired_tickets_and_sessions_are_renewed_under_load(kerberos_kafka, keytabs, monkeypatch):
    """Sessions are renewed with new tickets after earlier ones have expired, without losses."""
    renewed = count_renewals(monkeypatch)
    topic = kerberos_kafka.create_topic(1)
    given = settings(kerberos_kafka, keytab_module("brief", keytabs["brief"]), RENEWED)
    started = time.monotonic()
    futures = []
    with KafkaProducer({**given, "linger.ms": 0, "batch.size": 2_000}) as producer:
        while time.monotonic() < started + 60 and (
            max(renewed.values(), default=0) < 2 or time.monotonic() < started + 2 * BRIEF
        ):
            futures += [producer.send(topic, b"%d" % len(futures)) for _ in range(50)]
            futures[-1].result(60)
        producer.flush(60)
    assert [*range(len(futures))] == [future.result(0).offset for future in futures]
    assert max(renewed.values()) >= 2, f"no session of {SESSION_MS} ms was renewed twice"


# --- failed logins


def test_an_unknown_service_is_an_error(kerberos_kafka, keytabs):
    """The error names principal, service and cause, and says what to check."""
    login = keytab_module("alice", keytabs["alice"])
    message = refusal(kerberos_kafka, login, GUARDED, "other")
    assert (
        f"no Kerberos ticket of 'alice@{REALM}' for the service other/localhost (GSSAPI): Server "
        f"other/localhost@{REALM} not found in Kerberos database. Looked in the keytab "
        f"{keytabs['alice']}; check sasl.kerberos.service.name"
    ) in message


def test_a_missing_ticket_is_an_error(kerberos_kafka, tmp_path):
    """The error for a missing ticket says how to get one."""
    login = module(useTicketCache="true", ticketCache=tmp_path / "none")
    message = refusal(kerberos_kafka, login)
    assert "no Kerberos ticket of the ticket cache's owner for the service kafka/" in message
    assert f"Looked in the ticket cache {tmp_path}/none; get a ticket with" in message


def test_an_expired_ticket_is_an_error(kdc, keytabs):
    """An expired ticket in the cache is not used, and the error says that it has expired."""
    cache = kdc.kinit("brief", keytabs["brief"], "-l", "1s")
    login = module(useTicketCache="true", ticketCache=cache)
    with pytest.raises(AuthenticationError, match=r"expired.*get a (new )?ticket with kinit"):
        _until_refused(login)


def _until_refused(login):
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at:
        begin(login)
        time.sleep(0.2)


def test_a_missing_or_wrong_keytab_is_an_error(kerberos_kafka, keytabs, tmp_path):
    """The error for a missing keytab names its path, and that for a wrong one lists its keys."""
    missing = refusal(kerberos_kafka, keytab_module("alice", tmp_path / "none"))
    assert f"the keytab {tmp_path / 'none'} of 'alice@{REALM}' (GSSAPI) cannot be read" in missing
    other = refusal(kerberos_kafka, keytab_module("bob", keytabs["alice"]))
    assert f"has no key for 'bob@{REALM}' (GSSAPI); it has keys for: alice@{REALM}" in other


def test_an_outdated_keytab_is_an_error(kdc):
    """An outdated key gets no ticket from the KDC, and the error names the principal."""
    keytab = kdc.add("changed")
    kdc.change_key("changed")
    with pytest.raises(AuthenticationError, match=f"of 'changed@{REALM}' for the service"):
        begin(keytab_module("changed", keytab))


def test_an_outdated_keytab_of_the_broker_is_an_error(kerberos_kafka, keytabs):
    """If the broker cannot decrypt a ticket, the error says to check the broker's keytab."""
    login = keytab_module("alice", keytabs["alice"])
    message = refusal(kerberos_kafka, login, STALE, "stale")
    assert f"GSSAPI authentication of user 'alice@{REALM}' failed: " in message
    assert "Check that the broker's keytab has the current key of stale/localhost" in message


def test_an_unreachable_kdc_is_a_retriable_error(kdc, keytabs):
    """An unreachable KDC is a retriable error, and a later login succeeds."""
    login = keytab_module("kafka/localhost", keytabs["kafka/localhost"])
    kdc.stop()
    try:
        with pytest.raises(NetworkError, match=r"Cannot contact any KDC"):
            begin(login)
    finally:
        kdc.start()
    give_up_at = time.monotonic() + 60
    while True:
        try:
            client = begin(login)
        except NetworkError:
            assert time.monotonic() < give_up_at
            continue
        break
    assert f"kafka/localhost@{REALM}" == client.user
