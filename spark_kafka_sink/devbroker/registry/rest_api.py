"""The REST API of a Schema Registry: what a request does to the state, and what the response says.

Paths, parameters and bodies are those of Confluent's registry (8.x). Here are no sockets: a request
has arrived as a whole, and a changed state is stored before it counts, or has never happened.

A path that begins with `/contexts/{context}` is one within that context: a name of a subject in it
has this context unless it has one of its own.
"""

from __future__ import annotations

import itertools
import json
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote

from spark_kafka_sink.devbroker.registry.registry_errors import RegistryError, RegistryErrorCode
from spark_kafka_sink.devbroker.registry.registry_state import (
    AVRO,
    LATEST,
    Mode,
    Reference,
    RegistryState,
    SchemaRequest,
    SubjectConfig,
)
from spark_kafka_sink.devbroker.registry.schema_compatibility import CompatibilityLevel
from spark_kafka_sink.devbroker.registry.subject_names import (
    Subject,
    in_context,
    parse_subject,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from spark_kafka_sink.devbroker.registry.avro_schema import Json
    from spark_kafka_sink.devbroker.registry.registry_state import SchemaVersion

logger = logging.getLogger(__name__)

#: The types of content, the preferred one first.
MEDIA_TYPES: Final = (
    "application/vnd.schemaregistry.v1+json",
    "application/vnd.schemaregistry+json",
    "application/json",
)
#: What clients send that name no type.
_GENERIC_MEDIA_TYPE: Final = "application/octet-stream"
_ANY_MEDIA_TYPES: Final = frozenset({"*/*", "application/*"})
_MAX_INT: Final = 2**31 - 1
#: The most schemas that a list of all of them has.
_MOST_LISTED_SCHEMAS: Final = 1000
#: Of the texts of these schemas; the rest is for another page.
_MOST_LISTED_LETTERS: Final = 16_000_000
_RULES: Final = {
    "migrationRules": frozenset({"UPGRADE", "DOWNGRADE", "UPDOWN"}),
    "domainRules": frozenset({"WRITE", "READ", "WRITEREAD"}),
    "encodingRules": frozenset({"WRITE", "READ", "WRITEREAD"}),
}
_MOST_LETTERS_OF_RULE: Final = 256
#: What a request for settings may have, apart from what the embedded registry supports.
_UNSUPPORTED_SETTINGS: Final = (
    "alias",
    "aliasForDeks",
    "validateFields",
    "validateRules",
    "compatibilityPolicy",
    "defaultMetadata",
    "overrideMetadata",
    "defaultRuleSet",
    "overrideRuleSet",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestRequest:
    """A request to the Schema Registry as it arrived.

    >>> def without_types(request, context):
    ...     return AnswerStatus(404) if request.segments == ("schemas", "types") else None
    >>> with DevBroker(schema_registry=True) as broker:
    ...     broker.schema_registry.on("GET /...", without_types).fired
    0
    """

    #: The method, in capital letters.
    method: str
    #: The path with the query, as it was sent.
    target: str
    #: The headers by name, in small letters.
    headers: Mapping[str, str]
    #: The body, which may be empty.
    body: bytes = b""

    @property
    def segments(self) -> tuple[str, ...]:
        """The parts of the path, decoded."""
        path = self.target.partition("?")[0]
        return tuple(unquote(part) for part in path.split("/") if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestResponse:
    """A response; its body is text."""

    status: int
    body: bytes
    content_type: str = MEDIA_TYPES[0]


def error_response(error_code: int, message: str, *, status: int | None = None) -> RestResponse:
    """Return the response of an error, whose code begins with its status unless that is given."""
    error = RegistryError(error_code, message)
    body = {"error_code": error_code, "message": message}
    return RestResponse(status=error.status if status is None else status, body=_encoded(body))


class _Call(NamedTuple):
    """A request that a route handles."""

    #: The values for the places of the path, in their order.
    places: tuple[str, ...]
    query: Mapping[str, Sequence[str]]
    body: bytes
    state: RegistryState

    @property
    def subject(self) -> Subject:
        """The subject that the path names first."""
        return parse_subject(self.places[0])

    def flag(self, name: str) -> bool:
        """Return a parameter that is true or false."""
        return self.text(name).lower() == "true"

    def text(self, name: str) -> str:
        """Return a parameter, or nothing."""
        return self.query.get(name, ("",))[0]

    def has(self, name: str) -> bool:
        """Return whether a parameter is given."""
        return name in self.query

    def number(self, name: str, default: int) -> int:
        """Return a parameter that is a number; as in Confluent's, nothing has another one."""
        text = self.text(name)
        return int(text) if _is_int(text) else default if not text else _raise_not_found()

    def page(self, items: Iterable[Any], *, most: int = _MAX_INT) -> list[Any]:
        """Return the items that the parameters `offset` and `limit` select."""
        offset, limit = self.number("offset", 0), self.number("limit", -1)
        if offset < 0:
            raise RegistryError(400, "offset must not be negative")
        return list(items)[offset:][: most if limit < 0 else min(limit, most)]

    def json_object(self) -> dict[str, Json]:
        """Return the body, which must be an object."""
        return _json_object(self.body)


class _Result(NamedTuple):
    """What a route returns: the body of the response, and the state after it."""

    body: Json
    #: None if nothing has changed.
    state: RegistryState | None = None
    #: Whether the body is text rather than JSON.
    is_text: bool = False


class Route(NamedTuple):
    """A method and a path, whose places in braces stand for any part."""

    method: str
    path: tuple[str, ...]
    handler: Callable[[_Call], _Result]

    def places(self, segments: Sequence[str]) -> tuple[str, ...] | None:
        """Return the parts of a path for the places of this one; None if it is another."""
        if len(segments) != len(self.path):
            return None
        pairs = list(zip(self.path, segments, strict=True))
        if any(not _is_place(known) and known != part for known, part in pairs):
            return None
        return tuple(part for known, part in pairs if _is_place(known))


def _is_place(part: str) -> bool:
    return part.startswith("{")


class RestApi:
    """Handles requests one after the other, and owns the state."""

    def __init__(
        self,
        state: RegistryState | None = None,
        store: Callable[[RegistryState], None] | None = None,
    ) -> None:
        """Begin with a state; `store` keeps each new one, and may raise OSError."""
        self.state = RegistryState() if state is None else state
        self._store = store

    def handle(self, request: RestRequest) -> RestResponse:
        """Return the response to a request; errors are responses, too."""
        try:
            content_type = _content_type(request)
            result = self._call(request)
            if result.state is not None and result.state is not self.state:
                self._keep(result.state)
        except RegistryError as error:
            return error_response(error.error_code, error.message)
        except Exception:
            logger.exception("cannot handle %s %s", request.method, request.target)
            return error_response(500, "unexpected error: see the broker's log")
        body = str(result.body).encode() if result.is_text else _encoded(result.body)
        return RestResponse(status=200, body=body, content_type=content_type)

    def _keep(self, state: RegistryState) -> None:
        if self._store is not None:
            try:
                self._store(state)
            except OSError as error:
                logger.warning("cannot store the schemas: %s", error)
                raise RegistryErrorCode.STORE_ERROR.error(
                    f"the change cannot be stored: {error}"
                ) from error
        self.state = state

    def _call(self, request: RestRequest) -> _Result:
        query = _query(request.target)
        segments, query = _within_context(request.segments, query)
        matching = [
            (route, places) for route in ROUTES if (places := route.places(segments)) is not None
        ]
        if not matching:
            _raise_not_found()
        # Routes have places only where no other route has a part of its own.
        for route, places in matching:
            if route.method == request.method:
                return route.handler(_Call(places, query, request.body, self.state))
        raise RegistryError(405, "HTTP 405 Method Not Allowed")


def _encoded(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _raise_not_found() -> Any:
    raise RegistryError(404, "HTTP 404 Not Found")


def _query(target: str) -> dict[str, list[str]]:
    try:
        return parse_qs(target.partition("?")[2], keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise RegistryError(400, "the query has too many parameters") from None


def _content_type(request: RestRequest) -> str:
    """Return the type of the response, after checking that of the request."""
    if request.body:
        sent = request.headers.get("content-type", _GENERIC_MEDIA_TYPE).partition(";")[0]
        if sent.strip().lower() not in {*MEDIA_TYPES, _GENERIC_MEDIA_TYPE}:
            raise RegistryError(415, "HTTP 415 Unsupported Media Type")
    ranges = request.headers.get("accept", "*/*").split(",")
    accepted = {part.partition(";")[0].strip().lower() for part in ranges}
    for media_type in MEDIA_TYPES:
        if media_type in accepted or accepted & _ANY_MEDIA_TYPES:
            return media_type
    raise RegistryError(406, "HTTP 406 Not Acceptable")


def _within_context(
    segments: tuple[str, ...], query: dict[str, list[str]]
) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """Return the path without `/contexts/{context}`, and the names that are in this context."""
    if segments[:1] != ("contexts",) or not segments[2:]:
        return segments, query
    _, context, first, *rest = segments
    if first in {"config", "mode"}:
        return (first, in_context(context, rest[0] if rest else ""), *rest[1:]), query
    for number, part in enumerate([first, *rest]):
        if part == "subjects" and number < len(rest):
            rest[number] = in_context(context, rest[number])
            break
    if (first, *rest[:1]) == ("schemas", "ids"):
        query = {**query, "subject": [in_context(context, query.get("subject", [""])[0])]}
    elif not rest and first in {"schemas", "subjects"}:
        prefixes = query.get("subjectPrefix", [""])
        query = {**query, "subjectPrefix": [in_context(context, prefix) for prefix in prefixes]}
    return (first, *rest), query


# Bodies.


def _json_object(body: bytes) -> dict[str, Json]:
    if not body:
        raise RegistryError(422, "the request needs a body")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        reason = str(error) or "it has too many levels"
        raise RegistryError(400, f"the body is not JSON: {reason}") from None
    if not isinstance(value, dict):
        raise RegistryError(400, "the body must be an object of JSON")
    return value


def _field(value: Mapping[str, Json], name: str, kind: type, default: Json = None) -> Any:
    """Return a field of a body; null counts as missing."""
    found = value.get(name)
    if found is None:
        return default
    if not isinstance(found, kind):
        wanted = {str: "a text", dict: "an object", list: "a list", bool: "true or false"}
        raise RegistryError(400, f"{name} must be {wanted[kind]}")
    return found


def _number(value: Mapping[str, Json], name: str, default: Any) -> Any:
    """Return a field of a body that is a number of a version, or an id."""
    found = value.get(name)
    if found is None:
        return default
    if type(found) is not int or not -1 <= found <= _MAX_INT:
        raise RegistryError(400, f"{name} must be a number from -1 to {_MAX_INT}")
    return found


def _schema_request(value: Mapping[str, Json]) -> SchemaRequest:
    metadata, rule_set = _field(value, "metadata", dict), _field(value, "ruleSet", dict)
    if metadata is not None:
        _check_metadata(metadata)
    if rule_set is not None:
        _check_rule_set(rule_set)
    return SchemaRequest(
        text=_field(value, "schema", str),
        schema_type=_field(value, "schemaType", str, AVRO),
        references=tuple(
            _reference(reference) for reference in _field(value, "references", list, [])
        ),
        metadata=metadata,
        rule_set=rule_set,
        version=_number(value, "version", 0),
        schema_id=_number(value, "id", -1),
    )


def _reference(value: Json) -> Reference:
    if not isinstance(value, dict):
        raise RegistryError(400, "references must be objects")
    name, subject = _field(value, "name", str), _field(value, "subject", str)
    version = _number(value, "version", None)
    if name is None or subject is None or version is None:
        raise RegistryErrorCode.INVALID_SCHEMA.error(
            "Invalid reference: it needs a name, a subject and a version"
        )
    return Reference(name, subject, version)


def _check_metadata(metadata: Mapping[str, Json]) -> None:
    tags = _field(metadata, "tags", dict, {})
    properties = _field(metadata, "properties", dict, {})
    sensitive = _field(metadata, "sensitive", list, [])
    are_texts = (
        *(isinstance(values, list) and all(map(_is_text, values)) for values in tags.values()),
        *map(_is_text, properties.values()),
        *map(_is_text, sensitive),
    )
    if not all(are_texts):
        raise RegistryError(
            400,
            "metadata needs texts as properties and sensitive names, and lists of texts as tags",
        )


def _check_rule_set(rule_set: Mapping[str, Json]) -> None:
    """Raise `RegistryError` for rules that Confluent's registry refuses."""
    _field(rule_set, "enableAt", str)
    names: set[str] = set()
    for kind, modes in _RULES.items():
        for rule in _field(rule_set, kind, list, []):
            if not isinstance(rule, dict):
                raise RegistryError(400, f"{kind} must be objects")
            _check_rule(rule, kind, modes)
            if rule["name"] in names:
                raise RegistryErrorCode.INVALID_RULE_SET.error(
                    f"Found rule with duplicate name '{rule['name']}'"
                )
            names.add(rule["name"])


def _check_rule(rule: Mapping[str, Json], kind: str, modes: frozenset[str]) -> None:
    for name in ("doc", "expr", "onSuccess", "onFailure", "kind"):
        _field(rule, name, str)
    _field(rule, "disabled", bool)
    tags, params = _field(rule, "tags", list, []), _field(rule, "params", dict, {})
    if not all(map(_is_text, (*tags, *params.values()))):
        raise RegistryError(400, "tags and params of a rule must be texts")
    name = _field(rule, "name", str, "")
    if (
        not 0 < len(name) <= _MOST_LETTERS_OF_RULE
        or not (name[0].isalpha() or name[0] == "_")
        or not all(letter.isalnum() or letter in "_-" for letter in name)
    ):
        raise RegistryErrorCode.INVALID_RULE_SET.error(
            "the name of a rule begins with a letter or an underscore, and has letters, digits, "
            "underscores and hyphens only"
        )
    if _field(rule, "type", str) is None:
        raise RegistryErrorCode.INVALID_RULE_SET.error("Missing rule type")
    if _field(rule, "mode", str, "WRITEREAD") not in modes:
        raise RegistryErrorCode.INVALID_RULE_SET.error(
            f"the mode of a rule of {kind} is one of {', '.join(sorted(modes))}"
        )


def _is_text(value: Json) -> bool:
    return isinstance(value, str)


def _is_int(text: str) -> bool:
    digits = text[1:] if text[:1] in {"-", "+"} else text
    return digits.isascii() and digits.isdigit() and abs(int(digits)) <= _MAX_INT


def _version_number(text: str) -> int:
    text = text.strip()
    if text.lower() == "latest":
        return LATEST
    if not _is_int(text) or not (int(text) == LATEST or int(text) > 0):
        raise RegistryErrorCode.INVALID_VERSION.error(text)
    return int(text)


def _id(text: str) -> int:
    return int(text) if _is_int(text) else _raise_not_found()


def _entity(version: SchemaVersion) -> dict[str, Json]:
    """Return a version as most responses have it."""
    return {"subject": version.subject, "version": version.version, "id": version.schema_id} | (
        _content(version)
    )


def _content(version: SchemaVersion) -> dict[str, Json]:
    """Return what a version says apart from where it is registered."""
    content: dict[str, Json] = {
        "guid": version.guid,
        "schemaType": AVRO,
        "schema": version.text,
    }
    if version.references:
        content["references"] = [reference._asdict() for reference in version.references]
    if version.metadata is not None:
        content["metadata"] = version.metadata
    if version.rule_set is not None:
        content["ruleSet"] = version.rule_set
    if version.deleted:
        content["deleted"] = True
    return content


def _formatted(call: _Call, version: SchemaVersion) -> SchemaVersion:
    """Return a version with the text that the parameter `format` asks for."""
    if call.text("format").strip().lower() != "resolved":
        return version
    return replace(version, text=call.state.resolved_text(version))


# Subjects.


def _list_subjects(call: _Call) -> _Result:
    prefix = parse_subject(call.text("subjectPrefix") if call.has("subjectPrefix") else ":*:")
    names = [
        subject.text
        for subject in call.state.subject_names(prefix)
        if _is_listed(call, is_current=bool(call.state.versions(subject)))
    ]
    return _Result(call.page(names))


def _is_listed(call: _Call, *, is_current: bool) -> bool:
    if call.flag("deletedOnly"):
        return not is_current
    return is_current or call.flag("deleted")


def _look_up(call: _Call) -> _Result:
    found = call.state.look_up(
        call.subject,
        _schema_request(call.json_object()),
        normalize=call.flag("normalize"),
        deleted=call.flag("deleted"),
    )
    return _Result(_entity(_formatted(call, found)))


def _delete_subject(call: _Call) -> _Result:
    state, versions = call.state.delete_subject(call.subject, permanent=call.flag("permanent"))
    return _Result(versions, state)


def _latest_with_metadata(call: _Call) -> _Result:
    pairs = zip(call.query.get("key", ()), call.query.get("value", ()), strict=False)
    wanted = dict(pairs).items()
    deleted = call.flag("deleted")
    for version in reversed(call.state.versions(call.subject, deleted=deleted)):
        if (
            version.metadata is not None
            and wanted <= (version.metadata.get("properties") or {}).items()
        ):
            return _Result(_entity(_formatted(call, version)))
    if not call.state.has_subject(call.subject, deleted=deleted):
        raise RegistryErrorCode.SUBJECT_NOT_FOUND.error(call.subject.text)
    raise RegistryErrorCode.SCHEMA_NOT_FOUND.error()


# Versions.


def _list_versions(call: _Call) -> _Result:
    deleted_only, as_negative = call.flag("deletedOnly"), call.flag("deletedAsNegative")
    if not call.state.has_subject(call.subject, deleted=call.flag("deleted") or deleted_only):
        raise RegistryErrorCode.SUBJECT_NOT_FOUND.error(call.subject.text)
    numbers = [
        -version.version if version.deleted and as_negative else version.version
        for version in call.state.versions(call.subject, deleted=True)
        if as_negative or _is_listed(call, is_current=not version.deleted)
    ]
    return _Result(call.page(numbers))


def _version(call: _Call, *, deleted: bool) -> SchemaVersion:
    return call.state.version(call.subject, _version_number(call.places[1]), deleted=deleted)


def _get_version(call: _Call) -> _Result:
    return _Result(_entity(_formatted(call, _version(call, deleted=call.flag("deleted")))))


def _get_version_text(call: _Call) -> _Result:
    version = _formatted(call, _version(call, deleted=call.flag("deleted")))
    return _Result(version.text, is_text=True)


def _get_referencing_ids(call: _Call) -> _Result:
    version = _version(call, deleted=True)
    return _Result(call.page(call.state.referencing_ids(version, deleted=call.flag("deleted"))))


def _register(call: _Call) -> _Result:
    request = _schema_request(call.json_object())
    state, version = call.state.register(call.subject, request, normalize=call.flag("normalize"))
    registered = {"id": version.schema_id, "version": version.version}
    return _Result(registered | _content(_formatted(call, version)), state)


def _delete_version(call: _Call) -> _Result:
    state, version = call.state.delete_version(
        call.subject, _version_number(call.places[1]), permanent=call.flag("permanent")
    )
    return _Result(version, state)


# Ids.


def _by_id(call: _Call) -> SchemaVersion:
    schema_id = _id(call.places[0])
    found = call.state.by_id(schema_id, parse_subject(call.text("subject")))
    if found is None:
        raise RegistryErrorCode.SCHEMA_ID_NOT_FOUND.error(schema_id)
    return _formatted(call, found)


def _get_by_id(call: _Call) -> _Result:
    version = _by_id(call)
    body = _content(version)
    if call.has("subject"):
        body = {"subject": version.subject, "version": version.version} | body
    if call.flag("fetchMaxId"):
        body["maxId"] = call.state.last_ids[parse_subject(version.subject).context]
    return _Result(body)


def _get_text_by_id(call: _Call) -> _Result:
    return _Result(_by_id(call).text, is_text=True)


def _versions_with_id(call: _Call) -> list[SchemaVersion]:
    return call.state.versions_with_id(
        _id(call.places[0]), parse_subject(call.text("subject")), deleted=call.flag("deleted")
    )


def _get_subjects_by_id(call: _Call) -> _Result:
    names = dict.fromkeys(version.subject for version in _versions_with_id(call))
    return _Result(call.page(names))


def _get_versions_by_id(call: _Call) -> _Result:
    found = [
        {"subject": version.subject, "version": version.version}
        for version in _versions_with_id(call)
    ]
    return _Result(call.page(found))


def _with_guid(call: _Call) -> list[SchemaVersion]:
    """Return the first version of each context that has a guid."""
    (guid,) = call.places
    every = (
        version
        for subject in call.state.subject_names(parse_subject(":*:"))
        for version in call.state.versions(subject, deleted=True)
        if version.guid == guid
    )
    return list({parse_subject(version.subject).context: version for version in every}.values())


def _get_by_guid(call: _Call) -> _Result:
    found = _with_guid(call)
    if not found:
        raise RegistryErrorCode.SCHEMA_ID_NOT_FOUND.error(call.places[0])
    return _Result(_content(_formatted(call, found[0])))


def _get_ids_by_guid(call: _Call) -> _Result:
    return _Result(
        [
            {"context": parse_subject(version.subject).context, "id": version.schema_id}
            for version in _with_guid(call)
        ]
    )


def _list_schemas(call: _Call) -> _Result:
    prefix = parse_subject(call.text("subjectPrefix"))
    found: list[SchemaVersion] = []
    for subject in call.state.subject_names(prefix):
        versions = call.state.versions(subject, deleted=call.flag("deleted"))
        found += versions[-1:] if call.flag("latestOnly") else versions
    listed = call.page(found, most=_MOST_LISTED_SCHEMAS)
    letters = itertools.accumulate(len(version.text) for version in listed)
    fitting = sum(size <= _MOST_LISTED_LETTERS for size in letters)
    return _Result([_entity(version) for version in listed[: max(1, fitting)]])


# Compatibility.


def _check_version(call: _Call) -> _Result:
    number = _version_number(call.places[1])
    current = call.state.versions(call.subject)
    earlier = [version for version in current if number in {version.version, LATEST}][-1:]
    if not earlier and number != LATEST:
        raise RegistryErrorCode.VERSION_NOT_FOUND.error(number)
    return _checked(call, earlier)


def _check_all_versions(call: _Call) -> _Result:
    return _checked(call, call.state.versions(call.subject))


def _checked(call: _Call, earlier: Sequence[SchemaVersion]) -> _Result:
    verbose = call.flag("verbose")
    try:
        messages = call.state.compatibility_messages(
            call.subject,
            _schema_request(call.json_object()),
            earlier,
            normalize=call.flag("normalize"),
        )
    except RegistryError as error:
        if not verbose or error.error_code != RegistryErrorCode.INVALID_SCHEMA.value[0]:
            raise
        messages = [error.message]
    body: dict[str, Json] = {"is_compatible": not messages}
    return _Result(body | ({"messages": messages} if verbose else {}))


# Settings.


def _settings_subject(call: _Call) -> Subject:
    return call.subject if call.places else parse_subject("")


def _get_config(call: _Call) -> _Result:
    subject = _settings_subject(call)
    if call.flag("defaultToGlobal"):
        config: SubjectConfig | None = call.state.config_in_scope(subject)
    else:
        config = call.state.config(subject)
    if config is None:
        raise RegistryErrorCode.COMPATIBILITY_NOT_CONFIGURED.error(subject.text)
    return _Result(_config_body(config, "compatibilityLevel"))


def _put_config(call: _Call) -> _Result:
    subject = _settings_subject(call)
    value = call.json_object()
    unsupported = [name for name in _UNSUPPORTED_SETTINGS if value.get(name) is not None]
    if unsupported:
        raise RegistryErrorCode.OPERATION_NOT_PERMITTED.error(
            f"the embedded registry does not support the setting {unsupported[0]}"
        )
    changes: dict[str, Any] = {}
    if "compatibility" in value:
        changes["compatibility_level"] = _level(value["compatibility"])
    for name, key, kind in (
        ("compatibilityGroup", "compatibility_group", str),
        ("normalize", "normalize", bool),
        ("validateNewSchemas", "validate_new_schemas", bool),
    ):
        if name in value:
            changes[key] = _field(value, name, kind)
    config = replace(call.state.own_config(subject) or SubjectConfig(), **changes)
    return _Result(_config_body(config, "compatibility"), call.state.with_config(subject, config))


def _delete_config(call: _Call) -> _Result:
    subject = _settings_subject(call)
    config = call.state.config(subject)
    if config is None:
        raise RegistryErrorCode.SUBJECT_NOT_FOUND.error(subject.text)
    body = _config_body(config, "compatibilityLevel")
    return _Result(body, call.state.with_config(subject, None))


def _level(value: Json) -> CompatibilityLevel | None:
    if value is None:
        return None
    try:
        return CompatibilityLevel(str(value).upper())
    except ValueError:
        raise RegistryErrorCode.INVALID_COMPATIBILITY_LEVEL.error() from None


def _config_body(config: SubjectConfig, level: str) -> dict[str, Json]:
    body = {
        "normalize": config.normalize,
        "validateNewSchemas": config.validate_new_schemas,
        level: config.compatibility_level,
        "compatibilityGroup": config.compatibility_group,
    }
    return {name: value for name, value in body.items() if value is not None}


def _get_mode(call: _Call) -> _Result:
    subject = _settings_subject(call)
    if call.flag("defaultToGlobal"):
        mode: Mode | None = call.state.mode_in_scope(subject)
    else:
        mode = call.state.mode(subject)
    if mode is None:
        raise RegistryErrorCode.MODE_NOT_CONFIGURED.error(subject.text)
    return _Result({"mode": mode})


def _put_mode(call: _Call) -> _Result:
    value = call.json_object()
    text = _field(value, "mode", str)
    try:
        mode = None if text is None else Mode(text.upper())
    except ValueError:
        raise RegistryErrorCode.INVALID_MODE.error() from None
    subject = _settings_subject(call)
    if mode is Mode.FORWARD and not subject.is_global:
        raise RegistryError(
            RegistryErrorCode.INVALID_MODE.value[0], "Forward mode only supported on global level"
        )
    state = call.state.with_mode(subject, mode, force=call.flag("force"))
    return _Result({} if text is None else {"mode": text}, state)


def _delete_mode(call: _Call) -> _Result:
    subject = _settings_subject(call)
    mode = call.state.mode(subject)
    if mode is None:
        raise RegistryErrorCode.SUBJECT_NOT_FOUND.error(subject.text)
    return _Result({"mode": mode}, call.state.with_mode(subject, None, force=False))


# The rest.


def _root(_: _Call) -> _Result:
    return _Result({})


def _list_types(_: _Call) -> _Result:
    return _Result([AVRO])


def _list_contexts(call: _Call) -> _Result:
    prefix = call.text("contextPrefix")
    return _Result(call.page([name for name in call.state.contexts() if name.startswith(prefix)]))


def _cluster_id(_: _Call) -> _Result:
    clusters = {"kafka-cluster": "devbroker", "schema-registry-cluster": "schema-registry"}
    return _Result({"scope": {"path": [], "clusters": clusters}, "id": ""})


def _route(line: str, handler: Callable[[_Call], _Result]) -> Route:
    method, _, path = line.partition(" ")
    return Route(method, tuple(part for part in path.split("/") if part), handler)


#: Paths with a word where others have a place come first.
ROUTES: Final = tuple(
    _route(line, handler)
    for line, handler in (
        ("GET /", _root),
        ("GET /subjects", _list_subjects),
        ("POST /subjects/{subject}", _look_up),
        ("DELETE /subjects/{subject}", _delete_subject),
        ("GET /subjects/{subject}/metadata", _latest_with_metadata),
        ("GET /subjects/{subject}/versions", _list_versions),
        ("POST /subjects/{subject}/versions", _register),
        ("GET /subjects/{subject}/versions/{version}", _get_version),
        ("DELETE /subjects/{subject}/versions/{version}", _delete_version),
        ("GET /subjects/{subject}/versions/{version}/schema", _get_version_text),
        ("GET /subjects/{subject}/versions/{version}/referencedby", _get_referencing_ids),
        ("GET /schemas", _list_schemas),
        ("GET /schemas/types", _list_types),
        ("GET /schemas/ids/{id}", _get_by_id),
        ("GET /schemas/ids/{id}/schema", _get_text_by_id),
        ("GET /schemas/ids/{id}/subjects", _get_subjects_by_id),
        ("GET /schemas/ids/{id}/versions", _get_versions_by_id),
        ("GET /schemas/guids/{guid}", _get_by_guid),
        ("GET /schemas/guids/{guid}/ids", _get_ids_by_guid),
        ("POST /compatibility/subjects/{subject}/versions", _check_all_versions),
        ("POST /compatibility/subjects/{subject}/versions/{version}", _check_version),
        ("GET /config", _get_config),
        ("PUT /config", _put_config),
        ("DELETE /config", _delete_config),
        ("GET /config/{subject}", _get_config),
        ("PUT /config/{subject}", _put_config),
        ("DELETE /config/{subject}", _delete_config),
        ("GET /mode", _get_mode),
        ("PUT /mode", _put_mode),
        ("DELETE /mode", _delete_mode),
        ("GET /mode/{subject}", _get_mode),
        ("PUT /mode/{subject}", _put_mode),
        ("DELETE /mode/{subject}", _delete_mode),
        ("GET /contexts", _list_contexts),
        ("GET /v1/metadata/id", _cluster_id),
    )
)
