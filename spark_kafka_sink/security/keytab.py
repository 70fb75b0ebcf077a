"""The principals of a keytab, MIT's file of Kerberos keys, so that errors can name them.

If a keytab is missing, has another format or belongs to another principal, the library only says
that there are no credentials. Keys are skipped, unread. Layout (version 2, all big-endian):

    0x0502, then entries: size:i32 (negative: a hole), components:u16, realm, component...,
    name type:u32, timestamp:u32, ...; realm and components: length:u16 and bytes
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_VERSION: Final = b"\x05\x02"
_SIZE: Final = struct.Struct(">i")
_LENGTH: Final = struct.Struct(">H")


def keytab_principals(data: bytes) -> list[str]:
    """Return the distinct principals in a keytab, as `name@REALM`, in file order.

    Raises ValueError if it is not a keytab, or is truncated.
    """
    if not data.startswith(_VERSION):
        raise ValueError("it is not a keytab")
    try:
        return list(dict.fromkeys(_principals(memoryview(data))))
    except (struct.error, UnicodeDecodeError):
        raise ValueError("it is a truncated keytab") from None


def _principals(data: memoryview) -> Iterator[str]:
    position = len(_VERSION)
    while position < len(data):
        (size,) = _SIZE.unpack_from(data, position)
        position += _SIZE.size
        if size > 0:
            yield _principal(data[position : position + size])
        elif size == 0:
            # The rest of the file was never written.
            return
        position += abs(size)


def _principal(entry: memoryview) -> str:
    (count,) = _LENGTH.unpack_from(entry, 0)
    position = _LENGTH.size
    texts = []
    for _ in range(count + 1):
        (length,) = _LENGTH.unpack_from(entry, position)
        position += _LENGTH.size
        text = entry[position : position + length]
        if len(text) < length:
            raise struct.error("an entry ends early")
        texts.append(bytes(text).decode())
        position += length
    realm, *components = texts
    return f"{'/'.join(components)}@{realm}"
