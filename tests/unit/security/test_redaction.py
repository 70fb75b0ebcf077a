"""Secrets in texts from outside, in whatever encoding they appear."""

from __future__ import annotations

import base64
import html
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.security import redaction
from spark_kafka_sink.security.redaction import HIDDEN, hide, quoted

SECRET = "planted secret/+=ä\"'\\\n{z"  # noqa: S105


def base64_of(text):
    return base64.b64encode(text.encode()).decode()


ENCODINGS = {
    "as it is": lambda it: it,
    "base64": base64_of,
    "base64 for URLs": lambda it: base64.urlsafe_b64encode(it.encode()).decode(),
    "base64 without padding": lambda it: base64_of(it).rstrip("="),
    "base64 behind one character": lambda it: base64_of(f"a{it}"),
    "base64 behind two characters": lambda it: base64_of(f"ab{it}c"),
    "base64 behind three characters": lambda it: base64_of(f"abc{it}"),
    "base64 behind a slash": lambda it: f"Basic/{base64_of(it)}",
    "base64 in lines": lambda it: base64.encodebytes(f"{'id' * 30}{it}".encode()).decode(),
    "base64 in a URL": lambda it: quote(base64_of(it), safe=""),
    "base64 of base64": lambda it: base64_of(base64_of(it)),
    "base64 of a form": lambda it: base64_of(quote_plus(f"id:{it}")),
    "a URL": quote,
    "a form": quote_plus,
    "a form in lower case": lambda it: quote_plus(it).lower(),
    "a URL of escapes alone": lambda it: "".join(f"%{byte:02X}" for byte in it.encode()),
    "hexadecimal": lambda it: it.encode().hex(),
    "hexadecimal in upper case": lambda it: it.encode().hex().upper(),
    "hexadecimal with colons": lambda it: it.encode().hex(":"),
    "hexadecimal of base64": lambda it: base64_of(it).encode().hex(),
    "JSON": json.dumps,
    "JSON in Unicode": lambda it: json.dumps(it, ensure_ascii=False),
    "JSON in JSON": lambda it: json.dumps(json.dumps(it)),
    "Python's repr": repr,
    "Python's ascii": ascii,
    "Python's bytes": lambda it: repr(it.encode()),
    "escapes of characters": lambda it: "".join(f"\\u{ord(character):04x}" for character in it),
    "escapes of bytes": lambda it: "".join(f"\\x{byte:02x}" for byte in it.encode()),
    "HTML": html.escape,
}


@pytest.mark.parametrize("encoding", list(ENCODINGS))
@pytest.mark.parametrize("secret", [SECRET, "hunter2", "abcd", "p" * 500])
def test_a_secret_is_hidden_in_every_encoding(encoding, secret):
    """A header is base64, a URL has percent signs, a log has escapes."""
    encoded = ENCODINGS[encoding](secret)
    shown = hide(f"refused: {encoded} (no)", [secret])
    assert HIDDEN in shown
    assert encoded not in shown
    assert secret not in shown


@pytest.mark.parametrize(
    "encoding",
    [
        "as it is",
        "a URL",
        "a form",
        "a form in lower case",
        "JSON",
        "JSON in Unicode",
        "Python's repr",
        "Python's bytes",
        "HTML",
        "hexadecimal",
        "hexadecimal in upper case",
    ],
)
def test_only_the_whole_secret_is_hidden(encoding):
    """If it is written in one of the usual ways, the rest of the text is unchanged."""
    encoded = ENCODINGS[encoding](SECRET)
    before, _, after = encoded.partition(encoded.strip("b'\""))
    shown = f"user <{before}{HIDDEN}{after}> is unknown"
    assert shown == hide(f"user <{encoded}> is unknown", [SECRET])


def test_a_secret_is_hidden_under_three_nested_encodings():
    """For example, a log quotes in base64 a header that contains base64."""
    assert f"no {HIDDEN}!" == hide(f"no {base64_of(base64_of(base64_of(SECRET)))}!", [SECRET])
    mixed = base64_of(base64_of(SECRET).encode().hex())
    assert f"no {HIDDEN}!" == hide(f"no {mixed}!", [SECRET])
    four = f"no {base64_of(base64_of(base64_of(base64_of(SECRET))))}!"
    assert four == hide(four, [SECRET])


@pytest.mark.parametrize(
    ("secret", "encoded"),
    [
        # It takes 4 characters as it is, and at least 16 in any other encoding.
        ("ääää", base64_of("ääää")),
        ("ääää", base64_of(base64_of("ääää"))),
        # One more digit than base64 has whole bytes.
        ("abcdef", f"{base64_of('abcdef')}A"),
        # In upper and lower case, and after an unrelated digit.
        ("jklmno", "f6A6b6C6d6E6f"),
    ],
)
def test_a_secret_is_hidden_within_a_run_of_digits(secret, encoded):
    """Wherever its encoding begins and ends in the run, and however short it is."""
    assert f"no {HIDDEN}!" == hide(f"no {encoded}!", [secret])


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=4, max_size=40).filter(
        lambda it: it not in HIDDEN
    ),
    st.text(max_size=40),
    st.sampled_from(["as it is", "base64", "hexadecimal", "a form", "base64 for URLs"]),
)
def test_any_secret_is_hidden(secret, before, encoding):
    """Any secret is hidden, whatever precedes it."""
    encoded = ENCODINGS[encoding](secret)
    assert encoded not in hide(f"{before} {encoded}", [secret])


def test_text_without_secrets_is_unchanged():
    """A text without secrets is unchanged, including any base64."""
    text = f"realm=events, detail={base64_of('nothing to hide here')}, id 0123456789abcdef: a+b%20c"
    assert text == hide(text, [SECRET, "", "hunter2"])


@pytest.mark.parametrize("secret", ["x", "xy", "xyz"])
def test_a_short_secret_is_hidden_only_unencoded(secret):
    """It is not searched for in what looks like base64, where it would occur by chance."""
    assert f"no {HIDDEN}." == hide(f"no {secret}.", [secret])
    assert "realmofevents" == hide("realmofevents", [secret])


def test_the_longer_of_two_secrets_is_hidden_first():
    """Otherwise the rest of a secret that contains another one would be shown."""
    assert f"no {HIDDEN}" == hide("no planted-secret", ["planted", "planted-secret"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("nothing to hide", 1), ("hunter2", 2), (f"no {base64_of('hunter2')}", 2)],
)
def test_a_text_is_decoded_once_for_all_secrets(monkeypatch, text, expected):
    """Decoding takes the most time: it is repeated for a secret that was found, not for each."""
    count = 0

    def counted(text):
        nonlocal count
        count += 1
        return transformed(text)

    transformed = redaction._transformed
    monkeypatch.setattr(redaction, "_transformed", counted)
    hidden = hide(text, [*(f"other secret {number}" for number in range(50)), "hunter2"])
    assert "hunter2" not in hidden
    assert base64_of("hunter2") not in hidden
    assert expected == count


@pytest.mark.parametrize("encoding", ["base64", "hexadecimal", "a form", "base64 of base64"])
def test_several_secrets_are_hidden_in_one_text(encoding):
    """Each is found, whether or not others were found before it."""
    secrets = ["hunter2", "correct horse", "x" * 50, "another one", "abcd"]
    texts = [ENCODINGS[encoding](secret) for secret in secrets]
    assert " and ".join([HIDDEN] * 5) == hide(" and ".join(texts), secrets)


def test_quoted_text_is_short_and_printable():
    """A peer's text is cut, printable, and never ends within a secret."""
    assert "a?[31mb" == quoted("a\x1b[31mb", (), 100)
    assert "a" * 10 == quoted("a" * 10, (), 10)
    assert f"{'a' * 10}..." == quoted("a" * 11, (), 10)
    assert f"{'a' * 10}..." == quoted("a" * 20, (), 10)
    assert f"{'a' * 5}[hidd..." == quoted(f"{'a' * 5}hunter2", ["hunter2"], 10)
    assert f"{'a' * 100}..." == quoted("a" * 200, ["bcd"], 100)
    secret = "planted-secret"  # noqa: S105
    for length in range(1000):
        shown = quoted(f"{secret * length}{'b' * 1000}", [secret], 100)
        assert "planted" not in shown
        assert len(shown) <= 103


def test_only_64_kib_are_searched_and_their_end_is_not_shown():
    """The last part of the searched 64 KiB, which may be part of a secret, is not shown."""
    text = "a" * 70_000
    assert f"{'a' * 65_536}..." == quoted(text, (), 70_000)
    assert f"{'a' * (65_536 - 12 * 5)}..." == quoted(text, ["bcd", "bcdef"], 70_000)
    assert "..." == quoted(text, ["b" * 6_000], 70_000)


@pytest.mark.parametrize("text", ["A", "\\", "%", "&#x0", "aGVs", "70:", " planted", "\\u00"])
@pytest.mark.parametrize("secret", [SECRET, "a" * 50 + "b", "\\" * 50 + "x", "%" * 6])
def test_the_search_does_not_backtrack(text, secret):
    """Neither the peer's text nor the secret makes the search backtrack."""
    long = text * (100_000 // len(text))
    assert len(quoted(long, [secret], 2_000)) <= 2_003
