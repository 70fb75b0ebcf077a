"""The REST API of the embedded Schema Registry, without sockets."""

from __future__ import annotations

import hashlib
import json
import uuid

import pytest

from spark_kafka_sink.devbroker.registry.rest_api import MEDIA_TYPES, RestApi, RestRequest
from tests.support.devbroker.registry_calls import Answer, ask, record

V1 = record("id:long")
V2 = record("id:long", 'note:string=""')
INCOMPATIBLE = record("id:long", "price:double")
REGISTER = "POST /subjects/orders/versions"


@pytest.fixture
def api():
    """Return the API of an empty registry."""
    return RestApi()


def register(api, schema, subject="orders", **parts):
    """Register a schema; return its id."""
    answer = ask(api, f"POST /subjects/{subject}/versions", {"schema": schema, **parts})
    assert 200 == answer.status, answer.body
    return answer.body["id"]


def code(answer):
    """Return the status and the error code of a response."""
    return answer.status, answer.body["error_code"]


def test_ids_and_versions_count_from_one(api):
    """The first schema has id 1 and version 1, and the next ones count on."""
    assert [1, 2] == [register(api, V1), register(api, V2)]
    assert Answer(200, [1, 2]) == ask(api, "GET /subjects/orders/versions")


def test_a_registered_schema_is_returned_in_full(api):
    """The response to a registration has the id, and what Confluent's registry adds since 8.0."""
    body = ask(api, REGISTER, {"schema": V1}).body
    assert (1, 1, "AVRO") == (body["id"], body["version"], body["schemaType"])
    assert json.loads(V1) == json.loads(body["schema"])
    digest = hashlib.md5(body["schema"].encode(), usedforsecurity=False).digest()
    assert str(uuid.UUID(bytes=digest)) == body["guid"]


def test_the_same_schema_has_the_same_id_everywhere(api):
    """A schema that is registered again keeps its version, and shares its id between subjects."""
    assert [1, 1, 1] == [register(api, V1), register(api, V1), register(api, V1, "returns")]
    assert Answer(200, [1]) == ask(api, "GET /subjects/orders/versions")
    assert Answer(200, ["orders", "returns"]) == ask(api, "GET /schemas/ids/1/subjects")


def test_blanks_make_no_other_schema(api):
    """The canonical text decides which schemas are the same."""
    assert 1 == register(api, V1)
    assert 1 == register(api, json.dumps(json.loads(V1), indent=4))


def test_a_schema_is_found_by_its_id(api):
    """An id leads to the text, with subject and version only if the request names a subject."""
    register(api, V1)
    found = ask(api, "GET /schemas/ids/1").body
    assert {"guid", "schemaType", "schema"} == found.keys()
    named = ask(api, "GET /schemas/ids/1?subject=orders").body
    assert ("orders", 1) == (named["subject"], named["version"])
    assert json.loads(V1) == ask(api, "GET /schemas/ids/1/schema").body


def test_a_schema_is_found_by_its_guid(api):
    """A guid leads to the text, and to the id in each context."""
    guid = ask(api, REGISTER, {"schema": V1}).body["guid"]
    register(api, V2, ":.test:a")
    register(api, V1, ":.test:b")
    assert json.loads(V1) == json.loads(ask(api, f"GET /schemas/guids/{guid}").body["schema"])
    assert Answer(200, [{"context": ".test", "id": 2}, {"context": ".", "id": 1}]) == ask(
        api, f"GET /schemas/guids/{guid}/ids"
    )
    assert (404, 40403) == code(ask(api, "GET /schemas/guids/none"))


def test_the_largest_id_is_returned_on_request(api):
    """With fetchMaxId the response has the largest id that was assigned."""
    register(api, V1)
    register(api, V2)
    assert 2 == ask(api, "GET /schemas/ids/1?fetchMaxId=true").body["maxId"]


@pytest.mark.parametrize("version", ["latest", "-1", "2", " Latest "])
def test_a_version_has_many_names(api, version):
    """The latest version is also -1, and its number."""
    register(api, V1)
    register(api, V2)
    target = f"GET /subjects/orders/versions/{version.replace(' ', '%20')}"
    assert (2, 2) == (ask(api, target).body["version"], ask(api, target).body["id"])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("GET /schemas/ids/7", (404, 40403)),
        ("GET /schemas/ids/7/versions", (404, 40403)),
        ("GET /schemas/ids/seven", (404, 404)),
        ("GET /subjects/none/versions", (404, 40401)),
        ("GET /subjects/none/versions/1", (404, 40401)),
        ("GET /subjects/orders/versions/7", (404, 40402)),
        ("GET /subjects/orders/versions/0", (422, 42202)),
        ("GET /subjects/orders/versions/first", (422, 42202)),
        ("GET /subjects/orders/versions/2147483648", (422, 42202)),
        ("DELETE /subjects/none", (404, 40401)),
        ("DELETE /subjects/none/versions/1", (404, 40401)),
        ("DELETE /subjects/orders/versions/7", (404, 40402)),
        ("DELETE /subjects/orders?permanent=true", (404, 40405)),
        ("DELETE /subjects/orders/versions/1?permanent=true", (404, 40407)),
        ("GET /config/orders", (404, 40408)),
        ("DELETE /config/orders", (404, 40401)),
        ("GET /mode/orders", (404, 40409)),
        ("DELETE /mode/orders", (404, 40401)),
        ("GET /nothing", (404, 404)),
        ("GET /subjects?limit=many", (404, 404)),
        ("GET /subjects?offset=-1", (400, 400)),
        ("PATCH /subjects", (405, 405)),
    ],
)
def test_what_is_not_there_is_named_by_its_code(api, line, expected):
    """Each thing that is missing has Confluent's status and error code."""
    register(api, V1)
    assert expected == code(ask(api, line))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"schema": "not JSON"}, (422, 42201)),
        ({"schema": '{"type": "nothing"}'}, (422, 42201)),
        ({"schema": ""}, (422, 42201)),
        ({}, (422, 42201)),
        ({"schema": V1, "schemaType": "PROTOBUF"}, (422, 42201)),
        ({"schema": 7}, (400, 400)),
        ({"schema": V1, "references": {}}, (400, 400)),
        ({"schema": V1, "references": ["a"]}, (400, 400)),
        ({"schema": V1, "references": [{"name": "a"}]}, (422, 42201)),
        ({"schema": V1, "references": [{"name": "a", "subject": "b", "version": 1}]}, (422, 42201)),
        ({"schema": V1, "metadata": []}, (400, 400)),
        ({"schema": V1, "metadata": {"properties": {"a": 1}}}, (400, 400)),
        ({"schema": V1, "metadata": {"tags": {"a": "b"}}}, (400, 400)),
        ({"schema": V1, "ruleSet": {"domainRules": [{"name": "a"}]}}, (422, 42210)),
        ({"schema": V1, "ruleSet": {"domainRules": [{"name": "1", "type": "X"}]}}, (422, 42210)),
        (
            {"schema": V1, "ruleSet": {"domainRules": [{"name": "a", "type": "X", "mode": "UP"}]}},
            (422, 42210),
        ),
        ({"schema": V1, "ruleSet": {"domainRules": [7]}}, (400, 400)),
        ({"schema": V1, "version": "1"}, (400, 400)),
        ({"schema": V1, "version": 7}, (422, 42201)),
        ({"schema": V1, "id": 7}, (422, 42205)),
        ({"schema": json.dumps({"type": "int", "doc": "a" * 1_000_000})}, (422, 42209)),
        ([], (400, 400)),
    ],
)
def test_a_bad_schema_is_refused(api, body, expected):
    """What cannot be registered is refused with Confluent's codes, and takes no id."""
    assert expected == code(ask(api, REGISTER, body))
    assert Answer(200, []) == ask(api, "GET /subjects")
    assert 1 == register(api, V1)


def test_a_rule_may_not_be_there_twice(api):
    """Rules have names of their own."""
    rule = {"name": "check", "type": "CEL"}
    answer = ask(api, REGISTER, {"schema": V1, "ruleSet": {"domainRules": [rule, rule]}})
    assert (422, 42210) == code(answer)


def test_metadata_and_rules_are_kept_as_they_are(api):
    """What a client registers with a schema is returned verbatim, and makes another schema."""
    metadata = {"properties": {"owner": "shop"}, "tags": {"a.b": ["PII"]}, "sensitive": ["s"]}
    rule_set = {"domainRules": [{"name": "check", "type": "CEL", "mode": "WRITE", "x": [1]}]}
    assert [1, 2] == [register(api, V1), register(api, V1, metadata=metadata, ruleSet=rule_set)]
    found = ask(api, "GET /subjects/orders/versions/latest").body
    assert (metadata, rule_set) == (found["metadata"], found["ruleSet"])


def test_a_schema_inherits_metadata_and_rules(api):
    """A schema without metadata or rules has those of the version before it."""
    metadata = {"properties": {"owner": "shop"}}
    register(api, V1, metadata=metadata)
    register(api, V2)
    assert metadata == ask(api, "GET /subjects/orders/versions/2").body["metadata"]
    found = ask(api, "GET /subjects/orders/metadata?key=owner&value=shop")
    assert 2 == found.body["version"]
    missing = ask(api, "GET /subjects/orders/metadata?key=owner&value=other")
    assert (404, 40403) == code(missing)


def test_a_schema_registered_as_a_version_is_found_without_its_number(api):
    """The number is kept among the properties, which a request need not repeat."""
    register(api, V1, version=1)
    found = ask(api, "GET /subjects/orders/versions/1").body
    assert {"properties": {"confluent:version": "1"}} == found["metadata"]
    body = {"schema": V1, "metadata": {"properties": {}}}
    assert 1 == ask(api, "POST /subjects/orders", body).body["version"]
    assert found["id"] == ask(api, REGISTER, body).body["id"]
    assert [1] == ask(api, "GET /subjects/orders/versions").body


def test_an_incompatible_schema_is_a_conflict(api):
    """By default a new schema must read the data of the latest one."""
    register(api, V1)
    answer = ask(api, REGISTER, {"schema": INCOMPATIBLE})
    assert (409, 40901) == code(answer)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in answer.body["message"]
    assert '"orders"' in answer.body["message"]


@pytest.mark.parametrize("path", ["/config", "/config/orders"])
def test_a_compatibility_level_can_be_set_and_removed(api, path):
    """A level applies to all subjects, or to one, until it is removed."""
    register(api, V1)
    assert Answer(200, {"compatibility": "NONE"}) == ask(
        api, f"PUT {path}", {"compatibility": "none"}
    )
    assert Answer(200, {"compatibilityLevel": "NONE"}) == ask(api, f"GET {path}")
    assert 2 == register(api, INCOMPATIBLE)
    assert Answer(200, {"compatibilityLevel": "NONE"}) == ask(api, f"DELETE {path}")
    found = ask(api, "GET /config/orders?defaultToGlobal=true")
    assert Answer(200, {"compatibilityLevel": "BACKWARD"}) == found


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"compatibility": "SOMETIMES"}, (422, 42203)),
        ({"normalize": "yes"}, (400, 400)),
        ({"alias": "other"}, (422, 42205)),
    ],
)
def test_a_bad_setting_is_refused(api, body, expected):
    """An unknown level, a value of another type, and an unsupported setting are errors."""
    assert expected == code(ask(api, "PUT /config/orders", body))


def test_a_transitive_level_counts_all_versions(api):
    """A schema that reads the latest one, but not the first, is refused by a transitive level."""
    ask(api, "PUT /config", {"compatibility": "NONE"})
    register(api, record("id:long"))
    register(api, record("id:long", "price:double"))
    third = {"schema": record("id:long", "price:double", 'note:string=""')}
    ask(api, "PUT /config", {"compatibility": "BACKWARD_TRANSITIVE"})
    assert (409, 40901) == code(ask(api, REGISTER, third))
    ask(api, "PUT /config", {"compatibility": "BACKWARD"})
    assert 200 == ask(api, REGISTER, third).status


def test_compatibility_groups_are_compared_only_within(api):
    """With a compatibility group only versions with the same property count."""
    ask(api, "PUT /config/orders", {"compatibilityGroup": "major"})
    register(api, V1, metadata={"properties": {"major": "1"}})
    assert 2 == register(api, INCOMPATIBLE, metadata={"properties": {"major": "2"}})
    refused = {"schema": INCOMPATIBLE, "metadata": {"properties": {"major": "1"}}}
    assert (409, 40901) == code(ask(api, REGISTER, refused))


def test_compatibility_can_be_asked_without_registering(api):
    """The API of compatibility says whether a schema fits, and why not if asked."""
    register(api, V1)
    path = "/compatibility/subjects/orders/versions"
    assert Answer(200, {"is_compatible": True}) == ask(api, f"POST {path}/latest", {"schema": V2})
    assert Answer(200, {"is_compatible": False}) == ask(
        api, f"POST {path}", {"schema": INCOMPATIBLE}
    )
    answer = ask(api, f"POST {path}/1?verbose=true", {"schema": INCOMPATIBLE})
    assert "errorType:'READER_FIELD_MISSING_DEFAULT_VALUE'" in answer.body["messages"][0]
    assert "{validateFields: 'false', compatibility: 'BACKWARD'}" == answer.body["messages"][-1]
    invalid = ask(api, f"POST {path}/1?verbose=true", {"schema": "no"})
    assert (200, False) == (invalid.status, invalid.body["is_compatible"])
    assert (422, 42201) == code(ask(api, f"POST {path}/1", {"schema": "no"}))
    assert (404, 40402) == code(ask(api, f"POST {path}/7", {"schema": V1}))
    assert Answer(200, {"is_compatible": True}) == ask(
        api, "POST /compatibility/subjects/none/versions/latest", {"schema": V1}
    )


def test_a_schema_is_looked_up_by_its_text(api):
    """A look-up returns the version that has a schema, and tells what is missing."""
    register(api, V1)
    found = ask(api, "POST /subjects/orders", {"schema": V1}).body
    assert ("orders", 1, 1) == (found["subject"], found["version"], found["id"])
    assert (404, 40403) == code(ask(api, "POST /subjects/orders", {"schema": V2}))
    assert (404, 40401) == code(ask(api, "POST /subjects/none", {"schema": V1}))
    assert (422, 42201) == code(ask(api, "POST /subjects/orders", {"schema": "no"}))


def test_a_look_up_can_normalize(api):
    """With normalize, the order of properties and aliases has no meaning."""
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [],
        "aliases": ["B", "A"],
        "y": 1,
        "x": 2,
    }
    other = {"type": "record", "name": "Order", "fields": [], "aliases": ["A", "B"], "x": 2, "y": 1}
    answer = ask(api, f"{REGISTER}?normalize=true", {"schema": json.dumps(schema)})
    assert ["A", "B"] == json.loads(answer.body["schema"])["aliases"]
    assert (
        1
        == ask(api, "POST /subjects/orders?normalize=true", {"schema": json.dumps(other)}).body[
            "id"
        ]
    )


def test_deleting_is_soft_at_first(api):
    """A deleted version is hidden, remains readable by id, and is gone after the second time."""
    register(api, V1)
    register(api, V2)
    assert Answer(200, 1) == ask(api, "DELETE /subjects/orders/versions/1")
    assert (404, 40406) == code(ask(api, "DELETE /subjects/orders/versions/1"))
    assert Answer(200, [2]) == ask(api, "GET /subjects/orders/versions")
    assert Answer(200, [1, 2]) == ask(api, "GET /subjects/orders/versions?deleted=true")
    assert Answer(200, [1]) == ask(api, "GET /subjects/orders/versions?deletedOnly=true")
    assert Answer(200, [-1, 2]) == ask(api, "GET /subjects/orders/versions?deletedAsNegative=true")
    assert ask(api, "GET /schemas/ids/1").body["deleted"]
    assert (404, 40402) == code(ask(api, "GET /subjects/orders/versions/1"))
    assert 1 == ask(api, "GET /subjects/orders/versions/1?deleted=true").body["id"]
    assert Answer(200, 1) == ask(api, "DELETE /subjects/orders/versions/1?permanent=true")
    assert (404, 40403) == code(ask(api, "GET /schemas/ids/1"))


def test_a_subject_is_deleted_with_all_its_versions(api):
    """A deleted subject is listed only on request, and is gone after the second time."""
    register(api, V1)
    register(api, V2)
    assert Answer(200, [1, 2]) == ask(api, "DELETE /subjects/orders")
    assert (404, 40404) == code(ask(api, "DELETE /subjects/orders"))
    assert Answer(200, []) == ask(api, "GET /subjects")
    assert Answer(200, ["orders"]) == ask(api, "GET /subjects?deleted=true")
    assert Answer(200, ["orders"]) == ask(api, "GET /subjects?deletedOnly=true")
    assert 1 == ask(api, "POST /subjects/orders?deleted=true", {"schema": V1}).body["version"]
    assert Answer(200, [1, 2]) == ask(api, "DELETE /subjects/orders?permanent=true")
    assert (404, 40401) == code(ask(api, "DELETE /subjects/orders?permanent=true"))


def test_a_schema_that_comes_back_keeps_its_id(api):
    """A deleted schema that is registered again has its id, and the next version."""
    register(api, V1)
    ask(api, "DELETE /subjects/orders")
    answer = ask(api, REGISTER, {"schema": V1})
    assert (1, 2) == (answer.body["id"], answer.body["version"])
    assert Answer(200, [2]) == ask(api, "GET /subjects/orders/versions?deleted=true")


def test_ids_are_not_used_again(api):
    """A schema that is gone leaves its id unused."""
    register(api, V1)
    ask(api, "DELETE /subjects/orders")
    ask(api, "DELETE /subjects/orders?permanent=true")
    assert 2 == register(api, V1)


CUSTOMER = record("name:string", name="shop.Customer")
ORDER = record("customer:shop.Customer", name="shop.Order")
REFERENCES = [{"name": "shop.Customer", "subject": "customer", "version": 1}]


def test_a_schema_may_refer_to_others(api):
    """References are kept, found from the other side, and prevent deletion."""
    register(api, CUSTOMER, "customer")
    assert 2 == register(api, ORDER, references=REFERENCES)
    found = ask(api, "GET /schemas/ids/2").body
    assert REFERENCES == found["references"]
    assert "Customer" == json.loads(found["schema"])["fields"][0]["type"]
    assert Answer(200, [2]) == ask(api, "GET /subjects/customer/versions/1/referencedby")
    assert (422, 42206) == code(ask(api, "DELETE /subjects/customer/versions/1"))
    assert (422, 42206) == code(ask(api, "DELETE /subjects/customer"))
    resolved = ask(api, "GET /schemas/ids/2?format=resolved").body["schema"]
    assert "record" == json.loads(resolved)["fields"][0]["type"]["type"]


def test_a_schema_with_references_resolved_is_the_same(api):
    """A schema that defines what it referred to is found, but not registered again."""
    register(api, CUSTOMER, "customer")
    register(api, ORDER, references=REFERENCES)
    whole = ask(api, "GET /schemas/ids/2?format=resolved").body["schema"]
    assert 2 == register(api, whole)
    assert 2 == ask(api, "POST /subjects/orders", {"schema": whole}).body["id"]


def test_a_reference_to_the_latest_version_becomes_a_number(api):
    """The version -1 of a reference stands for the latest, whose number is kept."""
    register(api, CUSTOMER, "customer")
    register(api, ORDER, references=[{**REFERENCES[0], "version": -1}])
    assert REFERENCES == ask(api, "GET /schemas/ids/2").body["references"]


def test_a_context_has_ids_of_its_own(api):
    """Subjects of another context count their ids from 1, and are listed with it."""
    register(api, V1)
    assert 1 == register(api, V2, ":.test:orders")
    assert Answer(200, [":.test:orders", "orders"]) == ask(api, "GET /subjects")
    assert Answer(200, ["orders"]) == ask(api, "GET /subjects?subjectPrefix=")
    assert Answer(200, [":.test:orders"]) == ask(api, "GET /subjects?subjectPrefix=:.test:")
    assert Answer(200, [".", ".test"]) == ask(api, "GET /contexts")
    inside = ask(api, "GET /schemas/ids/1?subject=:.test:").body["schema"]
    assert json.loads(V2) == json.loads(inside)


def test_a_path_within_a_context_names_its_subjects(api):
    """The path /contexts/{context} gives a context to all names behind it."""
    ask(api, "POST /contexts/.test/subjects/orders/versions", {"schema": V2})
    assert Answer(200, [":.test:orders"]) == ask(api, "GET /contexts/.test/subjects")
    found = ask(api, "GET /contexts/:.test:/schemas/ids/1").body
    assert ":.test:orders" == found["subject"]
    ask(api, "PUT /contexts/.test/config", {"compatibility": "NONE"})
    found = ask(api, "GET /config/:.test:orders?defaultToGlobal=true")
    assert Answer(200, {"compatibilityLevel": "NONE"}) == found


def test_a_name_without_a_context_is_found_in_the_others(api):
    """A version and an id are looked for in all contexts if the name has none."""
    register(api, V2, ":.test:orders")
    assert ":.test:orders" == ask(api, "GET /subjects/orders/versions/1").body["subject"]
    assert 200 == ask(api, "GET /schemas/ids/1?subject=orders").status
    assert 1 == ask(api, "POST /subjects/orders", {"schema": V2}).body["id"]


def test_a_read_only_subject_does_not_change(api):
    """The mode READONLY refuses registration, deletion and settings, and can be taken back."""
    register(api, V1)
    assert Answer(200, {"mode": "READONLY"}) == ask(api, "PUT /mode/orders", {"mode": "READONLY"})
    assert Answer(200, {"mode": "READONLY"}) == ask(api, "GET /mode/orders")
    for line, body in (
        (REGISTER, {"schema": V2}),
        ("DELETE /subjects/orders", None),
        ("DELETE /subjects/orders/versions/1", None),
        ("PUT /config/orders", {"compatibility": "NONE"}),
    ):
        assert (422, 42205) == code(ask(api, line, body))
    assert Answer(200, {"mode": "READONLY"}) == ask(api, "DELETE /mode/orders")
    assert 2 == register(api, V2)


def test_schemas_are_imported_with_their_ids(api):
    """The mode IMPORT takes ids and versions from the client, unchecked against each other."""
    assert 200 == ask(api, "PUT /mode/orders", {"mode": "IMPORT"}).status
    assert 17 == register(api, V1, id=17, version=3)
    assert 18 == register(api, INCOMPATIBLE, id=18, version=5)
    assert Answer(200, [3, 5]) == ask(api, "GET /subjects/orders/versions")
    assert (422, 42205) == code(ask(api, REGISTER, {"schema": V2}))
    assert (422, 42205) == code(ask(api, REGISTER, {"schema": V2, "id": 17, "version": 7}))
    assert 19 == register(api, V2, "returns")


def test_a_mode_must_be_known_and_possible(api):
    """An unknown mode is refused, and IMPORT for a subject that has versions, unless forced."""
    register(api, V1)
    assert (422, 42204) == code(ask(api, "PUT /mode", {"mode": "WRITEONLY"}))
    assert (422, 42204) == code(ask(api, "PUT /mode/orders", {"mode": "FORWARD"}))
    assert (422, 42205) == code(ask(api, "PUT /mode", {"mode": "IMPORT"}))
    assert 200 == ask(api, "PUT /mode?force=true", {"mode": "IMPORT"}).status


def test_lists_have_pages(api):
    """The parameters offset and limit select a part of a list."""
    for name in ("a", "b", "c"):
        register(api, V1, name)
    assert Answer(200, ["b"]) == ask(api, "GET /subjects?offset=1&limit=1")
    assert Answer(200, ["b", "c"]) == ask(api, "GET /schemas/ids/1/subjects?offset=1")
    assert ["a", "b", "c"] == [found["subject"] for found in ask(api, "GET /schemas").body]
    assert ["b"] == [found["subject"] for found in ask(api, "GET /schemas?subjectPrefix=b").body]


def test_a_list_of_schemas_is_not_too_long(api):
    """A list ends before it has too many letters; what is missing is on the next page."""
    for number in range(18):
        register(api, json.dumps({"type": "int", "x": str(number) + "a" * 900_000}))
    first = [found["version"] for found in ask(api, "GET /schemas").body]
    rest = [found["version"] for found in ask(api, f"GET /schemas?offset={len(first)}").body]
    assert (list(range(1, 19)), 1) == (first + rest, len(rest))


def test_references_are_not_too_long(api):
    """The texts of all references together are limited."""
    references = []
    for number in range(5):
        parts = {"type": "fixed", "name": f"F{number}", "size": 1, "x": "a" * 900_000}
        register(api, json.dumps(parts), f"f{number}")
        references.append({"name": f"F{number}", "subject": f"f{number}", "version": 1})
    assert (422, 42209) == code(ask(api, REGISTER, {"schema": V1, "references": references}))


def test_a_subject_may_have_any_letters(api):
    """A name is encoded in the path; control characters are refused."""
    register(api, V1, "a%2Fb%20%C3%A9")
    assert Answer(200, ["a/b é"]) == ask(api, "GET /subjects")
    assert (422, 42208) == code(ask(api, "POST /subjects/a%00b/versions", {"schema": V1}))
    assert (422, 42208) == code(ask(api, "POST /subjects/__GLOBAL/versions", {"schema": V1}))


def test_only_the_types_of_the_registry_are_spoken(api):
    """Bodies of another type, and clients that accept none of ours, are refused."""
    types = {"content-type": "text/plain"}
    assert (415, 415) == code(ask(api, REGISTER, {"schema": V1}, **types))
    assert (406, 406) == code(ask(api, "GET /subjects", accept="text/html"))
    accepts = {"accept": "application/json; q=0.5"}
    request = RestRequest(method="GET", target="/subjects", headers=accepts)
    assert "application/json" == api.handle(request).content_type
    assert (
        MEDIA_TYPES[0]
        == api.handle(RestRequest(method="GET", target="/subjects", headers={})).content_type
    )


def test_the_rest_answers_too(api):
    """The root, the types of schemas and the id of the cluster are there."""
    assert Answer(200, {}) == ask(api, "GET /")
    assert Answer(200, ["AVRO"]) == ask(api, "GET /schemas/types")
    assert "scope" in ask(api, "GET /v1/metadata/id").body


def test_a_change_that_is_not_stored_has_never_happened():
    """If the state cannot be stored, the response is 50001, and nothing has changed."""

    def full(_):
        raise OSError(28, "No space left on device")

    api = RestApi(store=full)
    assert (500, 50001) == code(ask(api, REGISTER, {"schema": V1}))
    assert Answer(200, []) == ask(api, "GET /subjects")


def test_an_unexpected_error_shows_nothing(api, caplog):
    """A defect of the registry is a response without details, which are in the log."""
    api.state = None
    assert Answer(
        500, {"error_code": 500, "message": "unexpected error: see the broker's log"}
    ) == (ask(api, "GET /subjects"))
    assert "cannot handle GET /subjects" in caplog.text
