"""Requests to a Schema Registry: credentials, several URLs, retries, and errors (`RestService`).

A request goes to the URL that answered last. If that fails for a transient reason, the next URL is
asked. After all of them have failed, there is a random wait, and another round. (Confluent's class
of the same name retries one URL until the end before it asks the next.)

The registry is trusted with what it stores, and with nothing else: its responses are limited in
size and time, and what errors quote of them is short, printable and without credentials.
"""

from __future__ import annotations

import base64
import json
import logging
import random
import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from spark_kafka_sink.config.config_def import plain_text
from spark_kafka_sink.errors import ConfigError, SchemaRegistryError
from spark_kafka_sink.network.http_client import (
    HttpError,
    HttpFailure,
    HttpProxy,
    HttpRequest,
    HttpResponse,
    HttpTimeouts,
    exchange,
)
from spark_kafka_sink.network.tls_contexts import TlsContexts, tls_settings
from spark_kafka_sink.security.redaction import hide, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from spark_kafka_sink.config.config_def import Password
    from spark_kafka_sink.config.registry_settings import RegistrySettings, RegistryUrl

logger = logging.getLogger(__name__)

#: The most bytes read of a response. A registry keeps a schema in one record of Kafka.
MAX_BYTES: Final = 16 << 20
_LONGEST_REASON: Final = 500
_MILLISECONDS: Final = 1000
_THREAD: Final = "schema-registry-request"
_JSON: Final = "application/vnd.schemaregistry.v1+json"
_ACCEPTED: Final = f"{_JSON}, application/vnd.schemaregistry+json; q=0.9, application/json; q=0.5"
_HTTP_PORT: Final = 80
#: Confluent's codes are a status and two more digits.
_HIGHEST_CODE: Final = 99_999
_OK: Final = range(200, 300)
_MOVED: Final = range(300, 400)
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

#: The statuses of errors that may pass (Confluent's clients have the same list).
RETRIABLE: Final = frozenset({408, 429, 500, 502, 503, 504})

#: Confluent's codes that callers tell apart.
SUBJECT_NOT_FOUND: Final = 40401
VERSION_NOT_FOUND: Final = 40402
SCHEMA_NOT_FOUND: Final = 40403
#: A code that only says again that the path is unknown.
_PATH_NOT_FOUND: Final = 404
_ADVICE_BY_CODE: Final = {
    SUBJECT_NOT_FOUND: "check the name of the subject, or register a schema under it",
    VERSION_NOT_FOUND: "check the version",
    SCHEMA_NOT_FOUND: "check the id, and that {prefix}url names the registry that has the schema",
}
_ADVICE: Final[Mapping[int, str]] = {
    HTTPStatus.UNAUTHORIZED: "check the credentials: {prefix}basic.auth.user.info or "
    "{prefix}bearer.auth.token",
    HTTPStatus.FORBIDDEN: "the credentials do not permit this: ask whoever runs the registry for "
    "the right to the subject",
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED: "set user and password in {prefix}proxy",
    HTTPStatus.CONFLICT: "make the schema compatible with the versions of the subject, or change "
    "the subject's compatibility level",
    HTTPStatus.UNPROCESSABLE_ENTITY: "change what the registry objects to",
    HTTPStatus.TOO_MANY_REQUESTS: "raise {prefix}max.retries or {prefix}retries.wait.ms, or start "
    "fewer tasks at a time",
}


class RestResponse(NamedTuple):
    """The JSON value of a response, and the request that it answers, for errors."""

    value: Any
    request: str


class _Answer(NamedTuple):
    """The error in a response: Confluent's code and message, if it has them."""

    code: int | None
    message: str


class RestService:
    """Sends the requests of one client. Thread-safe; it keeps no connection."""

    def __init__(
        self,
        settings: RegistrySettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Check the settings of TLS, without reading a file or connecting to anything.

        `clock` returns seconds since an arbitrary moment. Raises ConfigError.
        """
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._secrets = settings.secrets
        try:
            tls = tls_settings(settings.security)
        except ValueError as error:
            problem = hide(str(error), self._secrets)
            raise ConfigError(f"{settings.prefix}{problem}") from None
        self._contexts = TlsContexts(tls, settings.prefix, self._secrets)
        self._proxy = None if settings.proxy is None else _http_proxy(settings.proxy)
        #: The position of the URL that is asked first.
        self._current = 0
        self._warn_of_clear_text()

    def _warn_of_clear_text(self) -> None:
        for url in self._settings.url:
            parts = urlsplit(url.address)
            if (
                parts.scheme == "http"
                and parts.hostname not in _LOOPBACK
                and self._authorization(url) is not None
            ):
                logger.warning(
                    "the credentials for the Schema Registry %s are sent in clear text: use "
                    "https://",
                    self._settings.shown(url),
                )

    def get(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        awaited: Collection[int] = frozenset(),
    ) -> RestResponse:
        """Return the JSON value of a response; raise SchemaRegistryError if there is none.

        Errors with the codes `awaited` count as transient, too: what is missing may be new.
        """
        return self._request("GET", _target(path, query), None, awaited)

    def post(
        self,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any],
        *,
        awaited: Collection[int] = frozenset(),
    ) -> RestResponse:
        """Send a JSON value, and return that of the response, like `get`."""
        return self._request("POST", _target(path, query), json.dumps(body).encode(), awaited)

    def _request(
        self, method: str, target: str, body: bytes | None, awaited: Collection[int]
    ) -> RestResponse:
        """Send a request to one URL after the other, round by round, until one answers."""
        urls = self._settings.url
        attempts = self._settings.max_retries + 1
        for attempt in range(1, attempts + 1):
            if attempt > 1:
                self._sleep(self._delay(attempt - 2))
            for tried in range(1, len(urls) + 1):
                position = self._current % len(urls)
                try:
                    return self._ask(urls[position], method, target, body, attempt)
                except SchemaRegistryError as error:
                    if not error.retriable and error.error_code not in awaited:
                        raise
                    # Another thread may have moved on already.
                    if self._current == position:
                        self._current = (position + 1) % len(urls)
                    if (attempt, tried) == (attempts, len(urls)):
                        raise
        raise RuntimeError("a registry has at least one URL, and a request one attempt")

    def _delay(self, failures: int) -> float:
        """Return a random wait in seconds (AWS's "full jitter", as Confluent's RetryExecutor)."""
        longest = min(
            self._settings.retries_wait_ms << min(failures, 30), self._settings.retries_max_wait_ms
        )
        return random.uniform(0, longest) / _MILLISECONDS

    def _ask(
        self, url: RegistryUrl, method: str, target: str, body: bytes | None, attempt: int
    ) -> RestResponse:
        """Send a request to one URL once."""
        request = HttpRequest(method, f"{url.address}{target}", self._headers(url, body), body)
        what = f"{method} {self._settings.shown(url)}{target}"
        limit = f"{self._settings.prefix}max.retries"
        tried = f" after {attempt} attempts ({limit})" if attempt > 1 else ""
        try:
            response = self._exchange(request)
        except HttpError as error:
            raise self._no_response(f"{what} failed{tried}", error) from None
        if response.status not in _OK:
            raise self._refusal(f"{what} failed{tried}", response)
        try:
            return RestResponse(json.loads(response.body), what)
        except (ValueError, RecursionError):
            raise SchemaRegistryError(
                f"{what} was answered with something other than JSON: check that "
                f"{self._settings.prefix}url is the URL of a Schema Registry, with its path",
                status=response.status,
            ) from None

    def _headers(self, url: RegistryUrl, body: bytes | None) -> dict[str, str]:
        settings = self._settings
        optional = {
            "Authorization": self._authorization(url),
            "Content-Type": None if body is None else _JSON,
            "target-sr-cluster": settings.bearer_auth_logical_cluster,
            "Confluent-Identity-Pool-Id": settings.bearer_auth_identity_pool_id,
        }
        return {
            "Accept": _ACCEPTED,
            **{name: value for name, value in optional.items() if value is not None},
        }

    def _authorization(self, url: RegistryUrl) -> str | None:
        token = plain_text(self._settings.bearer_auth_token)
        return _basic(url.user_info) if token is None else f"Bearer {token}"

    def _exchange(self, request: HttpRequest) -> HttpResponse:
        """Wait for a response on a thread: no timeout of a socket ends the look-up of a name."""
        seconds = self._settings.request_timeout_ms / _MILLISECONDS
        outcome: list[HttpResponse | BaseException] = []

        def run() -> None:
            try:
                outcome.append(
                    exchange(
                        request,
                        HttpTimeouts(seconds, seconds),
                        self._contexts.current,
                        self._clock,
                        max_bytes=MAX_BYTES,
                        proxy=self._proxy,
                    )
                )
            except BaseException as error:  # noqa: BLE001 -- raised by the thread that waits
                outcome.append(error)

        thread = threading.Thread(target=run, name=_THREAD, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # Once the process ends, no thread can be started.
            run()
        else:
            thread.join(seconds)
        if not outcome:
            raise HttpError(HttpFailure.NO_ANSWER, "")
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    def _no_response(self, what: str, error: HttpError) -> SchemaRegistryError:
        prefix = self._settings.prefix
        if error.failure is HttpFailure.UNTRUSTED:
            return SchemaRegistryError(
                f"{what}: the registry's certificate is not trusted, or is for another host "
                f"({self._quoted(error.reason)}): check {prefix}ssl.truststore.location"
            )
        if error.failure is HttpFailure.UNENCRYPTED:
            return SchemaRegistryError(
                f"{what}: the server answers without TLS ({error.reason}); if the registry has "
                f"none, begin {prefix}url with http://"
            )
        if error.failure is HttpFailure.OTHER:
            reason = self._quoted(error.reason)
        else:
            seconds = self._settings.request_timeout_ms / _MILLISECONDS
            reason = f"no response within {seconds:g} s ({prefix}request.timeout.ms)"
        return SchemaRegistryError(
            f"{what}: {reason}; check that the registry runs, and {prefix}url", retriable=True
        )

    def _refusal(self, what: str, response: HttpResponse) -> SchemaRegistryError:
        answer = _answer(response.body)
        status, code = response.status, answer.code
        if code == _PATH_NOT_FOUND:
            code = None
        said = ": ".join(
            filter(None, (str(code or ""), self._quoted(answer.message).strip().rstrip(".")))
        )
        advice = self._advice(status, code).format(prefix=self._settings.prefix)
        return SchemaRegistryError(
            f"{what} with status {status}{f' ({said})' if said else ''}: {advice}",
            status=status,
            error_code=code,
            retriable=status in RETRIABLE,
        )

    def _advice(self, status: int, code: int | None) -> str:
        if code in _ADVICE_BY_CODE:
            return _ADVICE_BY_CODE[code]
        if status in _ADVICE:
            return _ADVICE[status]
        if status in _MOVED:
            return (
                "redirects are not followed, since they could lead the credentials elsewhere; set "
                "{prefix}url to the address that answers"
            )
        if status in RETRIABLE:
            return "look into the registry's log"
        if code is None:
            return "check that {prefix}url is the URL of a Schema Registry, with its path"
        return "check the request"

    def _quoted(self, text: str) -> str:
        return quoted(text, self._secrets, _LONGEST_REASON)


def _target(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _basic(user_info: Password | None) -> str | None:
    if user_info is None:
        return None
    return f"Basic {base64.b64encode(user_info.value.encode()).decode()}"


def _http_proxy(url: RegistryUrl) -> HttpProxy:
    parts = urlsplit(url.address)
    return HttpProxy(parts.hostname or "", parts.port or _HTTP_PORT, _basic(url.user_info))


def _answer(body: bytes) -> _Answer:
    """Read the error in a response, which anybody may have written."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return _Answer(None, "")
    if not isinstance(value, dict):
        return _Answer(None, "")
    code, message = value.get("error_code"), value.get("message")
    is_code = isinstance(code, int) and not isinstance(code, bool) and 0 < code <= _HIGHEST_CODE
    return _Answer(code if is_code else None, message if isinstance(message, str) else "")
