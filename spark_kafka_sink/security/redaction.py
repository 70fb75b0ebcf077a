"""Hiding secrets in texts from outside: messages of a broker or an endpoint, and paths.

A peer that quotes what it received may quote it in another encoding: base64 of a header, a URL's
percent-encoding, JSON or Python escapes, hexadecimal digits, or several of them nested. Whatever is
found is replaced; if a text contains a secret whose position cannot be determined, the whole text
is replaced.

The peer chooses the text, so every step takes time proportional to its length. The text is decoded
once for all secrets, and again only after one was found: a client may have many.
"""

from __future__ import annotations

import base64
import html
import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, quote_plus, unquote_plus

from spark_kafka_sink.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

HIDDEN: Final = "[hidden]"
#: A shorter secret is hidden as it is, but not searched for in what looks like base64, where it
#: would occur by chance in any text.
_SHORTEST: Final = 4
#: The number of nested encodings that are searched.
_DEPTH: Final = 3
#: The most characters, roughly, that one character of a secret takes in a text, and the most
#: characters that are searched.
_EXPANSION: Final = 12
_MAX_SEARCHED: Final = 1 << 16
#: Base64 in either alphabet, and hexadecimal digits.
_RUN: Final = re.compile(r"[A-Za-z0-9+/_-]{4,}={0,2}")
_HEX: Final = re.compile(r"[0-9a-fA-F]{8,}")
_BASE64_GROUP: Final = 4
_URL_SAFE: Final = str.maketrans("-_", "+/")
#: Separators within a long encoding: line breaks (MIME), and punctuation between digits.
_SEPARATORS: Final = re.compile(r"\\[rn]|[\s:,-]")
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t"}
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)


def hide(text: str, secrets: Collection[str]) -> str:
    """Return a text with all secrets hidden, however they are encoded in it."""
    shortest = min((len(secret) for secret in secrets if len(secret) >= _SHORTEST), default=0)
    decoded: tuple[str, str] | None = None
    # If one secret contains another, the longer one is hidden first.
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        if len(secret) < _SHORTEST:
            text = text.replace(secret, HIDDEN)
            continue
        forms = _forms(secret)
        for form in forms:
            text = text.replace(form, HIDDEN)
        if decoded is None or decoded[0] != text:
            decoded = text, _decoded_text(text, shortest)
        if any(form in decoded[1] for form in forms):
            text = _hide_encoded(text, forms)
    return text


def quoted(text: str, secrets: Collection[str], longest: int) -> str:
    """Return a peer's text for an error: no secrets, at most `longest` characters, all printable.

    Secrets are searched for beyond the part that is shown, and the end of the searched text is not
    shown, since it may be part of a secret.
    """
    margin = _EXPANSION * max(map(len, secrets), default=0)
    searched = text[: min(longest + margin, _MAX_SEARCHED)]
    shown = hide(searched, secrets)
    if len(searched) < len(text):
        shown = f"{shown[: min(longest, max(len(shown) - margin, 0))]}..."
    elif len(shown) > longest:
        shown = f"{shown[:longest]}..."
    return "".join(character if character.isprintable() else "?" for character in shown)


@contextmanager
def errors_hiding(texts: Collection[str]) -> Iterator[None]:
    """Remove the texts from the message of a KafkaError that the block raises."""
    try:
        yield
    except KafkaError as error:
        error.args = (hide(str(error), texts),)
        raise


def _hide_encoded(text: str, forms: tuple[str, ...]) -> str:
    """Hide what is a form of a secret once it is decoded."""
    shortest = len(forms[-1])
    text = _RUN.sub(
        lambda run: HIDDEN if _is_within(_decoded(run[0], shortest), forms, _DEPTH) else run[0],
        text,
    )
    return HIDDEN if _is_within(_transformed(text), forms, _DEPTH) else text


def _decoded_text(text: str, shortest: int) -> str:
    """Return all texts in which `_hide_encoded` searches, for secrets of at least that length."""
    level = [*_all_decoded(text, shortest), *_transformed(text)]
    texts = [*level]
    for _ in range(_DEPTH - 1):
        level = [part for encoded in level for part in _all_decoded(encoded, shortest)]
        texts += level
    return "\0".join(texts)


def _all_decoded(text: str, shortest: int) -> Iterator[str]:
    for run in _RUN.finditer(text):
        yield from _decoded(run[0], shortest)


def _forms(secret: str) -> tuple[str, ...]:
    """Return a secret as written in URLs, JSON, Python, HTML and hexadecimal, longest first."""
    data = secret.encode("utf-8", "surrogatepass")
    percent = {quote(data), quote(data, safe=""), quote_plus(data)}
    forms = {
        secret,
        *percent,
        *(re.sub(r"%..", lambda escape: escape[0].lower(), form) for form in percent),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
        repr(data)[2:-1],
        html.escape(secret),
        data.hex(),
        data.hex().upper(),
    }
    return tuple(sorted(forms, key=len, reverse=True))


def _is_within(texts: Iterator[str], forms: tuple[str, ...], depth: int) -> bool:
    """Return whether any of the texts contains a form of a secret, or an encoding of one."""
    return any(
        any(form in text for form in forms)
        or (
            depth > 1
            and any(
                _is_within(_decoded(run[0], len(forms[-1])), forms, depth - 1)
                for run in _RUN.finditer(text)
            )
        )
        for text in texts
    )


def _decoded(run: str, shortest: int) -> Iterator[str]:
    """Yield a run decoded as base64 and as hexadecimal digits, from every possible start.

    A run that is too short for the shortest form of a secret is skipped.
    """
    if len(run) <= shortest:
        return
    digits = run.rstrip("=").translate(_URL_SAFE)
    for start in range(_BASE64_GROUP):
        rest = digits[start:]
        # A single digit at the end is less than a byte.
        whole = rest[:-1] if len(rest) % _BASE64_GROUP == 1 else rest
        padded = whole + "=" * (-len(whole) % _BASE64_GROUP)
        yield base64.b64decode(padded).decode("utf-8", "replace")
    for match in _HEX.finditer(run):
        for start in range(2):
            rest = match[0][start:]
            yield bytes.fromhex(rest[: len(rest) // 2 * 2]).decode("utf-8", "replace")


def _transformed(text: str) -> Iterator[str]:
    """Yield the text without what may split an encoding: escapes, line breaks, separators."""
    yield unquote_plus(text)
    yield html.unescape(text)
    unescaped = _ESCAPE.sub(_unescaped, text)
    yield unescaped
    # Escapes may stand for the bytes of UTF-8.
    yield unescaped.encode("latin-1", "replace").decode("utf-8", "replace")
    yield _SEPARATORS.sub("", text)


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2]
    return chr(int(code, 16)) if code else _CONTROLS.get(escape[3], escape[3])
