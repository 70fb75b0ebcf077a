"""The ledger: its topic, fencing, reading and appending."""

from __future__ import annotations

from dataclasses import replace

import confluent_kafka
import pytest

from spark_kafka_sink.admin.records import DataRecord
from spark_kafka_sink.devbroker.net.faults import AnswerError
from spark_kafka_sink.errors import BrokerError, ConfigError, KafkaTimeoutError
from spark_kafka_sink.exactly_once import ledger_records, two_phase_commit
from spark_kafka_sink.exactly_once.errors import (
    LedgerFencedError,
    LedgerFormatError,
    LedgerOutcomeUnknownError,
)
from spark_kafka_sink.exactly_once.ledger import Budget, Ledger, LedgerChanges, read_all_prefixes
from spark_kafka_sink.exactly_once.ledger_records import (
    MAX_GENERATION,
    WINNERS,
    Claim,
    OffsetRange,
    Winner,
    WriteRecord,
    decode_key,
    encode_claim,
    encode_write,
)
from spark_kafka_sink.exactly_once.transitions import Write, WriteState
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.exactly_once.exactly_once_world import QUERY, TIMEOUT, Worker, each_once


def _ledger(world):
    return Ledger(world.new_admin(), topic=world.ledger, prefix=world.prefix, clock=world.clock)


def _claim(generation):
    return LedgerChanges(claim=Claim(generation, 1, "me"))


def test_the_topic_is_created_compacted_and_with_one_partition(world):
    """Creating the ledger topic again leaves it compacted and with one partition."""
    world.create_ledger()
    configs = world.admin.topic_configs(world.ledger, timeout=TIMEOUT)
    assert "compact" == configs["cleanup.policy"]
    assert 1 == world.admin.partition_count(world.ledger, timeout=TIMEOUT)


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_topic_with_retention_is_rejected(world, policy):
    """A ledger topic with retention is refused, since decisions would be lost."""
    world.site.delete_topic(world.ledger)
    world.site.create_topic(world.ledger, cleanup_policy=policy)
    with pytest.raises(ConfigError, match=r"set cleanup\.policy=compact"):
        world.create_ledger()


def test_the_topic_is_named_if_it_may_not_be_described(embedded):
    """The error for a missing permission names the topic, so that an operator can grant it."""
    embedded.broker.on(ApiKey.DESCRIBE_CONFIGS, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match=f"DescribeConfigs of topic '{embedded.ledger}'"):
        embedded.create_ledger()


def test_an_entry_is_read_by_the_next_writer(world):
    """An appended claim is read by a writer that fences afterwards and by a read-only reader."""
    first, second = _ledger(world), _ledger(world)
    assert 0 == first.fence_and_read(world.budget()).generation
    first.append(_claim(1), world.budget())
    assert 1 == second.fence_and_read(world.budget()).generation
    assert 1 == world.ledger_state().generation


def test_a_fenced_writer_cannot_append(world):
    """A fenced writer's appends are refused, since the new writer may have read the ledger."""
    first, second = _ledger(world), _ledger(world)
    first.fence_and_read(world.budget())
    second.fence_and_read(world.budget())
    with pytest.raises(LedgerFencedError, match="another driver"):
        first.append(_claim(1), world.budget())
    second.append(_claim(2), world.budget())
    with pytest.raises(LedgerFencedError):
        first.append(_claim(3), world.budget())
    assert 2 == world.ledger_state().generation


def test_a_fenced_writer_names_the_last_claimant(world):
    """The fenced error names the last claimant, or says that it is unknown and where to look."""
    first, second = _ledger(world), _ledger(world)
    first.fence_and_read(world.budget())
    second.fence_and_read(world.budget())
    where = f"Look for .* transactionalIdPrefix '{world.prefix}'; .* '{world.prefix}.ledger'"
    with pytest.raises(LedgerFencedError, match=f"the prefix has no claim yet. {where}"):
        first.append(_claim(1), world.budget())
    claim = Claim(2, 1_700_000_000_000, "host-b, process 7")
    second.append(LedgerChanges(claim=claim), world.budget())
    first.fence_and_read(world.budget())
    second.fence_and_read(world.budget())
    named = r"last claimed by host-b, process 7 at 2023-11-14T22:13:20Z \(generation 2\)"
    with pytest.raises(LedgerFencedError, match=f"{named}.*{where}"):
        first.append(_claim(3), world.budget())


def test_a_fenced_writer_reports_an_unreadable_claim(world):
    """A fenced writer raises the fenced error even if the last claim is unreadable."""
    first, second = _ledger(world), _ledger(world)
    claim = encode_claim(world.prefix, Claim(1, 1, "me"))
    world.forge((claim.key, b"\x01{}"))
    first.fence_and_read(world.budget())
    second.fence_and_read(world.budget())
    with pytest.raises(LedgerFencedError) as fenced:
        first.append(_claim(1), world.budget())
    assert "another driver now writes the ledger" in str(fenced.value)
    assert "That driver is unknown: the last claim of the prefix cannot be read" in str(
        fenced.value
    )
    assert "it must have the fields" in str(fenced.value)


def test_a_writer_may_append_more_than_once(world):
    """A writer can append repeatedly, each time with a new epoch, until it is fenced."""
    first, second = _ledger(world), _ledger(world)
    first.fence_and_read(world.budget())
    for generation in (1, 2, 3):
        first.append(_claim(generation), world.budget())
    second.fence_and_read(world.budget())
    with pytest.raises(LedgerFencedError):
        first.append(_claim(4), world.budget())
    assert 3 == world.ledger_state().generation


def test_appending_without_fencing_first_is_rejected(world):
    """An append without a preceding fence is refused, since nothing reliable was read."""
    with pytest.raises(LedgerFencedError):
        _ledger(world).append(_claim(1), world.budget())


def test_reading_does_not_fence_a_writer(world):
    """Reading without fencing, as an operator's listing does, does not stop a writer."""
    first = _ledger(world)
    first.fence_and_read(world.budget())
    _ledger(world).read(world.budget())
    first.append(_claim(1), world.budget())
    assert 1 == world.ledger_state().generation


@pytest.mark.parametrize("handled", [True, False], ids=["done", "not done"])
def test_an_unanswered_end_txn_has_an_unknown_outcome(embedded, handled):
    """If EndTxn fails, the outcome is unknown until the ledger is read again."""
    ledger = _ledger(embedded)
    ledger.fence_and_read(embedded.budget())
    embedded.broker.on(
        ApiKey.END_TXN, AnswerError(ErrorCode.UNKNOWN_SERVER_ERROR, handled=handled), times=1
    )
    with pytest.raises(LedgerOutcomeUnknownError):
        ledger.append(_claim(1), embedded.budget())
    assert int(handled) == ledger.fence_and_read(embedded.budget()).generation


def test_a_rejected_end_txn_has_an_unknown_outcome(embedded):
    """A refused EndTxn leaves the outcome unknown: it may answer a retry of one that succeeded."""
    ledger, rival = _ledger(embedded), _ledger(embedded)
    ledger.fence_and_read(embedded.budget())
    embedded.broker.on(
        ApiKey.END_TXN, lambda *_: AnswerError(ErrorCode.PRODUCER_FENCED), times=1, expect=True
    )
    with pytest.raises(LedgerOutcomeUnknownError, match="PRODUCER_FENCED"):
        ledger.append(_claim(1), embedded.budget())
    assert 0 == rival.fence_and_read(embedded.budget()).generation


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE], ids=str
)
def test_a_writer_whose_transaction_was_ended_by_others_is_fenced(embedded, code):
    """If another client ended the transaction, nothing was appended and the writer is fenced."""
    ledger = _ledger(embedded)
    ledger.fence_and_read(embedded.budget())
    embedded.broker.on(ApiKey.PRODUCE, AnswerError(code), times=1)
    with pytest.raises(LedgerFencedError):
        ledger.append(_claim(1), embedded.budget())


def test_a_missing_write_permission_is_a_broker_error(embedded):
    """A missing write permission is raised as a broker error, not as fencing."""
    ledger = _ledger(embedded)
    ledger.fence_and_read(embedded.budget())
    embedded.broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(
        BrokerError, match=rf"Produce of '{embedded.prefix}\.ledger' to {embedded.ledger}-0"
    ):
        ledger.append(_claim(1), embedded.budget())


def test_an_emptied_ledger_is_read_from_its_start(embedded):
    """If the ledger's records are deleted, the writer drops its state and reads from the start."""
    ledger = _ledger(embedded)
    ledger.fence_and_read(embedded.budget())
    ledger.append(_claim(1), embedded.budget())
    place = TopicPartition(embedded.ledger, 0)
    embedded.broker.call(lambda broker: broker.cluster.partition(place).log.delete_records(2))
    assert 0 == ledger.fence_and_read(embedded.budget()).generation


def test_a_recreated_ledger_is_read_from_its_start(world):
    """A recreated ledger is read from the start, also for the marker of the next entry."""
    ledger = _ledger(world)
    ledger.fence_and_read(world.budget())
    ledger.append(_claim(1), world.budget())
    ledger.read(world.budget())

    world.recreate_ledger()
    assert 0 == ledger.fence_and_read(world.budget()).generation
    ledger.append(_claim(2), world.budget())
    assert 2 == ledger.read(world.budget()).generation


class _ScriptedLog:
    """A client whose log answers with what is read, and with its end."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self.reads = []

    def start_offset(self, _, *, timeout):
        del timeout
        return 0

    def read_log(self, _, offset, sink, *, timeout):
        del sink, timeout
        self.reads.append(offset)
        return self._answers.pop(0)

    read_log_and_end = read_log


def _scripted(*answers):
    client = _ScriptedLog(*answers)
    return client, Ledger(client, topic="ledger", prefix="p", clock=lambda: 0.0)


def test_a_ledger_is_read_to_the_end_that_was_asked_for():
    """The first Fetch may have been answered before the end moved, or by too small an answer."""
    client, ledger = _scripted((0, 5), 3, 5)
    ledger.read(Budget(lambda: 0.0, 1.0))
    assert [0, 0, 3] == client.reads


def test_a_ledger_that_has_become_shorter_is_read_from_its_start():
    """A high watermark below what was read means that this is another log, or has lost records."""
    client, ledger = _scripted((5, 5), (5, 3), (3, 3))
    for _ in range(2):
        ledger.read(Budget(lambda: 0.0, 1.0))
    assert [0, 5, 0] == client.reads


def _produce_plainly(world, key, value):
    """Write to the ledger topic with an ordinary producer, outside a transaction."""
    settings = {"bootstrap.servers": world.site.bootstrap_servers, "enable.idempotence": True}
    producer = confluent_kafka.Producer(settings)
    producer.produce(world.ledger, value, key, partition=0)
    assert 0 == producer.flush(TIMEOUT)


def _done(write_id, prefix, *winners, state=WriteState.DONE):
    write = Write(0, 1, state, -1)
    return encode_write(
        prefix, write_id, WriteRecord(write=write, updated_at_ms=1, winners=winners)
    )


def test_records_that_no_driver_wrote_are_ignored(world, caplog):
    """Records not written by a driver are logged with their offset and ignored."""
    world.forge((b"user-7", b"data"), (b"\x01[", b"x"), (b"\x01" + b"[" * 50_000, None))
    world.finish(0)
    assert each_once(0) == world.visible()
    assert [world.prefix] == list(read_all_prefixes(world.admin, world.ledger, world.budget()))
    assert "3 records of ledger topic" in caplog.text
    assert "the first at offset 0: without a valid ledger key" in caplog.text


def test_a_forged_entry_does_not_mark_a_job_as_done(world, caplog):
    """A forged entry outside a transaction is ignored, so the job is still written."""
    [(key, value)] = _done("job", world.prefix)
    _produce_plainly(world, key, value)
    assert world.driver().plan("job").must_write("job", 0)
    assert "1 records of ledger topic" in caplog.text
    assert "not written in a transaction" in caplog.text


def test_a_transactional_batch_that_decompresses_too_far_is_not_decoded(world, caplog):
    """A batch that decompresses beyond the size of a driver's entries is not decoded."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": world.site.bootstrap_servers,
            "transactional.id": f"stranger of {world.prefix}",
            "compression.type": "gzip",
            "message.max.bytes": 10_000_000,
        }
    )
    producer.init_transactions(TIMEOUT)
    producer.begin_transaction()
    producer.produce(world.ledger, bytes(4_000_000), b"user-7", partition=0)
    producer.commit_transaction(TIMEOUT)
    world.finish(0)
    assert each_once(0) == world.visible()
    assert "the first at offset 0: in a batch that cannot be decoded" in caplog.text


def test_another_applications_transaction_is_never_committed(world):
    """A forged decision that names another prefix's transaction is refused and commits nothing."""
    victim = Worker(world, f"{world.prefix}.eu")
    [theirs, _] = victim.run(world.driver(prefix=victim.slots.prefix).plan("victim"))
    world.forge(*_done("job", world.prefix, theirs.transaction, state=WriteState.DECIDED))
    with pytest.raises(LedgerFormatError, match="is not a transaction of a task under this prefix"):
        world.driver().plan("another")
    assert [] == world.visible()
    assert 2 == len(world.left_open(victim.slots.prefix))


def test_an_unreadable_entry_stops_only_its_own_prefix(world):
    """An unreadable entry stops the drivers of its own prefix and no others."""
    deep = b"\x01" + b'{"a":' * 50_000
    [(key, _)] = _done("job", f"{world.prefix}.eu")
    claim_key, _ = encode_claim(f"{world.prefix}.us", Claim(1, 1, "me"))
    world.forge((key, deep), (claim_key, deep))
    world.finish(0)
    states = read_all_prefixes(world.admin, world.ledger, world.budget())
    assert WriteState.DONE is states[world.prefix].writes[QUERY].write.state
    assert each_once(0) == world.visible()
    for stopped in ("eu", "us"):
        with pytest.raises(LedgerFormatError):
            world.driver(prefix=f"{world.prefix}.{stopped}").plan("job")


def test_deleting_the_unreadable_entry_makes_a_prefix_usable_again(world):
    """Deleting the unreadable entry in a transaction makes the prefix usable again."""
    world.finish(0)
    [key, value] = encode_claim(world.prefix, Claim(MAX_GENERATION, 1, "somebody"))
    world.forge((key, value))
    with pytest.raises(LedgerFormatError, match="until the entry is deleted in a transaction"):
        world.driver().plan()
    world.forge((key, None))
    world.finish(1)
    assert each_once(0, 1) == world.visible()


def test_a_step_decodes_no_more_entries_of_a_large_ledger(world, monkeypatch):
    """A new or running driver decodes no more entries with a thousand jobs than with none."""
    parse, parsed = ledger_records._parse, []
    monkeypatch.setattr(ledger_records, "_parse", lambda data: parsed.append(data) or parse(data))
    costs = []
    for _ in range(2):
        driver = world.driver()
        for _ in range(2):
            parsed.clear()
            driver.plan("job")
            costs.append(len(parsed))
        record = WriteRecord(
            write=Write(0, 1, WriteState.DONE, -1), updated_at_ms=1, expires_at_ms=2**42
        )
        driver.ledger.append(
            LedgerChanges(writes={f"{QUERY}-{n}": record for n in range(1000)}), world.budget()
        )
        assert 1000 == len(driver.ledger.read(world.budget()).writes)
    new, later = costs[:2], costs[2:]
    assert max(new) + 4 > max(later), costs


def test_a_large_decision_leaves_no_piece_once_it_is_done(tv2):
    """A decision in several pieces leaves none of them, although they were not read back."""
    place = TopicPartition("t", 0)
    ranges = tuple(
        OffsetRange(place._replace(partition=number), number * 2_654_435_761 % 2**40, 2**41, 1)
        for number in range(120_000)
    )
    name = f"{tv2.prefix}.{7:032x}.0"
    winner = Winner(name, ProducerIdAndEpoch(1, 0), 2, ranges)
    decision = WriteRecord(
        write=Write(0, 1, WriteState.DECIDED, -1), updated_at_ms=1, winners=(winner,)
    )
    done = replace(decision, write=decision.write._replace(state=WriteState.DONE), winners=())
    ledger = _ledger(tv2)
    ledger.fence_and_read(tv2.budget())
    for record in (decision, done):
        ledger.append(LedgerChanges(writes={QUERY: record}), tv2.budget())
    written = [event.record for event in _records(tv2)]
    pieces = [one for one in written if decode_key(one.key).kind == WINNERS]
    last = {one.key: one.value for one in pieces}
    assert len(last) > 1
    assert dict.fromkeys(last) == last


def _records(world):
    return [
        event
        for event in world.events(TopicPartition(world.ledger, 0), 0)
        if isinstance(event, DataRecord)
    ]


def test_each_plan_drops_a_limited_number_of_expired_jobs(world, monkeypatch):
    """Each plan drops a limited number of expired jobs, and the following plans drop the rest."""
    monkeypatch.setattr(two_phase_commit, "MAX_FORGOTTEN", 2)
    driver = world.driver()
    driver.plan()
    record = WriteRecord(write=Write(0, 1, WriteState.DONE, -1), updated_at_ms=1, expires_at_ms=7)
    jobs = {f"job-{number}": record for number in range(5)}
    driver.ledger.append(LedgerChanges(writes=jobs), world.budget())
    left = []
    for _ in range(4):
        driver.plan("job-9")
        left.append(len(driver.ledger.read(world.budget()).writes))
    assert [3, 1, 0, 0] == left


def test_the_error_of_an_exhausted_budget_names_the_step():
    """An exhausted budget raises a timeout error that names the step."""
    times = iter([10.0, 12.0, 15.0])
    budget = Budget.of(lambda: next(times), 5)
    assert 3.0 == budget.left("this")
    with pytest.raises(KafkaTimeoutError, match=r"^that timed out$"):
        budget.left("that")
