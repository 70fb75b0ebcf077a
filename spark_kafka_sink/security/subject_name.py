"""The subject of a certificate as Java writes it, which is the name of a client of TLS.

The format is that of `X500Principal.getName()` (RFC 2253): the parts of the name in reverse order.
A part whose type has no short name, or whose value is no text, is an object identifier with the hex
digits of its encoding.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: The version of a certificate, which comes first if there is one.
_VERSION: Final = 0xA0
#: The fields between the version and the subject: serial number, algorithm, issuer and validity.
_FIELDS_BEFORE_SUBJECT: Final = 4
_LONG_LENGTH: Final = 0x80

_KEYWORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "2.5.4.3": "CN",
        "2.5.4.6": "C",
        "2.5.4.7": "L",
        "2.5.4.8": "ST",
        "2.5.4.9": "STREET",
        "2.5.4.10": "O",
        "2.5.4.11": "OU",
        "0.9.2342.19200300.100.1.1": "UID",
        "0.9.2342.19200300.100.1.25": "DC",
    }
)
#: The encodings of each kind of text.
_ENCODINGS: Final[Mapping[int, str]] = MappingProxyType(
    {
        0x0C: "utf-8",
        0x13: "ascii",
        0x14: "latin-1",
        0x16: "ascii",
        0x1B: "ascii",
        0x1C: "utf-32-be",
        0x1E: "utf-16-be",
    }
)
_ESCAPED: Final = frozenset(',=+<>#;"\\')


class _Value(NamedTuple):
    """One value in DER: its tag, its content, and all of its bytes."""

    tag: int
    content: bytes
    encoded: bytes


def subject_name(certificate: bytes) -> str:
    """Return the subject of a certificate in DER. Raises ValueError if it cannot be read."""
    try:
        [signed, *_] = _values(certificate)
        [body, *_] = _values(signed.content)
        fields = [value for value in _values(body.content) if value.tag != _VERSION]
        subject = fields[_FIELDS_BEFORE_SUBJECT]
        parts = [_part(part.content) for part in _values(subject.content)]
    except (IndexError, ValueError) as error:
        raise ValueError(f"the subject of a certificate cannot be read: {error}") from error
    return ",".join(reversed(parts))


def _part(content: bytes) -> str:
    return "+".join(_attribute(attribute.content) for attribute in _values(content))


def _attribute(content: bytes) -> str:
    key, value = _values(content)
    identifier = _identifier(key.content)
    keyword = _KEYWORDS.get(identifier)
    encoding = _ENCODINGS.get(value.tag)
    if keyword is None or encoding is None:
        return f"{keyword or identifier}=#{value.encoded.hex()}"
    return f"{keyword}={_escape(value.content.decode(encoding))}"


def _escape(text: str) -> str:
    escaped = "".join("\\" + letter if letter in _ESCAPED else letter for letter in text)
    escaped = escaped.replace("\0", "\\00")
    middle = escaped.strip(" \r")
    if not middle:
        return "".join("\\" + letter for letter in escaped)
    before, after = escaped.split(middle, 1)
    return (
        "".join(("\\" + letter) for letter in before)
        + middle
        + "".join("\\" + letter for letter in after)
    )


def _identifier(content: bytes) -> str:
    """Return an object identifier with dots."""
    numbers: list[int] = []
    number = 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _values(encoded: bytes) -> Iterator[_Value]:
    """Split DER into its values, with tags of one byte. Raises ValueError if it is cut short."""
    position = 0
    while position < len(encoded):
        start = position
        tag, length = encoded[position], encoded[position + 1]
        position += 2
        if length & _LONG_LENGTH:
            size = length & ~_LONG_LENGTH
            length = int.from_bytes(encoded[position : position + size])
            position += size
        content = encoded[position : position + length]
        if len(content) < length:
            raise ValueError("it is cut short")
        position += length
        yield _Value(tag, content, encoded[start:position])
