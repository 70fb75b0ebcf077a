"""Responses of a registry: which are refused, and which schemas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import SchemaRegistryError
from spark_kafka_sink.registry.schemas import (
    MAX_REFERENCES,
    Direction,
    Reader,
    RegisteredSchema,
    Rule,
    SchemaReference,
    context_of,
    in_context_of,
)

WHAT = "GET http://registry/a"
GOOD = {"id": 7, "version": 2, "schema": '"int"'}


def read(value):
    return Reader(value, WHAT).schema(subject="s")


def problem(value):
    """Return why a response is refused."""
    with pytest.raises(SchemaRegistryError) as caught:
        read(value)
    message = str(caught.value)
    assert message.startswith(f"{WHAT}: ")
    assert len(message) < 600
    return message.removeprefix(f"{WHAT}: ").removeprefix("the response is malformed: ")


def test_a_response_becomes_a_schema():
    """Fields that are not needed are ignored."""
    value = {
        **GOOD,
        "schemaType": "AVRO",
        "references": [{"name": "a.B", "subject": "b", "version": 3}],
        "metadata": {"properties": {}},
        "guid": "a",
    }
    expected = RegisteredSchema(
        id=7, text='"int"', subject="s", version=2, references=(SchemaReference("a.B", "b", 3),)
    )
    assert expected == read(value)
    assert "schema 7 (subject 's' version 2)" == str(expected)
    assert "schema 7" == str(RegisteredSchema(id=7, text=""))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "it is missing, not an object"),
        ([], "it is an array, not an object"),
        ("a", "it is a string, not an object"),
        ({**GOOD, "schema": None}, "schema is missing, not a string"),
        ({**GOOD, "schema": {"type": "int"}}, "schema is an object, not a string"),
        ({**GOOD, "schema": "\ud800"}, "schema has characters that UTF-8 does not have"),
        ({**GOOD, "id": None}, "id is missing, not an integer"),
        ({**GOOD, "id": True}, "id is a boolean, not an integer"),
        ({**GOOD, "id": 7.0}, "id is a number, not an integer"),
        ({**GOOD, "id": -1}, "id must be between 0 and 2147483647"),
        ({**GOOD, "id": 2**31}, "id must be between 0 and 2147483647"),
        ({**GOOD, "id": 10**4000}, "id must be between 0 and 2147483647"),
        ({**GOOD, "version": 0}, "version must be between 1 and 2147483647"),
        ({**GOOD, "references": {}}, "references is an object, not an array"),
        ({**GOOD, "references": ["a"]}, "references[0] is a string, not an object"),
        ({**GOOD, "references": [{}]}, "references[0].subject is missing, not a string"),
        (
            {**GOOD, "references": [{"subject": "a\nb", "version": 1, "name": "a"}]},
            "references[0].subject is not the name of a subject",
        ),
        (
            {**GOOD, "references": [{"subject": "a", "version": 0, "name": "a"}]},
            "references[0].version is 0, which no version is",
        ),
        (
            {**GOOD, "references": [{"subject": "a", "version": 1, "name": 5}]},
            "references[0].name is a number, not a string",
        ),
        (
            {**GOOD, "references": [{}] * (MAX_REFERENCES + 1)},
            "references has 1001 items, more than 1000",
        ),
        ({**GOOD, "ruleSet": []}, "ruleSet is an array, not an object"),
        ({**GOOD, "ruleSet": {"x" * 5000: 5}}, "x" * 199),
        ({**GOOD, "ruleSet": {"domainRules": [5]}}, "domainRules[0] is a number, not an object"),
    ],
)
def test_a_malformed_response_is_refused(value, reason):
    """The error says which field is wrong, and how."""
    assert problem(value).startswith(reason)


@pytest.mark.parametrize("kind", ["PROTOBUF", "JSON", "avro", "X" * 5000, 5, {}])
def test_another_type_of_schema_is_refused_by_name(kind):
    """An Avro schema need not name its type."""
    shown = kind[:100] if isinstance(kind, str) else "a number" if kind else "an object"
    assert problem({**GOOD, "schemaType": kind}).startswith(f"the schema is of the type {shown}")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "subject", "version", "mode", "domainRules", "disabled"]),
            inner,
        )
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.sampled_from(["id", "version", "schema", "schemaType", "references", "ruleSet"]), JSON
    )
    | JSON
)
def test_any_json_is_a_schema_or_refused(value):
    """No value raises anything but the error of a registry."""
    for given_value in (value, {**GOOD, **value} if isinstance(value, dict) else value):
        try:
            schema = read(given_value)
        except SchemaRegistryError:
            continue
        assert (True, True) == (isinstance(schema.text, str), 0 <= schema.id < 2**31)


@pytest.mark.parametrize("value", [None, [], {}, {"is_compatible": "yes"}, {"is_compatible": 1}])
def test_the_result_of_a_compatibility_test_is_a_boolean(value):
    """Anything else is not taken for a yes."""
    with pytest.raises(SchemaRegistryError, match="malformed"):
        Reader(value, WHAT).compatibility()


# --- rules


def with_rule(name="domainRules", **rule):
    return read({**GOOD, "ruleSet": {name: [{"name": "encryptPII", "type": "ENCRYPT", **rule}]}})


def refused(schema):
    """Return the directions in which a schema is refused."""
    directions = []
    for direction in Direction:
        try:
            schema.check_rules(direction)
        except SchemaRegistryError as error:
            if f"cannot be used to {direction}: its rule 'encryptPII' (" in str(error):
                directions.append(direction)
    return directions


BOTH = [Direction.READ, Direction.WRITE]


@pytest.mark.parametrize(
    ("rule", "directions"),
    [
        ({"mode": "WRITE"}, [Direction.WRITE]),
        ({"mode": "READ"}, [Direction.READ]),
        ({"mode": "WRITEREAD"}, BOTH),
        ({"mode": "UPGRADE"}, [Direction.READ]),
        ({"mode": "DOWNGRADE"}, [Direction.READ]),
        ({"mode": "UPDOWN"}, [Direction.READ]),
        ({"mode": "READ", "disabled": True}, []),
        ({"mode": "READ", "disabled": False}, [Direction.READ]),
        ({"mode": "READ", "disabled": "true"}, [Direction.READ]),
        ({"mode": "SIDEWAYS"}, BOTH),
        ({"mode": None}, BOTH),
        ({}, BOTH),
    ],
)
@pytest.mark.parametrize("name", ["domainRules", "migrationRules", "encodingRules", "newRules"])
def test_a_rule_refuses_the_direction_that_it_applies_to(name, rule, directions):
    """It is not ignored, whatever the list is called: a rule may encrypt what is written."""
    assert directions == refused(with_rule(name, **rule))


def test_the_error_names_schema_and_rule():
    """It says what to do."""
    with pytest.raises(SchemaRegistryError) as caught:
        with_rule(mode="WRITEREAD").check_rules(Direction.WRITE)
    assert (
        "schema 7 (subject 's' version 2) cannot be used to write: its rule 'encryptPII' "
        "(WRITEREAD ENCRYPT) is not supported and must not be ignored; use a schema without it, "
        "or disable the rule in the registry"
    ) == str(caught.value)


@pytest.mark.parametrize("rules", [None, {}, {"domainRules": None}, {"domainRules": []}])
def test_a_schema_without_rules_can_be_used(rules):
    """An empty set of rules changes nothing."""
    assert [] == refused(read({**GOOD, "ruleSet": rules}))


def test_the_texts_of_a_rule_are_kept_as_they_are():
    """What is not a text is none."""
    rule = {"name": 5, "mode": ["READ"]}
    assert (Rule("", "", ""),) == read({**GOOD, "ruleSet": {"domainRules": [rule]}}).rules


# --- contexts


@pytest.mark.parametrize(
    ("subject", "context"),
    [(None, "."), ("a", "."), (":.:a", "."), (":.team:a", ".team"), (":a", "."), (":a:b", ".")],
)
def test_a_subject_names_its_context(subject, context):
    """Without one, it is in the default context."""
    assert context == context_of(subject)


@pytest.mark.parametrize(
    ("subject", "parent", "expected"),
    [
        ("b", None, "b"),
        ("b", "a", "b"),
        ("b", ":.team:a", ":.team:b"),
        (":.other:b", ":.team:a", ":.other:b"),
        (":.:b", ":.team:a", ":.:b"),
    ],
)
def test_a_reference_stays_in_its_context(subject, parent, expected):
    """Unless it names one itself."""
    assert expected == in_context_of(subject, parent)
