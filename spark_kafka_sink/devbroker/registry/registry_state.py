"""The state of a Schema Registry: subjects, their versions, ids, compatibility levels and modes.

It is a value: what changes it returns another state, so that a change which cannot be stored has
never happened. No clock, no files, no HTTP. The rules are Confluent's:

- The same schema, references, metadata and rules have one id in a context, whatever the subject.
- Versions are numbers that grow within a subject; deleting is soft at first, and then permanent.
- A schema without metadata or rules of its own has those of the version before it.
- A level or mode is that of the subject, else of its context, else the global one.
"""

from __future__ import annotations

import enum
import hashlib
import json
import struct
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink.devbroker.registry.avro_schema import InvalidSchemaError, parse_schemas
from spark_kafka_sink.devbroker.registry.avro_text import canonical_text, fingerprint, normalized
from spark_kafka_sink.devbroker.registry.registry_errors import RegistryErrorCode
from spark_kafka_sink.devbroker.registry.schema_compatibility import (
    CompatibilityLevel,
    EarlierSchema,
    compatibility_messages,
)
from spark_kafka_sink.devbroker.registry.subject_names import (
    ANY_CONTEXT,
    DEFAULT_CONTEXT,
    GLOBAL_SETTINGS,
    Subject,
    is_valid,
    parse_subject,
    relative_to,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spark_kafka_sink.devbroker.registry.avro_schema import AvroType, Json

#: The supported type of schemas.
AVRO: Final = "AVRO"
#: Stands for the latest version.
LATEST: Final = -1
#: As with Kafka's default `max.message.bytes`, which limits it there.
MOST_BYTES_OF_SCHEMA: Final = 1_000_000
#: References of references included.
_MOST_REFERENCES: Final = 1000
_MOST_REFERENCE_LEVELS: Final = 100
#: Of the texts of all references.
_MOST_REFERENCED_LETTERS: Final = 4 * MOST_BYTES_OF_SCHEMA
_CONFLUENT_VERSION: Final = "confluent:version"
#: The key of the level and mode of the default context.
_DEFAULT_SETTINGS: Final = ""


class Mode(enum.StrEnum):
    """What may be done with a subject."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    IMPORT = "IMPORT"
    FORWARD = "FORWARD"

    @property
    def is_read_only(self) -> bool:
        """Whether nothing may be changed."""
        return self in {Mode.READONLY, Mode.READONLY_OVERRIDE}

    @property
    def takes_ids(self) -> bool:
        """Whether schemas are registered with ids of their own, and unchecked."""
        return self in {Mode.IMPORT, Mode.FORWARD}


class Reference(NamedTuple):
    """A schema that another one uses: its name there, and where it is registered."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRequest:
    """A schema that a client sends, to register it, to look it up or to check it."""

    text: str | None = None
    schema_type: str = AVRO
    references: tuple[Reference, ...] = ()
    metadata: Json = None
    rule_set: Json = None
    #: 0 for the next one.
    version: int = 0
    #: -1 for the next one; others only in the mode IMPORT.
    schema_id: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    """A registered version of a subject."""

    subject: str
    version: int
    schema_id: int
    #: The canonical text.
    text: str
    references: tuple[Reference, ...] = ()
    #: As it was registered, or None.
    metadata: Json = None
    rule_set: Json = None
    deleted: bool = False
    #: See `avro_text.fingerprint`.
    fingerprint: bytes = b""

    @property
    def content(self) -> tuple[object, ...]:
        """What schemas that share an id have in common."""
        return (
            self.text,
            self.references,
            _metadata_key(self.metadata),
            json.dumps(self.rule_set, sort_keys=True),
        )

    @property
    def guid(self) -> str:
        """The id that it has in every registry: Confluent's MD5 of its content."""
        digest = hashlib.md5(usedforsecurity=False)
        for part in _hashed_parts(self):
            digest.update(part)
        return str(uuid.UUID(bytes=digest.digest()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectConfig:
    """The settings of a subject, a context or all of them; None where there is none."""

    compatibility_level: CompatibilityLevel | None = None
    #: The property of the metadata by whose value schemas are compared only with each other.
    compatibility_group: str | None = None
    normalize: bool | None = None
    #: Whether names and defaults of new schemas are checked.
    validate_new_schemas: bool | None = None


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A schema that was parsed with what it refers to."""

    schema: AvroType
    #: The canonical text, or the normalized one.
    text: str
    #: With numbers in place of `LATEST`.
    references: tuple[Reference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryState:
    """All that a registry knows."""

    #: By the text of the subject's name, and by version, in ascending order.
    subjects: Mapping[str, Mapping[int, SchemaVersion]] = field(default_factory=dict)
    configs: Mapping[str, SubjectConfig] = field(default_factory=dict)
    modes: Mapping[str, Mode] = field(default_factory=dict)
    #: The largest id that was assigned in each context.
    last_ids: Mapping[str, int] = field(default_factory=dict)

    # Queries.

    def versions(self, subject: Subject, *, deleted: bool = False) -> list[SchemaVersion]:
        """Return the versions of a subject, in ascending order; with `deleted` all of them."""
        known = self.subjects.get(subject.text, {}).values()
        return [version for version in known if deleted or not version.deleted]

    def has_subject(self, subject: Subject, *, deleted: bool = False) -> bool:
        """Return whether a subject has a version; a context has one if a subject of it does."""
        if subject.name:
            return bool(self.versions(subject, deleted=deleted))
        return any(self._all(subject.context, deleted=deleted))

    def subject_names(self, prefix: Subject) -> list[Subject]:
        """Return the subjects whose names begin with one, sorted, deleted ones included."""
        return [
            subject
            for subject in map(parse_subject, sorted(self.subjects))
            if prefix.context in {ANY_CONTEXT, subject.context}
            and subject.name.startswith(prefix.name)
        ]

    def contexts(self) -> list[str]:
        """Return all contexts, the default one first."""
        known = {parse_subject(name).context for name in self.subjects} | self.last_ids.keys()
        return [DEFAULT_CONTEXT, *sorted(known - {DEFAULT_CONTEXT})]

    def version(self, subject: Subject, number: int, *, deleted: bool = False) -> SchemaVersion:
        """Return a version; `LATEST` is never a deleted one.

        A name without a context is also looked for in the other contexts. Raises `RegistryError`.
        """
        for candidate in self._candidates(subject):
            found = self._find(candidate, number, deleted=deleted)
            if found is not None:
                return found
        if not self.has_subject(subject, deleted=deleted):
            raise RegistryErrorCode.SUBJECT_NOT_FOUND.error(subject.text)
        raise RegistryErrorCode.VERSION_NOT_FOUND.error(number)

    def by_id(self, schema_id: int, subject: Subject) -> SchemaVersion | None:
        """Return a version with an id, deleted or not.

        That of the subject, if it has one with this id, else that of any subject of its context. A
        name without a context is also looked for in the other contexts.
        """
        if subject.name:
            for candidate in self._candidates(subject):
                for version in reversed(self.versions(candidate, deleted=True)):
                    if version.schema_id == schema_id:
                        return version
            if subject.context != DEFAULT_CONTEXT:
                return None
        return next(
            (
                version
                for version in self._all(subject.context, deleted=True)
                if version.schema_id == schema_id
            ),
            None,
        )

    def versions_with_id(
        self, schema_id: int, subject: Subject, *, deleted: bool
    ) -> list[SchemaVersion]:
        """Return the versions of all subjects that share an id in the context of a subject.

        Raises `RegistryError` if there never was one.
        """
        found = self.by_id(schema_id, subject)
        if found is None:
            raise RegistryErrorCode.SCHEMA_NOT_FOUND.error()
        context = parse_subject(found.subject).context
        return [
            version
            for version in self._all(context, deleted=deleted)
            if version.schema_id == schema_id
        ]

    def referencing_ids(self, version: SchemaVersion, *, deleted: bool) -> list[int]:
        """Return the ids of the schemas that refer to a version, sorted."""
        return sorted({found.schema_id for found in self._referencing(version, deleted=deleted)})

    def resolved_text(self, version: SchemaVersion) -> str:
        """Return the text of a version with the types that its references define."""
        return canonical_text(self._earlier(version).schema)

    def with_fingerprint(self, version: SchemaVersion) -> SchemaVersion:
        """Return a version with its fingerprint. Raises `RegistryError` for an invalid schema."""
        return replace(version, fingerprint=fingerprint(self._earlier(version).schema))

    def own_config(self, subject: Subject) -> SubjectConfig | None:
        """Return the settings that were set for a subject or a context, without any default."""
        return self.configs.get(_settings_key(subject))

    def config(self, subject: Subject) -> SubjectConfig | None:
        """Return a subject's own settings, or those of a context; the default context has some."""
        found = self.configs.get(_settings_key(subject))
        if found is None and (subject.is_default_context or subject.is_global):
            found = SubjectConfig()
        return None if found is None else _with_level(found)

    def config_in_scope(self, subject: Subject) -> SubjectConfig:
        """Return the settings that apply to a subject."""
        own = None if subject.is_default_context else self.configs.get(_settings_key(subject))
        if own is None:
            keys = (subject.context_text, GLOBAL_SETTINGS)
            found = (self.configs[key] for key in keys if key in self.configs)
            return _with_level(next(found, SubjectConfig()))
        shared = self.configs.get(_DEFAULT_SETTINGS, SubjectConfig())
        return replace(
            _with_level(own),
            compatibility_group=own.compatibility_group or shared.compatibility_group,
            normalize=shared.normalize if own.normalize is None else own.normalize,
            validate_new_schemas=shared.validate_new_schemas
            if own.validate_new_schemas is None
            else own.validate_new_schemas,
        )

    def mode(self, subject: Subject) -> Mode | None:
        """Return a subject's own mode, or that of a context; the default context has one."""
        found = self.modes.get(_settings_key(subject))
        if found is None and (subject.is_default_context or subject.is_global):
            return Mode.READWRITE
        return found

    def mode_in_scope(self, subject: Subject) -> Mode:
        """Return the mode that applies to a subject."""
        keys = (_settings_key(subject), subject.context_text, GLOBAL_SETTINGS)
        return next((self.modes[key] for key in keys if key in self.modes), Mode.READWRITE)

    # Schemas.

    def look_up(
        self, subject: Subject, request: SchemaRequest, *, normalize: bool, deleted: bool
    ) -> SchemaVersion:
        """Return the version of a subject that has a schema. Raises `RegistryError`."""
        for candidate in self._candidates(subject):
            found = self._look_up(candidate, request, normalize=normalize, deleted=deleted)
            if found is not None:
                return found
        if not self.has_subject(subject, deleted=deleted):
            raise RegistryErrorCode.SUBJECT_NOT_FOUND.error(subject.text)
        raise RegistryErrorCode.SCHEMA_NOT_FOUND.error()

    def compatibility_messages(
        self,
        subject: Subject,
        request: SchemaRequest,
        earlier: Sequence[SchemaVersion],
        *,
        normalize: bool,
    ) -> list[str]:
        """Return why a schema is incompatible with some versions; nothing if it is not.

        Raises `RegistryError` for an invalid schema.
        """
        config = self.config_in_scope(subject)
        normalize = normalize or config.normalize is True
        strict = config.validate_new_schemas is not False
        parsed = self._parse(subject, request, normalize=normalize, strict=strict)
        return self._incompatible(config, parsed, request.metadata, earlier)

    def register(
        self, subject: Subject, request: SchemaRequest, *, normalize: bool
    ) -> tuple[RegistryState, SchemaVersion]:
        """Register a schema; return the new state and the version, which may be an earlier one.

        Raises `RegistryError`.
        """
        if not is_valid(subject):
            raise RegistryErrorCode.INVALID_SUBJECT.error(subject.text)
        mode = self.mode_in_scope(subject)
        self._check_may_register(subject, mode, request.schema_id)
        config = self.config_in_scope(subject)
        known = self.versions(subject, deleted=True)
        current = [version for version in known if not version.deleted]
        next_version = known[-1].version + 1 if known else 1
        if not mode.takes_ids:
            request = _with_inherited(request, current[-1] if current else None, next_version)
        strict = request.schema_id < 0 and config.validate_new_schemas is not False
        normalize = (normalize or config.normalize is True) and not mode.takes_ids
        parsed = self._parse(subject, request, normalize=normalize, strict=strict)
        new = SchemaVersion(
            subject=subject.text,
            version=request.version if request.version > 0 else next_version,
            schema_id=request.schema_id,
            text=parsed.text,
            references=parsed.references,
            metadata=request.metadata,
            rule_set=request.rule_set,
            fingerprint=fingerprint(parsed.schema),
        )
        if request.version == 0 and (found := self._registered(new, current)) is not None:
            return self, found
        if not mode.takes_ids:
            messages = self._incompatible(config, parsed, new.metadata, current)
            if messages:
                raise RegistryErrorCode.INCOMPATIBLE_SCHEMA.error(subject.text, ", ".join(messages))
            if new.version != next_version:
                raise RegistryErrorCode.INVALID_SCHEMA.error(
                    "Version is not one more than previous version"
                )
        return self._with_new(subject, new)

    def _with_new(
        self, subject: Subject, new: SchemaVersion
    ) -> tuple[RegistryState, SchemaVersion]:
        last_id = self.last_ids.get(subject.context, 0)
        schema_id = new.schema_id
        if schema_id < 0:
            shared = self._with_content(subject.context, new)
            schema_id = last_id + 1 if shared is None else shared.schema_id
        else:
            self._check_id(subject, schema_id, new)
        new = replace(new, schema_id=schema_id)
        versions = {
            number: version
            for number, version in self.subjects.get(subject.text, {}).items()
            # A deleted version of the same schema gives way to the new one.
            if not (version.deleted and version.schema_id == schema_id)
            or any(self._referencing(version, deleted=True))
        }
        versions[new.version] = new
        state = replace(
            self,
            subjects={**self.subjects, subject.text: dict(sorted(versions.items()))},
            last_ids={**self.last_ids, subject.context: max(last_id, schema_id)},
        )
        return state, new

    # Deleting.

    def delete_version(
        self, subject: Subject, number: int, *, permanent: bool
    ) -> tuple[RegistryState, int]:
        """Delete a version; return the new state and its number. Raises `RegistryError`."""
        found = self._find(subject, number, deleted=True)
        if found is not None and found.deleted and not permanent:
            raise RegistryErrorCode.VERSION_SOFT_DELETED.error(subject.text, number)
        if found is None:
            if not self.has_subject(subject, deleted=True):
                raise RegistryErrorCode.SUBJECT_NOT_FOUND.error(subject.text)
            raise RegistryErrorCode.VERSION_NOT_FOUND.error(number)
        self._check_writable(subject)
        if any(self._referencing(found, deleted=permanent)):
            raise RegistryErrorCode.REFERENCE_EXISTS.error(subject.text, found.version)
        if permanent and not found.deleted:
            raise RegistryErrorCode.VERSION_NOT_SOFT_DELETED.error(subject.text, found.version)
        return self._without(subject, [found], permanent=permanent), found.version

    def delete_subject(
        self, subject: Subject, *, permanent: bool
    ) -> tuple[RegistryState, list[int]]:
        """Delete all versions of a subject; return the new state and their numbers.

        Raises `RegistryError`.
        """
        self._check_writable(subject)
        if not self.has_subject(subject, deleted=True):
            raise RegistryErrorCode.SUBJECT_NOT_FOUND.error(subject.text)
        doomed = self.versions(subject, deleted=permanent)
        if not doomed:
            raise RegistryErrorCode.SUBJECT_SOFT_DELETED.error(subject.text)
        for version in doomed:
            referencing = self._referencing(version, deleted=permanent)
            if any(found.subject != subject.text for found in referencing):
                raise RegistryErrorCode.REFERENCE_EXISTS.error(subject.text, version.version)
            if permanent and not version.deleted:
                raise RegistryErrorCode.SUBJECT_NOT_SOFT_DELETED.error(subject.text)
        state = self._without(subject, doomed, permanent=permanent)
        return state, [version.version for version in doomed]

    def _without(
        self, subject: Subject, doomed: Iterable[SchemaVersion], *, permanent: bool
    ) -> RegistryState:
        versions = dict(self.subjects[subject.text])
        for version in doomed:
            if permanent:
                del versions[version.version]
            else:
                versions[version.version] = replace(version, deleted=True)
        subjects = {**self.subjects, subject.text: versions}
        if versions:
            return replace(self, subjects=subjects)
        del subjects[subject.text]
        return replace(
            self,
            subjects=subjects,
            configs=_without_key(self.configs, subject.text),
            modes=_without_key(self.modes, subject.text),
        )

    # Settings.

    def with_config(self, subject: Subject, config: SubjectConfig | None) -> RegistryState:
        """Return the state with other settings of a subject or a context; None for none.

        Raises `RegistryError`.
        """
        self._check_settings(subject)
        self._check_writable(subject)
        key = _settings_key(subject)
        configs = _without_key(self.configs, key)
        return replace(self, configs=configs if config is None else {**configs, key: config})

    def with_mode(self, subject: Subject, mode: Mode | None, *, force: bool) -> RegistryState:
        """Return the state with another mode of a subject or a context; None for none.

        IMPORT needs a subject without versions, unless it is forced. Raises `RegistryError`.
        """
        self._check_settings(subject)
        key = _settings_key(subject)
        modes = _without_key(self.modes, key)
        subjects = self.subjects
        begins_import = mode is Mode.IMPORT and self.mode_in_scope(subject) is not Mode.IMPORT
        if begins_import and not force:
            matching = (
                self.subject_names(
                    Subject(ANY_CONTEXT if subject.is_global else subject.context, "")
                )
                if not subject.name
                else [subject]
            )
            if any(self.versions(candidate) for candidate in matching):
                raise RegistryErrorCode.OPERATION_NOT_PERMITTED.error(
                    "Cannot import since found existing subjects"
                )
            gone = {candidate.text for candidate in matching}
            subjects = {name: known for name, known in subjects.items() if name not in gone}
        return replace(
            self, subjects=subjects, modes=modes if mode is None else {**modes, key: mode}
        )

    # Parts.

    def _candidates(self, subject: Subject) -> Iterator[Subject]:
        """Yield a subject, and then those of the same name in other contexts if it has none."""
        yield subject
        if subject.context == DEFAULT_CONTEXT and subject.name:
            for context in self.contexts()[1:]:
                yield Subject(context, subject.name)

    def _find(self, subject: Subject, number: int, *, deleted: bool) -> SchemaVersion | None:
        if number == LATEST:
            current = self.versions(subject)
            return current[-1] if current else None
        found = self.subjects.get(subject.text, {}).get(number)
        return None if found is None or (found.deleted and not deleted) else found

    def _all(self, context: str, *, deleted: bool) -> Iterator[SchemaVersion]:
        for name in sorted(self.subjects):
            subject = parse_subject(name)
            if context in {ANY_CONTEXT, subject.context}:
                yield from self.versions(subject, deleted=deleted)

    def _referencing(self, version: SchemaVersion, *, deleted: bool) -> Iterator[SchemaVersion]:
        for found in self._all(ANY_CONTEXT, deleted=deleted):
            parent = parse_subject(found.subject)
            if any(
                reference.version == version.version
                and relative_to(parent, reference.subject).text == version.subject
                for reference in found.references
            ):
                yield found

    def _with_content(self, context: str, new: SchemaVersion) -> SchemaVersion | None:
        """Return a version of any subject of a context that has the same content."""
        content = new.content
        return next(
            (
                version
                for version in self._all(context, deleted=True)
                if version.fingerprint == new.fingerprint and version.content == content
            ),
            None,
        )

    def _registered(
        self, new: SchemaVersion, current: Sequence[SchemaVersion]
    ) -> SchemaVersion | None:
        """Return the version that a schema has already, if any: exactly it, or what means it."""
        content = new.content
        exact = (version for version in current if version.content == content)
        equal = (version for version in reversed(current) if _means(new, version))
        candidates = [*exact, *equal]
        return next(
            (
                version
                for version in candidates
                if new.schema_id < 0 or new.schema_id == version.schema_id
            ),
            None,
        )

    def _look_up(
        self, subject: Subject, request: SchemaRequest, *, normalize: bool, deleted: bool
    ) -> SchemaVersion | None:
        known = self.versions(subject, deleted=deleted)
        if not known or not (request.text or "").strip():
            return None
        normalize = normalize or self.config_in_scope(subject).normalize is True
        parsed = self._parse(subject, request, normalize=normalize, strict=False)
        wanted = SchemaVersion(
            subject=subject.text,
            version=0,
            schema_id=-1,
            text=parsed.text,
            references=parsed.references,
            metadata=request.metadata,
            rule_set=request.rule_set,
            fingerprint=fingerprint(parsed.schema),
        )
        found = self._registered(wanted, known)
        current = self.versions(subject)
        if found is None and current:
            # The second attempt is that of a registration, which inherits.
            inherited = _with_inherited(request, current[-1], None)
            wanted = replace(wanted, metadata=inherited.metadata, rule_set=inherited.rule_set)
            found = self._registered(wanted, known)
        return found

    def _incompatible(
        self,
        config: SubjectConfig,
        parsed: _Parsed,
        metadata: Json,
        earlier: Sequence[SchemaVersion],
    ) -> list[str]:
        level = config.compatibility_level or CompatibilityLevel.BACKWARD
        if level is CompatibilityLevel.NONE:
            return []
        group = config.compatibility_group
        if group is not None:
            value = _property(metadata, group)
            earlier = [known for known in earlier if _property(known.metadata, group) == value]
        if not level.is_transitive:
            earlier = earlier[-1:]
        messages = compatibility_messages(
            level, parsed.schema, [self._earlier(version) for version in earlier]
        )
        if messages:
            messages.append(f"{{validateFields: 'false', compatibility: '{level}'}}")
        return messages

    def _earlier(self, version: SchemaVersion) -> EarlierSchema:
        request = SchemaRequest(text=version.text, references=version.references)
        subject = parse_subject(version.subject)
        parsed = self._parse(subject, request, normalize=False, strict=False)
        return EarlierSchema(version.version, version.text, parsed.schema)

    def _parse(
        self, subject: Subject, request: SchemaRequest, *, normalize: bool, strict: bool
    ) -> _Parsed:
        if request.schema_type != AVRO:
            raise RegistryErrorCode.INVALID_SCHEMA.error(
                f"Invalid schema type {request.schema_type}: the embedded registry supports {AVRO}"
            )
        if not (request.text or "").strip():
            raise RegistryErrorCode.INVALID_SCHEMA.error("Empty schema")
        text = request.text or ""
        if len(text) > MOST_BYTES_OF_SCHEMA:
            raise RegistryErrorCode.SCHEMA_TOO_LARGE.error()
        resolved = _References(self, deleted=not strict)
        references = resolved.resolve(subject, request.references)
        try:
            *referenced, schema = parse_schemas([*resolved.texts, text], strict=strict)
            if normalize:
                schema = normalized(schema)
                references = tuple(sorted(set(references)))
            text = canonical_text(schema, [known.full_name for known in referenced])
        except (InvalidSchemaError, RecursionError) as error:
            reason = str(error) or "it has too many levels"
            raise RegistryErrorCode.INVALID_SCHEMA.error(
                f"Invalid schema of type {AVRO}, details: {reason}"
            ) from None
        return _Parsed(schema, text, references)

    def _check_may_register(self, subject: Subject, mode: Mode, schema_id: int) -> None:
        if mode.is_read_only:
            needed = "in read-only mode"
        elif schema_id >= 0 and not mode.takes_ids:
            needed = "not in import mode"
        elif schema_id < 0 and mode is not Mode.READWRITE:
            needed = "not in read-write mode"
        else:
            return
        raise _not_permitted(subject, needed)

    def _check_writable(self, subject: Subject) -> None:
        if self.mode_in_scope(subject).is_read_only:
            raise _not_permitted(subject, "in read-only mode")

    def _check_settings(self, subject: Subject) -> None:
        if not is_valid(subject, for_settings=True):
            raise RegistryErrorCode.INVALID_SUBJECT.error(subject.text)

    def _check_id(self, subject: Subject, schema_id: int, new: SchemaVersion) -> None:
        known = self.by_id(schema_id, Subject(subject.context, ""))
        if known is not None and known.content != new.content:
            raise RegistryErrorCode.OPERATION_NOT_PERMITTED.error(
                f"Overwrite new schema with id {schema_id} in context {subject.context_text} is "
                "not permitted."
            )


class _References:
    """The texts of the schemas that a schema refers to, each after those that it refers to."""

    def __init__(self, state: RegistryState, *, deleted: bool) -> None:
        self._state = state
        self._deleted = deleted
        self._texts: dict[str, str] = {}
        self._letters = 0
        self._seen: set[str] = set()

    @property
    def texts(self) -> list[str]:
        """The texts, in an order in which they can be parsed."""
        return list(self._texts.values())

    def resolve(
        self, subject: Subject, references: Sequence[Reference], level: int = 0
    ) -> tuple[Reference, ...]:
        """Add the texts of references; return them with the numbers of their versions."""
        if level > _MOST_REFERENCE_LEVELS or len(self._seen) > _MOST_REFERENCES:
            raise RegistryErrorCode.INVALID_SCHEMA.error(
                f"the schema has more than {_MOST_REFERENCES} references, or more than "
                f"{_MOST_REFERENCE_LEVELS} levels of them"
            )
        resolved = []
        for reference in references:
            target = relative_to(subject, reference.subject)
            found = self._state._find(target, reference.version, deleted=self._deleted)  # noqa: SLF001 - the state's own part
            if found is None:
                raise RegistryErrorCode.INVALID_SCHEMA.error(
                    f'No schema reference found for subject "{target.text}" and version '
                    f"{reference.version}"
                )
            resolved.append(reference._replace(version=found.version))
            if reference.name not in self._seen:
                self._seen.add(reference.name)
                self.resolve(target, found.references, level + 1)
                self._letters += len(found.text)
                if self._letters > _MOST_REFERENCED_LETTERS:
                    raise RegistryErrorCode.SCHEMA_TOO_LARGE.error()
                self._texts[reference.name] = found.text
        return tuple(resolved)


def _not_permitted(subject: Subject, needed: str) -> Exception:
    return RegistryErrorCode.OPERATION_NOT_PERMITTED.error(
        f"Subject {subject.text} in context {subject.context_text} is {needed}"
    )


def _settings_key(subject: Subject) -> str:
    return _DEFAULT_SETTINGS if subject.is_default_context else subject.text


def _with_level(config: SubjectConfig) -> SubjectConfig:
    level = config.compatibility_level or CompatibilityLevel.BACKWARD
    return replace(config, compatibility_level=level)


def _without_key(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != key}


def _property(metadata: Json, name: str) -> Json:
    return ((metadata or {}).get("properties") or {}).get(name)


def _with_inherited(
    request: SchemaRequest, previous: SchemaVersion | None, next_version: int | None
) -> SchemaRequest:
    """Return a request with the text, metadata and rules of the version before, if it has none."""
    if previous is not None:
        if not (request.text or "").strip():
            request = replace(request, text=previous.text, references=previous.references)
        if request.metadata is None:
            request = replace(request, metadata=previous.metadata)
        if request.rule_set is None:
            request = replace(request, rule_set=previous.rule_set)
    has_version = _property(request.metadata, _CONFLUENT_VERSION) is not None
    if next_version is not None and (request.version != 0 or has_version):
        metadata = dict(request.metadata or {})
        properties = {**(metadata.get("properties") or {}), _CONFLUENT_VERSION: str(next_version)}
        request = replace(request, metadata={**metadata, "properties": properties})
    return request


def _means(new: SchemaVersion, known: SchemaVersion) -> bool:
    """Return whether a schema is one that is registered, though it is written differently.

    It may have its references resolved, and may lack `confluent:version`.
    """
    if new.fingerprint != known.fingerprint:
        return False
    if new.references != known.references and (new.references or not known.references):
        return False
    if json.dumps(new.rule_set, sort_keys=True) != json.dumps(known.rule_set, sort_keys=True):
        return False
    ours = _property(new.metadata, _CONFLUENT_VERSION)
    theirs = _property(known.metadata, _CONFLUENT_VERSION)
    if (ours is None) == (theirs is None):
        return _metadata_key(new.metadata) == _metadata_key(known.metadata)
    if ours is not None and ours != str(known.version):
        return False
    return _metadata_key(_without_version(new.metadata)) == _metadata_key(
        _without_version(known.metadata)
    )


def _without_version(metadata: Json) -> Json:
    properties = _without_key((metadata or {}).get("properties") or {}, _CONFLUENT_VERSION)
    return {**(metadata or {}), "properties": properties}


def _metadata_key(metadata: Json) -> str | None:
    """Return a text that equal metadata share: order and empty parts have no meaning."""
    if metadata is None:
        return None
    tags = metadata.get("tags") or {}
    parts = (
        {name: sorted(set(values or ())) for name, values in tags.items()},
        metadata.get("properties") or {},
        sorted(set(metadata.get("sensitive") or ())),
    )
    return json.dumps(parts, sort_keys=True)


def _hashed_parts(version: SchemaVersion) -> Iterator[bytes]:
    """Yield what Confluent's MD5 is computed of."""
    yield _encoded(version.text)
    for reference in version.references:
        yield _encoded(reference.name)
        yield _encoded(reference.subject)
        yield struct.pack(">i", reference.version)
    if version.metadata is not None:
        yield b"\1"
        yield from _hashed_map(version.metadata.get("tags"))
        yield from _hashed_map(version.metadata.get("properties"))
        yield from map(_encoded, sorted(version.metadata.get("sensitive") or ()))
    if version.rule_set is not None:
        yield b"\1"
        for kind in ("migrationRules", "domainRules", "encodingRules"):
            for rule in version.rule_set.get(kind) or ():
                yield from _hashed_rule(rule)
        if version.rule_set.get("enableAt"):
            yield _encoded(version.rule_set["enableAt"])


def _hashed_map(values: Mapping[str, Any] | None) -> Iterator[bytes]:
    for name, value in sorted((values or {}).items()):
        yield _encoded(name)
        yield from map(_encoded, sorted(value) if isinstance(value, list) else (value,))


def _hashed_rule(rule: Mapping[str, Any]) -> Iterator[bytes]:
    rule = {"kind": "TRANSFORM", "mode": "WRITEREAD"} | {
        name: value for name, value in rule.items() if value is not None
    }
    for name in ("name", "doc", "kind", "mode", "type"):
        yield _encoded(rule.get(name, ""))
    yield from map(_encoded, sorted(rule.get("tags", ())))
    yield from _hashed_map(rule.get("params"))
    for name in ("expr", "onSuccess", "onFailure"):
        yield _encoded(rule.get(name, ""))
    if rule.get("disabled"):
        yield b"\1"


def _encoded(text: object) -> bytes:
    return str(text).encode("utf-8", "replace")
