"""Takes secrets out of texts that come from outside: what a broker or an endpoint said, a path.

A peer that quotes what it was sent may quote it in another encoding: base64 of a header, a URL's
percent signs, JSON's or Python's escapes, hexadecimal digits, or several of them on top of one
another. What is found is replaced; where a secret is in a text but its place cannot be made out,
nothing of the text is left.

The peer chooses the text, so every step takes time in proportion to its length.
"""

from __future__ import annotations

import base64
import html
import json
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, quote_plus, unquote_plus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

HIDDEN: Final = "[hidden]"
#: A shorter secret is hidden as it stands, but not searched for in what looks like base64: any text
#: would have it by chance.
_SHORTEST: Final = 4
#: How many encodings may lie on top of one another.
_DEPTH: Final = 3
#: The most characters that one character of a secret takes in a text, roughly, and the most that
#: are searched in all.
_EXPANSION: Final = 12
_MOST_SEARCHED: Final = 1 << 16
#: Base64 in either alphabet, and hexadecimal digits.
_RUN: Final = re.compile(r"[A-Za-z0-9+/_-]{4,}={0,2}")
_HEX: Final = re.compile(r"[0-9a-fA-F]{8,}")
_BASE64_GROUP: Final = 4
_URL_SAFE: Final = str.maketrans("-_", "+/")
#: What separates the bytes of a long encoding: line breaks (MIME), and signs between digits.
_SEPARATORS: Final = re.compile(r"\\[rn]|[\s:,-]")
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t"}
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)


def hide(text: str, secrets: Collection[str]) -> str:
    """Return a text without secrets, however they are encoded in it."""
    # Of two secrets of which one contains the other, the longer one goes first.
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = _hide(text, secret)
    return text


def quoted(text: str, secrets: Collection[str], longest: int) -> str:
    """Return what may be shown of a peer's text: no secret, at most so much, all of it printable.

    Secrets are looked for beyond what is shown, and the end of what was searched is not shown: it
    may be a part of a secret.
    """
    margin = _EXPANSION * max(map(len, secrets), default=0)
    searched = text[: min(longest + margin, _MOST_SEARCHED)]
    shown = hide(searched, secrets)
    if len(searched) < len(text):
        shown = f"{shown[: min(longest, max(len(shown) - margin, 0))]}..."
    elif len(shown) > longest:
        shown = f"{shown[:longest]}..."
    return "".join(character if character.isprintable() else "?" for character in shown)


def _hide(text: str, secret: str) -> str:
    if len(secret) < _SHORTEST:
        return text.replace(secret, HIDDEN)
    forms = _forms(secret)
    for form in forms:
        text = text.replace(form, HIDDEN)
    text = _RUN.sub(
        lambda run: HIDDEN if _is_within(_decoded(run[0], forms[-1]), forms, _DEPTH) else run[0],
        text,
    )
    return HIDDEN if _is_within(_transformed(text), forms, _DEPTH) else text


def _forms(secret: str) -> tuple[str, ...]:
    """Write a secret as URLs, JSON, Python and HTML do; the longest forms first."""
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
    """Return whether one of the texts has a form of a secret, or an encoding of one."""
    return any(
        any(form in text for form in forms)
        or (
            depth > 1
            and any(
                _is_within(_decoded(run[0], forms[-1]), forms, depth - 1)
                for run in _RUN.finditer(text)
            )
        )
        for text in texts
    )


def _decoded(run: str, shortest: str) -> Iterator[str]:
    """Decode a run as base64 and as hexadecimal digits, wherever in it the encoding begins.

    A run that has no room for the shortest form of a secret is left alone.
    """
    if len(run) <= len(shortest):
        return
    digits = run.rstrip("=").translate(_URL_SAFE)
    for start in range(_BASE64_GROUP):
        rest = digits[start:]
        # A single digit at the end is less than a byte.
        whole = rest[:-1] if len(rest) % _BASE64_GROUP == 1 else rest
        padded = whole + "=" * (-len(whole) % _BASE64_GROUP)
        yield base64.b64decode(padded).decode("utf-8", "replace")
    for found in _HEX.finditer(run):
        for start in range(2):
            rest = found[0][start:]
            yield bytes.fromhex(rest[: len(rest) // 2 * 2]).decode("utf-8", "replace")


def _transformed(text: str) -> Iterator[str]:
    """Undo what may tear an encoding into pieces: escapes, line breaks and separators."""
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
