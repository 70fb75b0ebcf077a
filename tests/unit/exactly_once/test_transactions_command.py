"""The operator's command on what drivers and tasks have left behind."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys

import pytest

from spark_kafka_sink import transactions
from spark_kafka_sink.admin.records import KeyValue
from spark_kafka_sink.config.sink_options import DEFAULT_LEDGER_TOPIC
from spark_kafka_sink.devbroker.net.faults import AnswerError, NeverAnswer
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once.errors import MixedError, OvertakenError
from spark_kafka_sink.exactly_once.ledger_records import (
    Claim,
    WriteRecord,
    encode_claim,
    encode_write,
)
from spark_kafka_sink.exactly_once.transitions import Write, WriteState
from spark_kafka_sink.exactly_once.two_phase_commit import Point
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.exactly_once.exactly_once_world import (
    QUERY,
    TRANSACTION_TIMEOUT_MS,
    CrashError,
    Worker,
    each_once,
    rows,
)
from tests.support.faults.interrupts import interrupt, needs_signals
from tests.support.network.leaps import leap_at_first_contact

_ENDED = WriteRecord(write=Write(0, 1, WriteState.DONE, -1), updated_at_ms=5, expires_at_ms=2**42)


def _json(answer):
    code, text = answer
    assert code in {0, 3}
    return json.loads(text)


def _orphan(world, *values):
    """Leave a task's transaction open and return it."""
    return world.worker.begin(world.driver().plan(), 0).write(*(values or ("a", "b"))).transaction


# --- looking


def test_list_shows_which_producer_holds_back_consumers(world, run):
    """`list` shows the held-back partition with its offsets, and the producer with its ids."""
    world.finish(0)
    orphan = _orphan(world)
    code, text = run("list")
    assert 0 == code
    assert f"write {QUERY}: batch 0 is done" in text
    assert re.search(
        rf"{world.data}-0 at offset 4 of 6 \(2 behind\) by {orphan.transactional_id} \(producer id "
        rf"{orphan.producer.producer_id}, epoch {orphan.producer.epoch}\), open for \d+ s",
        text,
    )
    [held] = _json(run("list", "--json"))["held_back"]
    assert (world.data, 0, 4, 6) == (
        held["topic"],
        held["partition"],
        held["last_stable_offset"],
        held["high_watermark"],
    )
    [holder] = held["holders"]
    assert orphan.transactional_id == holder["transactional_id"]
    assert 4 == holder["start_offset"]


def test_a_prefix_without_ledger_entries_is_reported_as_unknown(world, run):
    """A prefix without ledger entries, probably mistyped, is reported as unknown."""
    world.finish(0)
    unknown = "the ledger has no entries of this prefix (`list` shows all prefixes)"
    assert (0, f"nothing to abort under mistyped: {unknown}\n") == run("abort", prefix="mistyped")
    code, text = run("abort", "--dry-run", prefix="mistyped")
    assert (0, f"nothing to abort under mistyped: {unknown}\n") == (code, text)
    assert f"prefix mistyped: not claimed; {unknown}" in run("describe", prefix="mistyped")[1]
    assert "no entries of this prefix" not in run("describe")[1] + run("abort")[1]


def test_nothing_is_held_back_after_a_finished_batch(world, run):
    """After a finished batch, no partition is held back and no transaction is open."""
    world.finish(0)
    world.visible()
    code, text = run("list", "--topic", world.data)
    assert (0, True) == (code, f"consumers, nor do other transactions in {world.data}\n" in text)
    code, text = run("list")
    assert (0, True) == (code, "no read_committed consumers; --topic checks all" in text)
    [report] = _json(run("describe", "--json"))["prefixes"]
    assert ([], "done") == (report["open_transactions"], report["writes"][0]["state"])


def test_list_and_describe_do_not_disturb_a_driver(world, run):
    """`list` and `describe` do not disturb a driver between its plan and its commit."""
    driver = world.driver()
    plan = driver.plan()
    prepared = world.worker.run(plan)
    assert 0 == run("list")[0]
    assert 0 == run("describe")[0]
    driver.commit(plan, prepared)
    assert each_once(0) == world.visible()


def test_without_a_prefix_all_prefixes_are_listed(world, run):
    """Without --prefix, `list` shows every prefix in the ledger."""
    world.finish(0)
    longer = f"{world.prefix}.eu"
    world.driver(prefix=longer).plan()
    reports = _json(run("list", "--json", prefix=None))["prefixes"]
    assert [world.prefix, longer] == [report["prefix"] for report in reports]


@pytest.mark.parametrize("what", ["claim", "write", "ended write"])
def test_an_unreadable_entry_does_not_hide_the_others(world, capsys, what):
    """An unreadable entry is reported with its offset, and all other entries are shown."""
    world.finish(0)
    bad = f"{world.prefix}.bad"
    [(key, value)] = encode_write(bad, "job", _ENDED)
    write_id = "job"
    if what == "claim":
        key, value = encode_claim(bad, Claim(1, 1, "me"))
        write_id = None
    forged = value.replace(b":1,", b":true,", 1) if what == "ended write" else b"\x01{}"
    world.forge((key, value), *encode_write(bad, "another", _ENDED))
    offset = world.forge((key, forged))
    where = ["--bootstrap-server", world.site.bootstrap_servers, "--ledger-topic", world.ledger]
    assert 1 == transactions.main(["list", *where])
    said = capsys.readouterr()
    assert f"prefix {world.prefix}: generation" in said.out
    claimed = "not claimed" if write_id else "its claim cannot be read"
    assert (
        f"prefix {bad}: {claimed}\n"
        "  unreadable entries, not shown: 1\n"
        "  write another: batch 0 is done"
    ) in said.out
    entry = "write job" if write_id else "the claim"
    assert (
        f"warning: an entry of prefix {bad} is not shown: "
        f"{world.ledger}-0, offset {offset}, {entry}: "
    ) in said.err
    assert 1 == transactions.main(["list", *where, "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert [[QUERY], ["another"]] == [
        [write["write_id"] for write in report["writes"]] for report in answer["prefixes"]
    ]
    [entry] = answer["unreadable"]
    assert (bad, world.ledger, 0, offset, write_id) == tuple(
        entry[name] for name in ("prefix", "topic", "partition", "offset", "write_id")
    )
    assert "cannot be read" in entry["reason"]


def test_a_mixed_write_takes_precedence_over_an_unreadable_entry(world, capsys):
    """The exit code of a mixed write takes precedence over that of an unreadable entry."""
    world.mix()
    where = ["--bootstrap-server", world.site.bootstrap_servers, "--ledger-topic", world.ledger]
    assert 3 == transactions.main(["roll-forward", *where, "--prefix", world.prefix])
    [(key, value)] = encode_write(world.prefix, "job", _ENDED)
    world.forge((key, value.replace(b":1,", b":true,", 1)))
    capsys.readouterr()
    for command in ("list", "describe"):
        assert 3 == transactions.main([command, *where, "--prefix", world.prefix])
        said = capsys.readouterr()
        assert "is only partly visible" in said.out
        assert f"warning: an entry of prefix {world.prefix} is not shown" in said.err


def test_a_transaction_of_another_application_is_named(world, run):
    """With --topic, `list` names other applications' transactions that hold back consumers."""
    name = f"stranger-{world.prefix}"
    stranger = world.admin.init_producer_id(name, transaction_timeout_ms=60_000, timeout=30)
    world.admin.write_to_transaction(
        name,
        stranger,
        world.places[1],
        [KeyValue(b"k", b"v")],
        now_ms=int(world.clock() * 1000),
        timeout=30,
    )
    assert [] == _json(run("list", "--json"))["held_back"]
    [held] = _json(run("list", "--json", "--topic", world.data))["held_back"]
    assert (1, name) == (held["partition"], held["holders"][0]["transactional_id"])


def test_an_orphan_is_aborted_after_its_timeout(world, run):
    """After its timeout an orphan no longer holds back consumers."""
    world.transaction_timeout_ms = 1_000
    _orphan(world)
    world.time_out_everything()
    world.transaction_timeout_ms = TRANSACTION_TIMEOUT_MS
    world.visible()
    assert [] == _json(run("list", "--json", "--topic", world.data))["held_back"]
    world.finish(0)
    assert each_once(0) == world.visible()


def test_an_orphan_is_aborted_by_the_next_plan(world, run):
    """The next plan under the prefix aborts an orphan."""
    _orphan(world)
    world.driver("next").plan()
    world.visible()
    assert [] == _json(run("list", "--json", "--topic", world.data))["held_back"]


# --- aborting


def test_abort_aborts_an_orphan(world, run):
    """`abort` aborts an orphan, and with --dry-run only lists it."""
    orphan = _orphan(world)
    generation = world.ledger_state().generation
    code, text = run("abort", "--dry-run")
    assert (0, True) == (code, f"would abort {orphan.transactional_id}" in text)
    assert (1, generation) == (len(world.left_open()), world.ledger_state().generation)
    assert (0, f"aborted {orphan.transactional_id}\n") == run("abort")
    assert (0, f"nothing to abort under {world.prefix}\n") == run("abort")
    assert ([], []) == (world.left_open(), world.visible())


def test_a_driver_whose_transactions_were_aborted_cannot_decide(world, run):
    """A driver whose transactions are aborted by hand fails, and its error names the operator."""
    driver = world.driver()
    plan = driver.plan()
    prepared = world.worker.run(plan)
    assert 2 == len(_json(run("abort", "--json"))["aborted"])
    with pytest.raises(OvertakenError, match=r"an operator on .* claimed generation"):
        driver.commit(plan, prepared)
    world.finish(0)
    assert each_once(0) == world.visible()


def test_a_decided_transaction_is_never_aborted(world, run):
    """`abort` leaves decided transactions open, and `roll-forward` commits them."""
    driver = world.dying(Point.DECIDED)
    plan = driver.plan()
    prepared = world.worker.run(plan)
    loser = world.worker.begin(plan, 0).write("a loser's row")
    with pytest.raises(CrashError):
        driver.commit(plan, prepared)
    assert [loser.transaction.transactional_id] == _json(run("abort", "--json"))["aborted"]
    assert 2 == len(world.left_open())
    assert {QUERY: "done"} == _json(run("roll-forward", "--json"))["rolled_forward"]
    assert (each_once(0), []) == (world.visible(), world.left_open())


def test_a_failed_abort_is_reported(tv2, capsys):
    """A transaction that cannot be aborted is reported with its error and exit code 1."""
    orphan = _orphan(tv2)
    refused = AnswerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    hook = tv2.broker.on(
        ApiKey.END_TXN, lambda request, _: None if request.committed else refused, expect=True
    )
    where = ["--bootstrap-server", tv2.site.bootstrap_servers, "--ledger-topic", tv2.ledger]
    assert 1 == transactions.main(["abort", *where, "--prefix", tv2.prefix])
    said = capsys.readouterr().out
    assert f"could not abort {orphan.transactional_id}, which remains open until" in said
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in said
    hook.remove()


def test_abort_does_not_touch_another_prefix(world, run):
    """`abort` does not touch transactions of a prefix that merely begins with the same text."""
    longer = f"{world.prefix}.eu"
    plan = world.driver(prefix=longer).plan()
    Worker(world, longer).begin(plan, 0).write("theirs")
    code, text = run("abort")
    assert (0, True) == (
        code,
        text.startswith(f"nothing to abort under {world.prefix}: the ledger"),
    )
    assert 1 == len(world.left_open(longer))
    assert 0 == run("abort", prefix=longer)[0]
    assert [] == world.left_open(longer)


# --- rolling forward, resolving


def test_a_decision_is_rolled_forward(world, run):
    """`roll-forward` commits a decided batch, and finds nothing to do the second time."""
    world.decide_and_die()
    code, text = run("roll-forward", "--dry-run")
    assert (0, f"would commit 2 transactions of batch 0 of {QUERY}\n") == (code, text)
    assert [] == world.visible()
    assert (0, f"batch 0 of {QUERY} is done\n") == run("roll-forward")
    assert (0, f"nothing to roll forward under {world.prefix}\n") == run("roll-forward")
    assert (each_once(0), WriteState.DONE) == (world.visible(), world.state())


def test_a_mixed_write_is_reported_with_exit_code_3(world, run):
    """A mixed write is shown with its visible and missing offsets, and exit code 3."""
    world.mix()
    code, text = run("roll-forward")
    assert (3, True) == (code, "is only partly visible" in text)
    for command in ("list", "describe"):
        code, text = run(command)
        assert 3 == code
        assert (
            f"committed: {world.data}-0 offsets 0 to 2; aborted: {world.data}-1 offsets 0 to 2"
            in text
        )
    fates = [w["fate"] for w in _json(run("list", "--json"))["prefixes"][0]["writes"][0]["winners"]]
    assert ["committed", "aborted"] == fates


@pytest.mark.parametrize(
    ("how", "state", "seen"),
    [
        ("--skip", WriteState.DONE, rows(0)[0]),
        ("--replay", WriteState.VOID, [*rows(0)[0], *each_once(0)]),
    ],
)
def test_an_operator_resolves_a_mixed_write(world, run, how, state, seen):
    """A skipped mixed write counts as committed, and a replayed one is written again."""
    world.mix()
    with pytest.raises(MixedError):
        world.driver().plan()
    code, text = run("resolve", "--write-id", QUERY, how, "--dry-run")
    assert (0, True) == (code, f"would be {state.value}" in text)
    assert WriteState.MIXED is world.state()
    assert 0 == run("resolve", "--write-id", QUERY, how)[0]
    assert state is world.state()
    assert 0 == run("list")[0]
    world.finish(0)
    assert sorted(seen) == world.visible()


def test_only_a_mixed_write_can_be_resolved(world, run):
    """Resolving a write that is done or unknown is refused with exit code 1."""
    world.finish(0)
    code, text = run("resolve", "--write-id", QUERY, "--skip")
    assert (1, True) == (code, "nothing to resolve: batch 0 of 'query-1' is done" in text)
    code, text = run("resolve", "--write-id", "nobody", "--replay")
    assert (1, True) == (code, "has no write 'nobody'" in text)


# --- usage


def test_a_cluster_without_a_ledger_has_nothing_to_list(world, capsys):
    """Without a ledger topic, `list` shows nothing and standard error names the missing topic."""
    cluster = ["--bootstrap-server", world.site.bootstrap_servers, "--ledger-topic", "none"]
    assert 0 == transactions.main(["list", "--json", *cluster])
    said = capsys.readouterr()
    assert {"prefixes": [], "held_back": [], "unreadable": []} == json.loads(said.out)
    assert "the ledger topic 'none' does not exist" in said.err
    assert f"--ledger-topic (default: {DEFAULT_LEDGER_TOPIC})" in said.err
    assert 0 == transactions.main(["describe", "--prefix", "orders", *cluster])


@pytest.mark.parametrize("command", ["abort", "roll-forward"])
def test_abort_and_roll_forward_fail_without_a_ledger(world, capsys, command):
    """Without a ledger topic, `abort` and `roll-forward` fail, as the name may be wrong."""
    cluster = ["--bootstrap-server", world.site.bootstrap_servers, "--ledger-topic", "none"]
    assert 1 == transactions.main([command, "--prefix", "orders", *cluster])
    assert "the ledger topic 'none' does not exist" in capsys.readouterr().err


@pytest.fixture
def leaping(monkeypatch):
    """Make the command give up as soon as its failure is known."""
    leap_at_first_contact(monkeypatch)


@pytest.mark.usefixtures("leaping")
def test_a_missing_topic_is_reported_before_the_timeout(world, run):
    """A mistyped --topic fails before the timeout, with similar names."""
    mistyped = world.data[:-1]
    code, text = run("list", "--topic", mistyped)
    assert 1 == code
    assert f"error: --topic {mistyped!r} does not exist in the cluster" in text
    assert f"similar names: {world.data!r}" in text
    assert f"for the ledger use --ledger-topic (default: {DEFAULT_LEDGER_TOPIC})" in text
    assert "autoCreateTopics" not in text


@pytest.mark.usefixtures("leaping")
def test_a_misspelled_topic_is_reported_even_if_topics_cannot_be_listed(tv2, monkeypatch, capsys):
    """A mistyped --topic is reported even if topics cannot be listed."""

    def refuse(_: object) -> list[str]:
        raise KafkaError("refused")

    monkeypatch.setattr(transactions, "list_topics", refuse)
    where = ["--bootstrap-server", tv2.site.bootstrap_servers, "--ledger-topic", tv2.ledger]
    assert 1 == transactions.main(["list", *where, "--topic", "none"])
    said = capsys.readouterr().err
    assert "--topic 'none' does not exist in the cluster" in said
    assert "the cluster's topics could not be listed (refused)" in said


@pytest.mark.usefixtures("leaping")
def test_a_refused_connection_is_reported_before_the_timeout(unused_port, capsys):
    """Refused connections end the command long before --timeout."""
    address = f"127.0.0.1:{unused_port}"
    arguments = ["list", "--bootstrap-server", address, "--timeout", "3600"]
    assert 1 == transactions.main(arguments)
    assert f"no broker answered through {address}" in capsys.readouterr().err


def test_waiting_for_the_cluster_is_reported(capsys):
    """While the command waits for an unresponsive cluster, standard error says so."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        arguments = ["list", "--bootstrap-server", address, "--timeout", "4"]
        assert 1 == transactions.main(arguments)
    said = capsys.readouterr().err
    assert "waiting for up to 4 s (--timeout): no broker answered" in said


@pytest.mark.parametrize(
    "name", ["sasl.jaas.config", "ssl.key.password", "ssl.keystore.key", "ssl.truststore.password"]
)
def test_a_secret_on_the_command_line_is_rejected(capsys, name):
    """A secret on the command line is refused without repeating it, since processes are listed."""
    given = ["list", "--bootstrap-server", "localhost:1", "--property", f"{name}=pl4nted"]
    assert 2 == transactions.main(given)
    said = capsys.readouterr().err
    assert (True, False) == (f"{name}: other users" in said, "pl4nted" in said)
    assert "--command-config" in said


def test_a_reference_to_a_secret_is_accepted_on_the_command_line(capsys):
    """A reference to a secret is accepted on the command line."""
    given = ["list", "--bootstrap-server", "localhost:1", "--property"]
    assert 2 == transactions.main([*given, "sasl.jaas.config=${env:NO_SUCH_VARIABLE}"])
    assert "NO_SUCH_VARIABLE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["list"], "no cluster given: pass --bootstrap-server"),
        (["list", "--property", "x"], "--property must be KEY=VALUE"),
        (["list", "--command-config", "/no/such/file"], "No such file"),
        (
            ["list", "--bootstrap-server", "localhost:1", "--property", "lingr.ms=1"],
            "lingr.ms.*linger.ms",
        ),
        (["abort", "--bootstrap-server", "localhost:1", "--prefix", ""], "1 to 200 printable"),
    ],
    ids=["no cluster", "no value", "no file", "unknown setting", "no prefix"],
)
def test_wrong_usage_is_reported(capsys, arguments, sentence):
    """Wrong usage ends with exit code 2 and an error, before any request is sent."""
    assert 2 == transactions.main(arguments)
    assert re.search(sentence, capsys.readouterr().err)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["resolve", "--prefix", "p", "--write-id", "w"],
        ["abort"],
        ["list", "--what"],
        *(["list", "--timeout", seconds] for seconds in ("0", "-5", "nan", "inf", "soon")),
    ],
    ids=["no command", "no way to resolve", "no prefix", "unknown", "0", "-5", "nan", "inf", "?"],
)
def test_invalid_arguments_print_the_usage(capsys, arguments):
    """Invalid arguments end with exit code 2 and the usage text."""
    with pytest.raises(SystemExit, match="2"):
        transactions.main(arguments)
    said = capsys.readouterr().err
    assert "usage:" in said
    if "--timeout" in arguments:
        reason = f"argument --timeout: {arguments[-1]!r} is not a positive number of seconds"
        assert reason in said


@pytest.mark.parametrize("command", ["list", "describe", "abort", "roll-forward", "resolve"])
def test_the_help_has_an_example_that_runs(capsys, command):
    """The example in each command's help can be parsed and names the cluster."""
    with pytest.raises(SystemExit, match="0"):
        transactions.main([command, "--help"])
    example = capsys.readouterr().out.split("examples:")[1]
    given = re.sub(r"[\[\]\\]", "", example).split("spark_kafka_sink.transactions")[1].split()
    options = transactions._parser().parse_args(given)
    assert (command, "localhost:9092") == (given[0], options.bootstrap_server)
    with pytest.raises(SystemExit, match="0"):
        transactions.main(["--help"])
    assert example.strip() in capsys.readouterr().out


def test_an_unresponsive_cluster_is_reported(capsys):
    """A cluster that does not answer in time is reported with exit code 1."""
    arguments = ["list", "--bootstrap-server", "127.0.0.1:1", "--timeout", "0.3"]
    assert 1 == transactions.main(arguments)
    assert "error: " in capsys.readouterr().err


def test_it_runs_as_a_module(tv2, tmp_path):
    """The command runs as a module with the settings of a properties file."""
    orphan = _orphan(tv2)
    file = tmp_path / "client.properties"
    file.write_text(f"# the cluster\nbootstrap.servers = {tv2.site.bootstrap_servers}\n")
    command = ["list", "--command-config", str(file), "--ledger-topic", tv2.ledger]
    done = subprocess.run(  # noqa: S603  our own command
        [sys.executable, "-m", "spark_kafka_sink.transactions", *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert orphan.transactional_id in done.stdout


# --- Ctrl-C


@needs_signals
@pytest.mark.parametrize("is_handled", [False, True], ids=["lost", "handled"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_interrupted_command_can_be_repeated(tv2, capsys, number, is_handled):
    """Ctrl-C ends the command with exit code 130 and one word; the next one does what is left."""
    tv2.decide_and_die()

    def decide(_, context):
        if context.number != number:
            return None
        interrupt()
        return NeverAnswer(handled=is_handled)

    tv2.broker.on(ApiKey.END_TXN, decide, expect=True)

    where = ["--bootstrap-server", tv2.site.bootstrap_servers, "--ledger-topic", tv2.ledger]
    command = ["roll-forward", *where, "--prefix", tv2.prefix]
    assert 130 == transactions.main([*command, "--timeout", "600"])
    assert ("", "interrupted\n") == tuple(capsys.readouterr())
    assert 0 == transactions.main(command)
    assert (each_once(0), WriteState.DONE) == (tv2.visible(), tv2.state())
