"""The operator's command escapes text written by others before it prints it."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink import transactions
from spark_kafka_sink.admin.records import KeyValue
from spark_kafka_sink.display import printable
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once.errors import MixedError
from spark_kafka_sink.exactly_once.ledger_records import Claim
from tests.support.exactly_once.exactly_once_world import QUERY

#: A window title, a forged line, a right-to-left override, DEL, a C1 control, a lone surrogate.
HOSTILE = "\x1b]0;title\x07\nprefix forged\u202e\x7f\x9b2J\ud800"
SHOWN = r"\x1b]0;title\x07\nprefix forged\u202e\x7f\x9b2J\ud800"
#: The same without the surrogate, which UTF-8, and so Kafka, cannot encode.
HOSTILE_NAME, SHOWN_NAME = HOSTILE[:-1], SHOWN[: -len(r"\ud800")]
#: What a driver of that name writes to the ledger as the claimant.
CLAIMED_BY = "?]0;title??prefix forged???2J"


def test_names_from_the_cluster_are_printed_with_escapes(world, run):
    """Write ids and transactional ids are printed with escapes, and claims are printable text."""
    driver = world.driver(name=HOSTILE_NAME)
    plan = driver.plan(HOSTILE_NAME)
    driver.commit(plan, world.worker.run(plan), 0, HOSTILE_NAME)
    name = f"stranger {HOSTILE_NAME} {world.prefix}"
    stranger = world.admin.init_producer_id(name, transaction_timeout_ms=60_000, timeout=30)
    world.admin.write_to_transaction(
        name,
        stranger,
        world.places[1],
        [KeyValue(b"k", b"v")],
        now_ms=int(world.clock() * 1000),
        timeout=30,
    )
    code, text = run("list", "--topic", world.data)
    assert 0 == code
    assert f"claimed by {CLAIMED_BY} at " in text
    assert f"  write {SHOWN_NAME}: batch 0 is done" in text
    assert f"by stranger {SHOWN_NAME} {world.prefix} (producer id" in text
    assert all(line.isprintable() for line in text.split("\n"))
    code, text = run("list", "--topic", world.data, "--json")
    assert CLAIMED_BY == json.loads(text)["prefixes"][0]["claim"]["claimed_by"]
    assert 0 == code
    assert all(line.isprintable() for line in text.split("\n"))


def test_errors_are_printed_with_escapes(monkeypatch, capsys):
    """Error messages are printed with escapes."""

    def refuse(_: object) -> None:
        raise KafkaError(f"the broker says {HOSTILE}")

    monkeypatch.setattr(transactions, "DriverClient", refuse)
    assert 1 == transactions.main(["list", "--bootstrap-server", "127.0.0.1:1"])
    assert f"error: the broker says {SHOWN}\n" == capsys.readouterr().err


def test_warnings_are_printed_with_escapes(monkeypatch, capsys):
    """Log messages of the command are printed to standard error with escapes."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])

    def warn(_: object) -> None:
        logging.getLogger("spark_kafka_sink").warning("committing %s", HOSTILE)
        raise KafkaError("refused")

    monkeypatch.setattr(transactions, "DriverClient", warn)
    transactions.main(["list", "--bootstrap-server", "127.0.0.1:1"])
    assert f"committing {SHOWN}\nerror: refused\n" == capsys.readouterr().err


def _abort(world):
    world.worker.begin(world.driver().plan(), 0).write("a")
    return ["abort"]


def _roll_forward(world):
    world.decide_and_die()
    return ["roll-forward"]


def _resolve(world):
    world.mix()
    with pytest.raises(MixedError):
        world.driver().plan()
    return ["resolve", "--write-id", QUERY, "--skip"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("prepare", [_abort, _roll_forward, _resolve])
def test_a_full_disk_does_not_hide_a_change(world, monkeypatch, capsys, prepare):
    """The error says whether a change was made whose description cannot be written."""
    where = ["--bootstrap-server", world.site.bootstrap_servers, "--ledger-topic", world.ledger]
    command = [*prepare(world), *where, "--prefix", world.prefix]
    codes = []
    for options in (["--dry-run"], []):
        with Path("/dev/full").open("w", encoding="utf-8") as full, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", full)
            codes.append(transactions.main([*command, *options]))
    reason = f"output could not be written: {os.strerror(errno.ENOSPC)}"
    assert [4, 4] == codes
    assert [f"error: the {reason}", f"error: the change was made, but the {reason}"] == (
        capsys.readouterr().err.splitlines()
    )


@given(st.text())
def test_printable_text_is_unchanged(text):
    """Printable text is unchanged, and escaped ASCII text can be converted back."""
    shown = printable(text)
    assert shown.isprintable()
    assert text.isprintable() == (shown == text)
    if "\\" not in text and text.isascii():
        assert text == shown.encode("ascii").decode("unicode_escape")


@pytest.mark.parametrize(
    ("time", "options"),
    [
        *((time, []) for time in (1e300, float("inf"), float("nan"), 10**18, -(10**18), "a", None)),
        (1e300, ["--json"]),
    ],
)
def test_an_invalid_time_in_the_ledger_ends_the_command(tv2, monkeypatch, capsys, time, options):
    """An invalid time in the ledger ends the command with an error and exit code 1."""
    report = SimpleNamespace(
        prefix="p",
        claim=Claim(1, time, "somebody"),
        writes={},
        unreadable=(),
        open_transactions=(),
        partitions=set(),
        needs_an_operator=False,
    )
    monkeypatch.setattr(transactions, "read_all_prefixes", lambda *_: {"p": None})
    monkeypatch.setattr(transactions, "inspect", lambda *_, **__: report)
    where = ["--bootstrap-server", tv2.site.bootstrap_servers]
    assert 1 == transactions.main(["list", *where, *options])
    said = capsys.readouterr()
    sentence = f"error: a ledger entry has {time!r} instead of milliseconds since 1970\n"
    assert ("", sentence) == (said.out, said.err)


def test_no_secret_is_printed(tmp_path, capsys):
    """No secret of a configuration file is printed, even if the file is malformed."""
    file = tmp_path / "client.properties"
    file.write_text(
        "bootstrap.servers=127.0.0.1:1\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="me" password="hush-hush" nonsense;\nssl.key.password=hush-hush\n'
    )
    code = transactions.main(["list", "--command-config", str(file), "--timeout", "0.3"])
    said = capsys.readouterr()
    assert code in {1, 2}
    assert "hush-hush" not in said.out + said.err
