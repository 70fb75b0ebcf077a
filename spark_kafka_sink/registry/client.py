"""A client of a Schema Registry, with Confluent's REST API.

- What never changes is fetched once and kept for the life of the client: the schema of an id, and
  that of a version. Threads that need the same at the same time share one request.
- Failures are not kept, and neither is which version is the latest.
- Schemas that a schema refers to are fetched with it. How many, and how deep, is limited, and a
  circle of references is refused.
- A client cannot be pickled: each process makes its own from the settings (`registry_client`).
"""

from __future__ import annotations

import copy
import os
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar
from urllib.parse import quote

from spark_kafka_sink.errors import SchemaRegistryError
from spark_kafka_sink.registry.rest_service import (
    SCHEMA_NOT_FOUND,
    SUBJECT_NOT_FOUND,
    VERSION_NOT_FOUND,
    RestService,
)
from spark_kafka_sink.registry.schemas import (
    LATEST,
    MAX_ID,
    Compatibility,
    Reader,
    RegisteredSchema,
    SchemaReference,
    checked_subject,
    context_of,
    in_context_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from spark_kafka_sink.config.registry_settings import RegistrySettings

Value = TypeVar("Value")

#: The statuses of a path that a registry does not have, or not for this method.
_NO_PATH: Final = frozenset({404, 405})

#: How many ids a client waits for that remain unknown: payloads without framing have ever new ones.
MOST_VAIN_WAITS: Final = 10
#: The most schemas that one schema needs, and the longest chain of references.
MAX_DEPENDENCIES: Final = 1000
MAX_DEPTH: Final = 50
#: The most characters of these schemas together.
MAX_CHARACTERS: Final = 16 << 20
#: The clients that a process keeps: credentials that change make a new one each time.
MAX_CLIENTS: Final = 16


class SchemaRegistryClient:
    """A client of one registry. Thread-safe; it keeps no connection, and need not be closed.

    Each call may take request.timeout.ms for each URL, times `max.retries` + 1, and the waits
    between. It raises SchemaRegistryError, or ConfigError for a subject that has no valid name or
    a file of TLS that cannot be used.
    """

    def __init__(
        self,
        settings: RegistrySettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Check the settings, without connecting to anything. Raises ConfigError."""
        self._rest = RestService(settings, clock=clock, sleep=sleep)
        #: Returns seconds since an arbitrary moment.
        self.clock = clock
        self._fetches = _Fetches()
        self._vain_waits = 0
        self._settings = settings

    def __repr__(self) -> str:
        """Show the settings, with secrets hidden."""
        return f"SchemaRegistryClient({self._settings!r})"

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: a process makes its own."""
        raise TypeError(
            "a SchemaRegistryClient cannot be pickled: make one in each process, from the settings"
        )

    def schema_by_id(
        self, schema_id: int, subject: str | None = None, *, may_be_new: bool = False
    ) -> RegisteredSchema:
        """Return the schema of an id; `subject` says in which context, and with which rights.

        Raises SchemaRegistryError with the code 40403 if the registry does not know it. Of several
        nodes of a registry, some know a schema later than others: one that may be new is asked for
        again, as after a transient error, until that was in vain `MOST_VAIN_WAITS` times.
        """
        if not 0 <= schema_id <= MAX_ID:
            raise SchemaRegistryError(
                f"{schema_id} is not the id of a schema: ids are between 0 and {MAX_ID}"
            )

        def fetch() -> RegisteredSchema:
            path = f"/schemas/ids/{schema_id}"
            query = None if subject is None else {"subject": checked_subject(subject)}
            waits = may_be_new and self._vain_waits < MOST_VAIN_WAITS
            awaited = {SCHEMA_NOT_FOUND} if waits else frozenset()
            try:
                response = self._rest.get(path, query, awaited=awaited)
            except SchemaRegistryError as error:
                self._vain_waits += error.error_code in awaited
                raise
            return Reader(*response).schema(schema_id=schema_id)

        schema = self._fetches.once((context_of(subject), schema_id), fetch)
        return self._with_dependencies(schema, subject)

    def latest_schema(self, subject: str) -> RegisteredSchema:
        """Return the latest version of a subject.

        Raises SchemaRegistryError with the code 40401 or 40402 if there is none.
        """
        schema = self._fetch_version(subject, LATEST, deleted=False)
        return self._with_dependencies(self._keep(schema), subject)

    def schema_version(self, subject: str, version: int) -> RegisteredSchema:
        """Return a version of a subject.

        Raises SchemaRegistryError with the code 40401 or 40402 if it does not exist.
        """
        if not 1 <= version <= MAX_ID:
            raise SchemaRegistryError(
                f"{version} is not a version of a schema: versions are between 1 and {MAX_ID}"
            )
        schema = self._fetches.once(
            (subject, version, False), partial(self._fetch_version, subject, version, deleted=False)
        )
        return self._with_dependencies(self._keep(schema), subject)

    def look_up(
        self,
        subject: str,
        text: str,
        references: Sequence[SchemaReference] = (),
        *,
        normalize: bool = False,
        deleted: bool = False,
        is_registered: bool = False,
    ) -> RegisteredSchema:
        """Return the version of a subject that has a schema; `deleted` finds deleted ones, too.

        Raises SchemaRegistryError with the code 40401 if there is no subject, 40403 if it does not
        have the schema. One that has just been registered is asked for again, as after a transient
        error: another node of the registry may not know it yet.
        """
        path = f"/subjects/{_part(subject)}"
        query = _flags(normalize=normalize, deleted=deleted)
        awaited = {SUBJECT_NOT_FOUND, SCHEMA_NOT_FOUND} if is_registered else frozenset()
        response = self._rest.post(path, query, _request(text, references), awaited=awaited)
        schema = Reader(*response).schema(subject=subject)
        return self._with_dependencies(self._keep(schema), subject)

    def register(
        self,
        subject: str,
        text: str,
        references: Sequence[SchemaReference] = (),
        *,
        normalize: bool = False,
    ) -> RegisteredSchema:
        """Register a schema under a subject, unless it is already, and return it with its id.

        Its version is not known. Raises SchemaRegistryError with the status 409 if it is not
        compatible with the versions before it, and 422 if the registry refuses the text.
        """
        path = f"/subjects/{_part(subject)}/versions"
        response = self._rest.post(path, _flags(normalize=normalize), _request(text, references))
        schema = RegisteredSchema(
            id=Reader(*response).number("id", 0),
            text=text,
            subject=subject,
            references=tuple(references),
        )
        return self._with_dependencies(schema, subject)

    def test_compatibility(
        self,
        subject: str,
        text: str,
        references: Sequence[SchemaReference] = (),
        *,
        normalize: bool = False,
    ) -> Compatibility:
        """Return whether a schema can be registered under a subject, which need not exist.

        It is tested with all versions that the subject's compatibility level names; by a registry
        that cannot do this, as those of Redpanda and Karapace, with the latest one.
        """
        versions = f"/compatibility/subjects/{_part(subject)}/versions"
        query = {"verbose": "true", **_flags(normalize=normalize)}
        for path in (versions, f"{versions}/latest"):
            try:
                response = self._rest.post(path, query, _request(text, references))
            except SchemaRegistryError as error:
                if error.error_code in {SUBJECT_NOT_FOUND, VERSION_NOT_FOUND}:
                    break
                if path == versions and error.error_code is None and error.status in _NO_PATH:
                    continue
                raise
            return Reader(*response).compatibility()
        return Compatibility(is_compatible=True)

    def _fetch_version(self, subject: str, version: int, *, deleted: bool) -> RegisteredSchema:
        name = "latest" if version == LATEST else str(version)
        path = f"/subjects/{_part(subject)}/versions/{name}"
        return Reader(*self._rest.get(path, _flags(deleted=deleted))).schema(subject=subject)

    def _keep(self, schema: RegisteredSchema) -> RegisteredSchema:
        """Keep a schema by its id, so that it need not be fetched again, and return it."""
        by_id = replace(schema, subject=None, version=None)
        self._fetches.keep((context_of(schema.subject), schema.id), by_id)
        return schema

    def _with_dependencies(self, schema: RegisteredSchema, parent: str | None) -> RegisteredSchema:
        if not schema.references:
            return schema
        found: dict[tuple[str, int], RegisteredSchema] = {}
        self._collect(schema, parent, found, set(), ())
        return replace(schema, dependencies=tuple(found.values()))

    def _collect(
        self,
        schema: RegisteredSchema,
        parent: str | None,
        found: dict[tuple[str, int], RegisteredSchema],
        names: set[str],
        chain: tuple[tuple[str, int], ...],
    ) -> None:
        """Add the schemas that a schema needs to `found`, each after those that it needs.

        If two references have the same name, the first one counts, as in Confluent's clients.
        """
        for reference in schema.references:
            subject = in_context_of(reference.subject, parent)
            key = subject, reference.version
            what = f"the references of {schema}"
            if key in chain:
                raise SchemaRegistryError(
                    f"{what} lead back to version {reference.version} of subject {subject!r}, in a "
                    "circle: register versions that do not"
                )
            if key in found or reference.name in names:
                continue
            names.add(reference.name)
            characters = sum(len(each.text) for each in found.values())
            if (
                len(chain) >= MAX_DEPTH
                or len(found) + len(chain) >= MAX_DEPENDENCIES
                or characters > MAX_CHARACTERS
            ):
                raise SchemaRegistryError(
                    f"{what} are more than {MAX_DEPENDENCIES} schemas, have more than "
                    f"{MAX_CHARACTERS} characters, or chains longer than {MAX_DEPTH}: register "
                    "fewer"
                )
            # A reference to the latest version is kept like the others: one schema must not change
            # its meaning within a process.
            needed = self._fetches.once(
                (*key, True), partial(self._fetch_version, *key, deleted=True)
            )
            self._collect(needed, subject, found, names, (*chain, key))
            found[key] = needed


class _Flight:
    """A fetch under way: the lock is held by the thread that fetches."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.error: SchemaRegistryError | None = None


class _Fetches:
    """What was fetched, by its key, and what is being fetched. Thread-safe.

    A function that fetches must not itself wait for another key, or two threads could wait for each
    other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Hashable, Any] = {}
        self._flights: dict[Hashable, _Flight] = {}

    def keep(self, key: Hashable, value: object) -> None:
        """Keep a value that was fetched otherwise."""
        with self._lock:
            self._kept.setdefault(key, value)

    def once(self, key: Hashable, fetch: Callable[[], Value]) -> Value:
        """Return what is kept; otherwise fetch it, or wait for the thread that does.

        All threads that wait get the error of a fetch that fails. The next one fetches again.
        """
        with self._lock:
            if key in self._kept:
                return self._kept[key]  # type: ignore[no-any-return]
            flight = self._flights.setdefault(key, _Flight())
        with flight.lock:
            if flight.error is not None:
                raise copy.copy(flight.error)
            with self._lock:
                if key in self._kept:
                    return self._kept[key]  # type: ignore[no-any-return]
            try:
                value = fetch()
                self.keep(key, value)
            except SchemaRegistryError as error:
                flight.error = error
                raise
            finally:
                with self._lock:
                    if self._flights.get(key) is flight:
                        del self._flights[key]
            return value


def _part(subject: str) -> str:
    return quote(checked_subject(subject), safe="")


def _flags(**flags: bool) -> dict[str, str]:
    return {name: "true" for name, is_set in flags.items() if is_set}


def _request(text: str, references: Sequence[SchemaReference]) -> dict[str, Any]:
    """Return the body of a request about a schema; AVRO is the type that need not be named."""
    body: dict[str, Any] = {"schema": text}
    if references:
        body["references"] = [reference.to_json() for reference in references]
    return body


class _Clients:
    """The clients of a process, by their settings: these contain the URLs and the credentials."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[RegistrySettings, SchemaRegistryClient] = {}

    def get(self, settings: RegistrySettings) -> SchemaRegistryClient:
        """Return the client, made if necessary; the one that was used longest ago makes room."""
        with self._lock:
            client = self._clients.pop(settings, None) or SchemaRegistryClient(settings)
            self._clients[settings] = client
            if len(self._clients) > MAX_CLIENTS:
                del self._clients[next(iter(self._clients))]
            return client


_clients = _Clients()


def _start_empty_after_fork() -> None:
    global _clients  # noqa: PLW0603 -- another thread may have held a lock
    _clients = _Clients()


os.register_at_fork(after_in_child=_start_empty_after_fork)


def registry_client(settings: RegistrySettings) -> SchemaRegistryClient:
    """Return this process's client for settings.

    Settings with other credentials, as from a file that has changed, have another client, which
    fetches all schemas again.
    """
    return _clients.get(settings)
