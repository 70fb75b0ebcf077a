"""The errors that any client may raise, and the base class of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

#: The number of errors that a message has, and of items that it names with each.
_NAMED_ITEMS = 5


class KafkaError(Exception):
    """The base class of every error that this package raises deliberately.

    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     try:
    ...         producer.send("orders", b"x" * 2_000_000).result(timeout=30)
    ...     except KafkaError as error:
    ...         print(type(error).__name__, error.retriable)
    RecordTooLargeError False
    """

    #: Whether the same request may succeed when it is retried.
    retriable: bool = False
    #: Whether a user's function failed, such as one that provides tokens: `__cause__` says why.
    is_from_user_code: bool = False

    def __str__(self) -> str:
        """Return the message with control characters escaped: a peer may have sent parts of it."""
        from spark_kafka_sink.display import printable  # noqa: PLC0415 - as in `_failed_items`

        return printable(super().__str__())

    def __reduce__(self) -> tuple[Callable[..., KafkaError], tuple[object, ...]]:
        """Pickle and copy the message and the attributes, whatever the constructor takes."""
        return _restored, (type(self), self.args, vars(self))


def _restored(
    kind: type[KafkaError], args: tuple[object, ...], state: Mapping[str, Any]
) -> KafkaError:
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(state)
    return error


class ConfigError(KafkaError, ValueError):
    """A setting is unknown, malformed, out of range, or in conflict with another setting.

    >>> KafkaProducer({"bootstrap.servers": "localhost:9092", "akcs": "all"})
    Traceback (most recent call last):
        ...
    spark_kafka_sink.errors.ConfigError: ...
    """


class SerializationError(KafkaError, ValueError):
    """A key or a value cannot be serialized, or its bytes cannot be deserialized.

    The message names the topic, the field (key or value) and its type, but never the content. The
    exception of the serializer or deserializer is in `__cause__`.

    >>> settings = {"bootstrap.servers": "localhost:9092", "value.serializer": "string"}
    >>> with KafkaProducer(settings) as producer:
    ...     producer.send("orders", 12.5)
    Traceback (most recent call last):
        ...
    spark_kafka_sink.errors.SerializationError: topic 'orders': the serializer 'string' ...
    """


class IllegalStateError(KafkaError, RuntimeError):
    """The producer's state does not allow the call, which changed nothing.

    >>> settings = {"bootstrap.servers": "localhost:9092", "transactional.id": "orders-1"}
    >>> with KafkaProducer(settings) as producer:
    ...     producer.init_transactions()
    ...     producer.commit_transaction()
    Traceback (most recent call last):
        ...
    spark_kafka_sink.errors.IllegalStateError: ...
    """


class KafkaTimeoutError(KafkaError, TimeoutError):
    """An operation did not finish within its timeout.

    >>> with DevBroker(auto_create_topics=False) as broker:
    ...     settings = {"bootstrap.servers": broker.bootstrap_servers, "max.block.ms": 1000}
    ...     with KafkaProducer(settings) as producer:
    ...         error = producer.send("orders", b"a book").exception(timeout=30)
    >>> isinstance(error, KafkaTimeoutError), error.retriable
    (True, True)
    """

    retriable = True


class NetworkError(KafkaError, ConnectionError):
    """A connection was refused or lost, or the broker never answered.

    >>> with KafkaProducer({"bootstrap.servers": "localhost:1", "max.block.ms": 1000}) as producer:
    ...     producer.send("orders", b"a book").result(timeout=30)
    Traceback (most recent call last):
        ...
    spark_kafka_sink.errors.NetworkError: ...
    """

    retriable = True


class AuthenticationError(KafkaError):
    """Authentication failed: a password, token, certificate or host name was not accepted.

    It is fatal to the producer, since a retry would fail the same way. The message names the
    broker, the mechanism and the user, but never a secret.

    >>> sasl = SaslSettings(users={"alice": "her password"})
    >>> listener = Listener(security_protocol="SASL_PLAINTEXT", sasl=sasl)
    >>> with DevBroker(listeners=[listener]) as broker:
    ...     settings = {
    ...         "bootstrap.servers": broker.bootstrap_servers,
    ...         "security.protocol": "SASL_PLAINTEXT",
    ...         "sasl.mechanism": "SCRAM-SHA-256",
    ...         "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule "
    ...         'required username="alice" password="a guess";',
    ...     }
    ...     producer = KafkaProducer(settings)
    ...     error = producer.send("orders", b"a book").exception(timeout=30)
    ...     producer.close(0)
    >>> isinstance(error, AuthenticationError)
    True
    """


class DecodeError(KafkaError):
    """Bytes from the network do not follow the protocol.

    >>> error = DecodeError("broker 1: the response ends in the middle of an array")
    >>> isinstance(error, KafkaError), error.retriable
    (True, False)
    """


class CorruptRecordError(DecodeError):
    """A record batch has a wrong checksum or inconsistent sizes.

    >>> error = CorruptRecordError("orders-0, offset 7: the checksum is wrong")
    >>> isinstance(error, DecodeError)
    True
    """


class UnsupportedVersionError(KafkaError):
    """Client and broker support no common version of an API.

    >>> error = UnsupportedVersionError("broker 1: there is no common version of Produce")
    >>> isinstance(error, KafkaError), error.retriable
    (True, False)
    """


class BrokerError(KafkaError):
    """A broker answered with an error code.

    `code` and `name` are Kafka's own; an unknown code keeps its number. `message` is the
    human-readable text. `retriable` says whether the same request may succeed later, and
    `invalid_metadata` whether the client must refresh its metadata first. `topic` is the topic that
    the broker refused as a whole, if it is known.

    >>> with DevBroker(topics={"orders": 1}) as broker:
    ...     hook = broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    ...     with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
    ...         error = producer.send("orders", b"a book").exception(timeout=30)
    >>> error.__cause__.code, error.__cause__.name
    (29, 'TOPIC_AUTHORIZATION_FAILED')
    """

    def __init__(
        self,
        message: str,
        *,
        code: int,
        name: str,
        retriable: bool = False,
        invalid_metadata: bool = False,
    ) -> None:
        """Store the broker's code and name beside the message made from them."""
        super().__init__(message)
        self.code = code
        self.name = name
        self.retriable = retriable
        #: Whether the error shows that our metadata is stale.
        self.invalid_metadata = invalid_metadata
        self.topic: str | None = None


class AdminError(KafkaError):
    """Some of the items that a call of `AdminClient` was about have failed.

    `what` is the request. `errors` has the error of each item that failed; `results` has the result
    of each other item, for which the call was successful. Retrying may help if it may help for each
    of the errors.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     try:
    ...         admin.create_topics([NewTopic("orders"), NewTopic("invoices")])
    ...     except AdminError as error:
    ...         print({topic: it.name for topic, it in error.errors.items()}, list(error.results))
    {'orders': 'TOPIC_ALREADY_EXISTS'} ['invoices']
    """

    def __init__(
        self, what: str, errors: Mapping[Any, KafkaError], results: Mapping[Any, Any]
    ) -> None:
        """Build the message, which names the items with the same error together."""
        super().__init__(_failed_items(what, errors, results))
        self.what = what
        self.errors = dict(errors)
        self.results = dict(results)
        self.retriable = all(error.retriable for error in errors.values())


def _failed_items(what: str, errors: Mapping[Any, KafkaError], results: Mapping[Any, Any]) -> str:
    from spark_kafka_sink.display import printable  # noqa: PLC0415 - importing an error loads no more

    by_text: dict[str, list[str]] = {}
    for item, error in errors.items():
        by_text.setdefault(str(error), []).append(str(item) or "''")
    texts = []
    for text, items in list(by_text.items())[:_NAMED_ITEMS]:
        texts.append(f"{listed(items)}: {text}")
    if len(by_text) > _NAMED_ITEMS:
        texts.append(f"and {len(by_text) - _NAMED_ITEMS} more errors, see `errors`")
    counts = f"{len(errors)} of {len(errors) + len(results)}"
    # Names may be those that others have given, and contain control characters.
    return printable(f"{what} failed for {counts}: {'; '.join(texts)}")


def listed(items: Sequence[object]) -> str:
    """Return the first of some items, and how many more there are."""
    rest = len(items) - _NAMED_ITEMS
    return ", ".join(map(str, items[:_NAMED_ITEMS])) + (f" and {rest} more" if rest > 0 else "")
