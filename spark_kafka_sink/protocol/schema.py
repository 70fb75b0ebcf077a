"""The vocabulary of message declarations: types, version ranges, fields, requests and responses.

A message is a class with one line per field, in wire order, in the terms of Kafka's own schemas:

    @message
    class PartitionProduceData:
        index: int = field(INT32)
        records: Records | None = field(RECORDS, nullable="0+")

`versions` are the versions of the request or response that have the field; in the others it is not
on the wire, and takes its default when decoded. So every field that some version lacks has a
default, and so has every tagged field (KIP-482), which is omitted if it equals its default.
Encoding another value in a version that lacks the field raises UnsupportedVersionError unless the
field is `ignorable`, which means that it may be dropped.

This is data only; `codec.py` builds both codecs from it. The modules of messages import all of
`__all__`: it is the language that they are written in.
"""

from __future__ import annotations

import dataclasses
import sys
import uuid
from operator import attrgetter
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    TypeAlias,
    TypeVar,
    dataclass_transform,
    get_args,
)

from spark_kafka_sink.model import NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from spark_kafka_sink.protocol.api_keys import NEVER_FLEXIBLE, ApiKey
from spark_kafka_sink.protocol.primitives import ZERO_UUID, Buffer, Reader, Writer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "BOOL",
    "BYTES",
    "FLOAT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "LEGACY_STRING",
    "NEVER_FLEXIBLE",
    "NO_LEADER_EPOCH",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "RECORDS",
    "STRING",
    "UINT16",
    "UUID",
    "ZERO_UUID",
    "ApiKey",
    "ApiRequest",
    "ApiResponse",
    "Message",
    "Records",
    "Uuid",
    "VersionRange",
    "array",
    "field",
    "message",
]

T = TypeVar("T")

#: A topic id in Python; `UUID` is its type on the wire.
Uuid: TypeAlias = uuid.UUID
#: The value of a records field. Decoded, it is a memoryview into the message, or None.
Records: TypeAlias = bytes | memoryview | list[Buffer] | tuple[Buffer, ...]

_OPEN_END = 32767
_SPEC = "kafka"


@dataclasses.dataclass(frozen=True, slots=True)
class VersionRange:
    """The versions from `min` to `max`, inclusive."""

    min: int
    max: int

    def __contains__(self, version: int) -> bool:
        return self.min <= version <= self.max

    def __str__(self) -> str:
        """Format the range as Kafka's schemas do."""
        return f"{self.min}+" if self.max == _OPEN_END else f"{self.min}-{self.max}"

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Parse the notation of Kafka's schemas: "3+", "0-12" or "4"."""
        if text.endswith("+"):
            return cls(int(text[:-1]), _OPEN_END)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))


@dataclasses.dataclass(frozen=True, slots=True)
class Scalar:
    """A value that always takes `size` bytes and is never null."""

    write: Callable[[Writer, Any], None]
    read: Callable[[Reader], Any]
    size: int
    #: The letter of the `struct` module that stands for it; empty if there is none.
    letter: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class String:
    """UTF-8 text; with `compact` its length is a varint in flexible versions."""

    compact: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class BytesType:
    """Opaque bytes, copied when encoded and decoded."""


@dataclasses.dataclass(frozen=True, slots=True)
class RecordsType:
    """Record batches: bytes that are never copied."""


@dataclasses.dataclass(frozen=True, slots=True)
class Struct:
    """The fields of a class declared with `message`, one after the other."""

    message_class: type


@dataclasses.dataclass(frozen=True, slots=True)
class Array:
    """Any number of values of one type, none of them null; a tuple in Python."""

    element: FieldType


FieldType: TypeAlias = Scalar | String | BytesType | RecordsType | Struct | Array

BOOL = Scalar(Writer.write_bool, Reader.read_bool, 1, "?")
INT8 = Scalar(Writer.write_int8, Reader.read_int8, 1, "b")
INT16 = Scalar(Writer.write_int16, Reader.read_int16, 2, "h")
UINT16 = Scalar(Writer.write_uint16, Reader.read_uint16, 2, "H")
INT32 = Scalar(Writer.write_int32, Reader.read_int32, 4, "i")
INT64 = Scalar(Writer.write_int64, Reader.read_int64, 8, "q")
FLOAT64 = Scalar(Writer.write_float64, Reader.read_float64, 8, "d")
UUID = Scalar(Writer.write_uuid, Reader.read_uuid, 16)
STRING = String()
#: A string with a two-byte length even in flexible versions: the header's client id.
LEGACY_STRING = String(compact=False)
BYTES = BytesType()
RECORDS = RecordsType()


def array(element: FieldType | type) -> Array:
    """Declare an array of a type or of a message class."""
    return Array(_field_type(element))


def _field_type(declared: FieldType | type) -> FieldType:
    return Struct(declared) if isinstance(declared, type) else declared


@dataclasses.dataclass(frozen=True, slots=True)
class FieldSpec:
    """The wire properties of a field, as passed to `field`."""

    type: FieldType
    versions: VersionRange
    nullable: VersionRange | None
    tag: int | None
    ignorable: bool


def field(
    type: FieldType | type,  # noqa: A002 - the word of Kafka's schemas
    *,
    versions: str = "0+",
    nullable: str | None = None,
    tag: int | None = None,
    ignorable: bool = False,
    default: Any = dataclasses.MISSING,
) -> Any:
    """Declare a field: its type, and the message versions in which it exists and may be null.

    A tagged field is tagged in all its versions. A field without a default must be passed to the
    constructor.
    """
    spec = FieldSpec(
        _field_type(type),
        VersionRange.parse(versions),
        None if nullable is None else VersionRange.parse(nullable),
        tag,
        ignorable,
    )
    if nullable is not None and isinstance(spec.type, Scalar):
        raise TypeError(f"{spec.type} cannot be null")
    # A repr omits records: they are long, and users' data must not get into logs.
    shown = not isinstance(spec.type, RecordsType)
    return dataclasses.field(default=default, metadata={_SPEC: spec}, repr=shown)


@dataclasses.dataclass(frozen=True, slots=True)
class DeclaredField:
    """A field of a message class."""

    name: str
    spec: FieldSpec
    #: `dataclasses.MISSING` if there is none.
    default: Any


def declared_fields(message_class: type) -> list[DeclaredField]:
    """Return the fields of a message class in declaration order."""
    return [
        DeclaredField(declared.name, declared.metadata[_SPEC], declared.default)
        for declared in dataclasses.fields(message_class)
    ]


class Message:
    """A top-level unit on the wire: a header, a request or a response."""

    __slots__ = ()

    #: The versions that this package supports.
    versions: ClassVar[VersionRange]
    #: The first version with compact encodings and tagged fields.
    flexible_from: ClassVar[int]


class ApiMessage(Message):
    """A request or a response."""

    __slots__ = ()

    api_key: ClassVar[ApiKey]

    def __init_subclass__(cls) -> None:
        """Set the first flexible version to that of the API."""
        super().__init_subclass__()
        # ApiRequest and ApiResponse themselves belong to no API.
        if hasattr(cls, "api_key"):
            cls.flexible_from = cls.api_key.flexible_from

    @property
    def highest_version(self) -> int:
        """The highest version that can represent this message, whatever the peer supports."""
        return self.versions.max


class ApiResponse(ApiMessage):
    """A response. It belongs to the API of its `request`, and has the same versions."""

    __slots__ = ()

    def __init_subclass__(cls, request: type[AnyRequest] | None = None) -> None:
        # `message` makes the class a second time, when it has the attributes.
        if request is not None:
            cls.api_key = request.api_key
            cls.versions = request.versions
        super().__init_subclass__()


#: The response to a request, for functions that return it.
ResponseT = TypeVar("ResponseT", bound=ApiResponse)
ResponseT_co = TypeVar("ResponseT_co", bound=ApiResponse, covariant=True)


class ApiRequest(ApiMessage, Generic[ResponseT_co]):
    """A request. Its type names the class of its response: `ApiRequest["HeartbeatResponse"]`."""

    __slots__ = ()

    @classmethod
    def response_class(cls) -> type[ResponseT_co]:
        """Return the class of the response, which the module of the request declares."""
        [base] = vars(cls)["__orig_bases__"]
        [reference] = get_args(base)
        response: type[ResponseT_co] = vars(sys.modules[cls.__module__])[reference.__forward_arg__]
        return response


AnyRequest: TypeAlias = ApiRequest[ApiResponse]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def message(cls: type[T]) -> type[T]:
    """Make a class of `field` declarations a frozen dataclass with keyword-only arguments.

    A process imports hundreds of messages, but creates and compares few of them. So no class has
    methods compiled for it, as `dataclass` does; only a constructor, once it is called.
    """
    declare = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=True)
    made: Any = declare(cls)
    # With the class, there is a tuple of values even of a class with one field or none.
    made.values_of = attrgetter("__class__", *(each.name for each in dataclasses.fields(made)))
    made.__signature__ = _Signature()
    for method in (_init, _repr, _eq, _hash, _setattr, _delattr, _reduce):
        name = f"_{method.__name__}__"
        if name not in vars(cls):
            setattr(made, name, method)
    message_class: type[T] = made
    return message_class


def _init(self: Any, /, **values: Any) -> None:
    """Compile the constructor of the class, and call it."""
    message_class: Any = type(self)
    message_class.__init__ = _constructor(message_class)
    message_class.__init__(self, **values)


def _constructor(message_class: type) -> Callable[..., None]:
    """Compile a constructor that sets the slots of a message, as fast as Python can."""
    parameters = []
    statements = []
    names: dict[str, Any] = {}
    for declared in declared_fields(message_class):
        name = declared.name
        names[f"set_{name}"] = slot_setter(message_class, name)
        statements.append(f"    set_{name}(self, {name})")
        if declared.default is dataclasses.MISSING:
            parameters.append(name)
        else:
            names[f"default_{name}"] = declared.default
            parameters.append(f"{name}=default_{name}")
    lines = [f"def __init__(self, *, {', '.join(parameters)}):", *statements]
    exec("\n".join(lines), names)  # noqa: S102 - only names of fields are in it
    constructor: Callable[..., None] = names["__init__"]
    constructor.__qualname__ = f"{message_class.__qualname__}.__init__"
    return constructor


class _Signature:
    """What `help` and notebooks show of a constructor that may not be compiled yet."""

    def __get__(self, _message: object, message_class: type) -> object:
        import inspect  # noqa: PLC0415 - for those who read, not for those who send

        empty = inspect.Parameter.empty
        parameters = [
            inspect.Parameter(
                declared.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=empty if declared.default is dataclasses.MISSING else declared.default,
                annotation=declared.type,
            )
            for declared in dataclasses.fields(message_class)
        ]
        return inspect.Signature(parameters, return_annotation=None)


def slot_setter(message_class: type, name: str) -> Callable[[Any, Any], None]:
    """Return what sets a field of a new message, which is frozen for everything else."""
    setter: Callable[[Any, Any], None] = vars(message_class)[name].__set__
    return setter


def _repr(self: Any) -> str:
    shown = [each.name for each in dataclasses.fields(self) if each.repr]
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({values})"


def _eq(self: Any, other: Any) -> Any:
    if other is self:
        # As most fields that are compared with their defaults.
        return True
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self.values_of(self) == self.values_of(other)


def _hash(self: Any) -> int:
    return hash(self.values_of(self))


def _reduce(self: Any) -> tuple[Any, ...]:
    """Copy and pickle by the constructor, since the fields cannot be set afterwards."""
    values = {declared.name: getattr(self, declared.name) for declared in dataclasses.fields(self)}
    return _restored, (type(self), values)


def _restored(message_class: Any, values: dict[str, Any]) -> Any:
    return message_class(**values)


def _setattr(_self: Any, name: str, _value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(_self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
