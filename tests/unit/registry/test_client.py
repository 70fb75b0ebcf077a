"""The client of a Schema Registry: what it asks, what it keeps, and what it refuses."""

from __future__ import annotations

import os
import pickle
import threading

import pytest

from spark_kafka_sink.config.registry_settings import RegistrySettings
from spark_kafka_sink.errors import ConfigError, SchemaRegistryError
from spark_kafka_sink.registry import client as client_module
from spark_kafka_sink.registry.client import SchemaRegistryClient, registry_client
from spark_kafka_sink.registry.schemas import (
    Compatibility,
    RegisteredSchema,
    SchemaReference,
)
from tests.support.registry.fake_registry import TEXT, FakeRegistry, by_version, error, respond


@pytest.fixture
def registry():
    with FakeRegistry() as fake:
        yield fake


@pytest.fixture
def client(registry):
    return client_of(registry)


def client_of(registry, **settings):
    """Return a client that does not wait between retries."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return SchemaRegistryClient(
        RegistrySettings.from_mapping({"url": registry.url, **named}), sleep=lambda _: None
    )


def refers(name, subject=None, version=1):
    return {"name": name, "subject": subject or name, "version": version}


# --- the calls


def test_a_schema_is_found_by_its_id_once(registry, client):
    """It is kept for the life of the client."""
    registry.values["/schemas/ids/7"] = {"schema": TEXT}
    expected = RegisteredSchema(id=7, text=TEXT)
    assert [expected, expected] == [client.schema_by_id(7) for _ in range(2)]
    assert ["/schemas/ids/7"] == registry.paths


def test_an_id_belongs_to_the_context_of_a_subject(registry, client):
    """Subjects of one context share their ids, and those of another do not."""
    registry.script = [(200, {"schema": '"int"'}), (200, {"schema": '"long"'})]
    assert ['"int"', '"int"', '"long"', '"long"'] == [
        client.schema_by_id(7, subject).text
        for subject in ("a-value", "b-value", ":.team:a-value", ":.team:b")
    ]
    assert [
        "/schemas/ids/7?subject=a-value",
        "/schemas/ids/7?subject=%3A.team%3Aa-value",
    ] == registry.paths


def test_the_latest_version_is_asked_each_time(registry, client):
    """It may change, but its id is known from then on."""
    path = "/subjects/a%2Fb%20c-value/versions/latest"
    registry.script = [(200, by_version(7, 1)), (200, by_version(8, 2, '"int"'))]
    subject = "a/b c-value"
    assert RegisteredSchema(id=7, text=TEXT, subject=subject, version=1) == client.latest_schema(
        subject
    )
    assert 8 == client.latest_schema(subject).id
    assert [TEXT, '"int"'] == [client.schema_by_id(each, subject).text for each in (7, 8)]
    assert [path, path] == registry.paths


def test_a_version_is_asked_once(registry, client):
    """A version never changes."""
    registry.values["/subjects/s/versions/3"] = by_version(7, 3)
    assert [7, 7] == [client.schema_version("s", 3).id for _ in range(2)]
    assert 1 == len(registry.asked)


def test_a_schema_is_looked_up_by_its_text(registry, client):
    """The flags of the request are sent if they are set."""
    registry.script = [(200, by_version(7, 2, '"int"'))] * 2
    assert 2 == client.look_up("s", TEXT).version
    reference = SchemaReference("a.B", "b", 4)
    registry.values["/subjects/b/versions/4?deleted=true"] = by_version(1, 4)
    assert '"int"' == client.look_up("s", TEXT, [reference], normalize=True, deleted=True).text
    plain, flagged = registry.asked
    assert ("POST", "/subjects/s", {"schema": TEXT}) == (plain.method, plain.path, plain.body)
    assert "/subjects/s?normalize=true&deleted=true" == flagged.path
    assert [{"name": "a.B", "subject": "b", "version": 4}] == flagged.body["references"]


def test_a_schema_is_registered(registry, client):
    """It gets its id, and what it refers to."""
    registry.script = [(200, {"id": 9}), (200, by_version(1, 4, '"int"'))]
    schema = client.register("s", TEXT, [SchemaReference("a.B", "b", 4)], normalize=True)
    assert (9, TEXT, "s", None) == (schema.id, schema.text, schema.subject, schema.version)
    assert ['"int"'] == [each.text for each in schema.dependencies]
    assert "/subjects/s/versions?normalize=true" == registry.paths[0]
    assert TEXT == registry.asked[0].body["schema"]


def test_a_registration_without_a_valid_id_is_refused(registry, client):
    """Ids are not negative; a payload could not name it."""
    registry.script = [(200, {"id": -1})]
    with pytest.raises(SchemaRegistryError, match="id"):
        client.register("s", TEXT)


def test_an_incompatible_schema_is_not_registered(registry, client):
    """The error has the registry's reason."""
    registry.script = [error(409, 409, "reader's field 'a' has no default")]
    with pytest.raises(SchemaRegistryError, match=r"field 'a' has no default\): make the schema"):
        client.register("s", TEXT)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((200, {"is_compatible": True}), Compatibility(is_compatible=True)),
        (
            (200, {"is_compatible": False, "messages": ["a", 5, "b" * 2000, *"c" * 50]}),
            Compatibility(False, ("a", "b" * 999 + "\u2026", *"c" * 17)),
        ),
        (error(404, 40401), Compatibility(is_compatible=True)),
        (error(404, 40402), Compatibility(is_compatible=True)),
    ],
)
def test_compatibility_is_tested_with_all_versions(registry, client, answer, expected):
    """A subject that does not exist has nothing to be compatible with; messages are limited."""
    registry.script = [answer]
    assert expected == client.test_compatibility("s", TEXT, normalize=True)
    assert ["/compatibility/subjects/s/versions?verbose=true&normalize=true"] == registry.paths


@pytest.mark.parametrize("missing", [error(404), error(404, 404, "HTTP 404 Not Found"), error(405)])
def test_compatibility_with_the_latest_version_is_the_second_choice(registry, client, missing):
    """Not all registries can compare with all versions."""
    registry.script = [missing, (200, {"is_compatible": False, "messages": ["a"]})]
    assert Compatibility(False, ("a",)) == client.test_compatibility("s", TEXT)
    versions = "/compatibility/subjects/s/versions"
    assert [f"{versions}?verbose=true", f"{versions}/latest?verbose=true"] == registry.paths


def test_a_server_that_tests_no_compatibility_is_an_error(registry, client):
    """It is probably not a registry."""
    registry.script = [error(404), error(404)]
    with pytest.raises(SchemaRegistryError, match="check that url is the URL of a Schema Registry"):
        client.test_compatibility("s", TEXT)
    assert 2 == len(registry.asked)


def test_a_failed_test_of_compatibility_is_an_error(registry, client):
    """Only a missing subject means that there is nothing to compare with."""
    registry.script = [error(404, 40403)]
    with pytest.raises(SchemaRegistryError):
        client.test_compatibility("s", TEXT)


def test_a_failure_is_not_kept(registry, client):
    """A schema that is registered later is found."""
    registry.script = [error(404, 40403)]
    registry.values["/schemas/ids/7"] = {"schema": TEXT}
    with pytest.raises(SchemaRegistryError) as caught:
        client.schema_by_id(7)
    assert 40403 == caught.value.error_code
    assert TEXT == client.schema_by_id(7).text


def test_a_new_schema_is_asked_for_again(registry, client):
    """Another node may learn of it later: of the one of a payload, or of a registered one."""
    unknown = error(404, 40403)
    registry.script = [unknown, unknown, (200, {"schema": TEXT})]
    assert TEXT == client.schema_by_id(7, may_be_new=True).text
    registry.script = [error(404, 40401), unknown, (200, by_version(8, 1))]
    assert 8 == client.look_up("s", TEXT, is_registered=True).id
    assert 6 == len(registry.asked)


def test_unknown_ids_are_waited_for_a_few_times_only(registry, monkeypatch):
    """Payloads without framing have ever new ones, and each wait takes seconds."""
    monkeypatch.setattr("spark_kafka_sink.registry.client.MOST_VAIN_WAITS", 2)
    client = client_of(registry, max_retries="3")
    requests = []
    for schema_id in range(4):
        with pytest.raises(SchemaRegistryError) as caught:
            client.schema_by_id(schema_id, may_be_new=True)
        assert 40403 == caught.value.error_code
        requests.append(len(registry.asked))
    assert [4, 8, 9, 10] == requests


@pytest.mark.parametrize("subject", ["", "a\nb", "\ud800"])
def test_a_subject_has_a_printable_name(client, subject):
    """Any other is an error before a request is sent."""
    for call in (client.latest_schema, lambda name: client.schema_by_id(1, name)):
        with pytest.raises(ConfigError, match="is not the name of a subject"):
            call(subject)


@pytest.mark.parametrize("number", [-1, 2**31])
def test_numbers_are_int32(client, number):
    """Ids come from payloads, which anybody may have written."""
    with pytest.raises(SchemaRegistryError, match="is not the id of a schema"):
        client.schema_by_id(number)
    with pytest.raises(SchemaRegistryError, match="is not a version of a schema"):
        client.schema_version("s", number)


# --- references


def test_references_are_fetched_in_the_order_in_which_they_are_needed(registry, client):
    """Each schema comes after those that it needs, and once; deleted versions are found, too."""
    registry.values |= {
        "/schemas/ids/7": {"schema": "top", "references": [refers("b"), refers("c", version=2)]},
        "/subjects/b/versions/1?deleted=true": by_version(1, 1, "b", references=[refers("d")]),
        "/subjects/c/versions/2?deleted=true": by_version(2, 2, "c", references=[refers("d")]),
        "/subjects/d/versions/1?deleted=true": by_version(3, 1, "d"),
    }
    schema = client.schema_by_id(7)
    assert (SchemaReference("b", "b", 1), SchemaReference("c", "c", 2)) == schema.references
    assert ["d", "b", "c"] == [each.text for each in schema.dependencies]
    assert schema == client.schema_by_id(7)
    assert 4 == len(registry.asked)


def test_the_first_of_two_references_of_a_name_counts(registry, client):
    """Two versions of a schema cannot both define its names."""
    both = [refers("b"), refers("c")]
    registry.values |= {
        "/schemas/ids/7": {"schema": "top", "references": both},
        "/subjects/b/versions/1?deleted=true": by_version(1, 1, "b", references=[refers("d")]),
        "/subjects/c/versions/1?deleted=true": by_version(
            2, 1, "c", references=[refers("d", version=2), refers("other name", "b"), refers("e")]
        ),
        "/subjects/d/versions/1?deleted=true": by_version(3, 1, "d"),
        "/subjects/e/versions/1?deleted=true": by_version(4, 1, "e"),
    }
    assert ["d", "b", "e", "c"] == [each.text for each in client.schema_by_id(7).dependencies]


def test_a_reference_is_in_the_context_of_its_schema(registry, client):
    """Unless it names one itself."""
    registry.values |= {
        "/schemas/ids/7?subject=%3A.t%3As": {
            "schema": "top",
            "references": [refers("b"), refers("c", ":.o:c", -1)],
        },
        "/subjects/%3A.t%3Ab/versions/1?deleted=true": by_version(1, 1, "b"),
        "/subjects/%3A.o%3Ac/versions/latest?deleted=true": by_version(
            2, 5, "c", references=[refers("d")]
        ),
        "/subjects/%3A.o%3Ad/versions/1?deleted=true": by_version(2, 5, "d"),
    }
    dependencies = client.schema_by_id(7, ":.t:s").dependencies
    assert ["b", "d", "c"] == [each.text for each in dependencies]


def test_a_circle_of_references_is_refused(registry, client):
    """It ends after each schema of it was fetched once."""
    registry.values |= {
        "/schemas/ids/7": {"schema": "top", "references": [refers("b")]},
        "/subjects/b/versions/1?deleted=true": by_version(1, 1, "b", references=[refers("c")]),
        "/subjects/c/versions/1?deleted=true": by_version(2, 1, "c", references=[refers("b")]),
    }
    with pytest.raises(SchemaRegistryError, match="lead back to version 1 of subject 'b'"):
        client.schema_by_id(7)
    assert 3 == len(registry.asked)


def endless(handler):
    """Send a schema that refers to another one of the same kind."""
    number = int(handler.path.partition("/subjects/s")[2].partition("/")[0] or 0)
    respond(handler, 200, by_version(1, 1, "x" * 10, references=[refers(f"s{number + 1}")]))


@pytest.mark.parametrize(
    ("limit", "value"), [("MAX_DEPTH", 5), ("MAX_DEPENDENCIES", 5), ("MAX_CHARACTERS", 49)]
)
def test_references_are_limited(registry, client, monkeypatch, limit, value):
    """A registry cannot make a client fetch without end."""
    monkeypatch.setattr(client_module, limit, value)
    registry.values["/schemas/ids/7"] = {"schema": "top", "references": [refers("s0")]}
    if limit == "MAX_CHARACTERS":
        registry.values["/schemas/ids/7"]["references"] = [refers(f"t{i}") for i in range(9)]
        registry.values |= {
            f"/subjects/t{i}/versions/1?deleted=true": by_version(1, 1, "x" * 10) for i in range(9)
        }
    else:
        registry.script = [(200, registry.values["/schemas/ids/7"]), *[endless] * 9]
    with pytest.raises(SchemaRegistryError, match=r"the references of schema .*: register fewer"):
        client.schema_by_id(7)
    assert 6 == len(registry.asked)


def test_a_chain_of_fifty_references_is_the_longest(registry, client):
    """The error says what the limits are."""
    registry.script = [(200, {"schema": "top", "references": [refers("s0")]}), *[endless] * 60]
    with pytest.raises(SchemaRegistryError) as refused:
        client.schema_by_id(7)
    assert str(refused.value).endswith(
        " are more than 1000 schemas, have more than 16777216 characters, or chains longer than "
        "50: register fewer"
    )
    assert 51 == len(registry.asked)


# --- threads and processes


def test_threads_share_a_request(registry, client):
    """All that ask for a schema while it is fetched wait for the same answer."""
    arrived, released = threading.Event(), threading.Event()

    def slow(handler):
        arrived.set()
        released.wait(60)
        respond(handler, 200, {"schema": TEXT})

    registry.script = [slow]
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(client.schema_by_id(7))) for _ in range(5)
    ]
    threads[0].start()
    arrived.wait(60)
    for thread in threads[1:]:
        thread.start()
    released.set()
    for thread in threads:
        thread.join()
    assert [TEXT] * 5 == [schema.text for schema in results]
    assert 1 == len(registry.asked)


def test_threads_share_a_failure(client):
    """Those that wait get the error of the fetch, and the next one fetches again."""
    fetches, entered, released = [], threading.Event(), threading.Event()
    errors = []

    def fetch():
        fetches.append(1)
        entered.set()
        released.wait(60)
        raise SchemaRegistryError("no", status=500, retriable=True)

    def ask():
        try:
            client._fetches.once("key", fetch)
        except SchemaRegistryError as error:
            errors.append(error)

    first = threading.Thread(target=ask)
    first.start()
    entered.wait(60)
    flight = client._fetches._flights["key"]
    second = threading.Thread(target=ask)
    second.start()
    released.set()
    first.join()
    second.join()
    # The second thread may have come too late to wait.
    assert (2, 500) == (len(errors), errors[1].status)
    assert 1 == sum(each is flight.error for each in errors)
    assert {} == client._fetches._flights
    assert errors[0] is not errors[1]


def test_an_interrupted_fetch_does_not_block_others(client):
    """Ctrl-C leaves nothing behind."""

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client._fetches.once("key", interrupted)
    assert 5 == client._fetches.once("key", lambda: 5)


def settings_of(registry, token=None):
    """Return the settings for a registry, with a token or without."""
    given = {} if token is None else {"bearer.auth.token": token}
    return RegistrySettings.from_mapping({"url": registry.url, **given})


def test_a_process_has_one_client_for_its_settings(registry):
    """Other credentials have another one."""
    client = registry_client(settings_of(registry))
    assert client is registry_client(settings_of(registry))
    clients = [registry_client(settings_of(registry, token)) for token in ("a", "b")]
    assert 3 == len({id(each) for each in (client, *clients)})


def test_a_client_shows_what_its_settings_show(registry, monkeypatch):
    """A URL from a reference is hidden, though a client that shows it is there already."""
    monkeypatch.setenv("WHERE", registry.url)
    messages = []
    for url in (registry.url, "${env:WHERE}"):
        client = registry_client(RegistrySettings.from_mapping({"url": url}))
        with pytest.raises(SchemaRegistryError) as caught:
            client.schema_by_id(4)
        messages.append(str(caught.value))
    assert messages[0].startswith(f"GET {registry.url}/schemas/ids/4 failed ")
    assert messages[1].startswith("GET [hidden]/schemas/ids/4 failed ")
    assert str(registry.port) not in messages[1]


def test_a_process_keeps_few_clients(registry, monkeypatch):
    """The one that was used longest ago makes room."""
    monkeypatch.setattr(client_module, "_clients", client_module._Clients())
    monkeypatch.setattr(client_module, "MAX_CLIENTS", 2)

    def of(token):
        return registry_client(settings_of(registry, token))

    first, second = of("a"), of("b")
    assert first is of("a")
    of("c")
    assert first is of("a")
    assert second is not of("b")


def test_a_forked_process_begins_without_clients(registry):
    """Another thread of its parent may have held a lock."""
    client = registry_client(settings_of(registry))
    pid = os.fork()
    if pid == 0:
        os._exit(int(registry_client(settings_of(registry)) is client))
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_client_cannot_be_pickled(registry):
    """A process makes its own; the settings can be pickled."""
    client = client_of(registry, basic_auth_user_info="me:planted")
    with pytest.raises(TypeError, match="make one in each process"):
        pickle.dumps(client)
    assert "planted" not in repr(client)
    assert registry.url in repr(client)
