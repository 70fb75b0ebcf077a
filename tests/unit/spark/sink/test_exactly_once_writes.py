"""Exactly-once writes of our writers, called as Spark calls them, against the embedded broker."""

from __future__ import annotations

import json
import logging
from collections import Counter

import pyarrow as pa
import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.exactly_once.errors import (
    CommitPendingError,
    MixedError,
    OvertakenError,
    RolledBackError,
    WinnerLostError,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.spark.sink.writers import RefusedWriteError
from tests.support.devbroker.older_broker import hide_apis
from tests.support.exactly_once.exactly_once_sites import EmbeddedSite
from tests.support.exactly_once.exactly_once_world import World
from tests.support.spark.micro_batches import (
    LEDGER,
    PREFIX,
    BatchJob,
    Query,
    each_once,
    forget_connections,
    process_of_its_own,
    rows,
)


@pytest.fixture(params=[2, 0], ids=["tv2", "tv1"])
def broker(request):
    topics = {"data": 2}
    with (
        process_of_its_own(),
        DevBroker(
            topics=topics, auto_create_topics=False, transaction_version=request.param
        ) as made,
    ):
        yield made


@pytest.fixture
def world(broker):
    made = World(EmbeddedSite(broker))
    made.prefix, made.data, made.ledger = PREFIX, "data", LEDGER
    made.transaction_timeout_ms = 900_000
    yield made
    made.close()


@pytest.fixture
def query(broker):
    return Query(broker)


@pytest.fixture
def query_of_three():
    """Yield a cluster of three brokers, and a query that writes to it."""
    with process_of_its_own(), DevBroker(topics={"data": 2}, brokers=3) as made:
        yield made, Query(made)


@pytest.fixture
def requests(broker):
    """Yield a list of the API names of all requests that the broker receives from now on."""
    seen = []
    hooks = [
        broker.on(key, lambda request, _, key=key: seen.append(key.name)) for key in list(ApiKey)
    ]
    yield seen
    for hook in hooks:
        hook.remove()


def test_a_batch_is_visible_when_it_is_committed(query, world):
    """Tasks leave their transactions open, and the commit makes all of them visible."""
    planned = query.plan()
    messages = query.run_tasks(planned, 0)
    assert ([], 2) == (world.visible(), len(world.left_open()))
    query.commit(messages, 0)
    assert (each_once(0), []) == (world.visible(), world.left_open())


def _all_of(state):
    return state.claim, dict(state.writes)


def test_a_writer_created_right_before_a_commit_changes_nothing(query, world, requests):
    """Spark creates a writer before commit and abort, which must not contact a broker."""
    messages = query.run_tasks(query.plan(), 0)
    requests.clear()
    open_before, ledger_before = world.left_open(), _all_of(world.ledger_state())
    requests.clear()
    for _ in range(3):
        query.writer()
    assert [] == requests
    assert (open_before, ledger_before) == (world.left_open(), _all_of(world.ledger_state()))
    query.commit(messages, 0)
    assert each_once(0) == world.visible()


def test_successive_batches_are_each_written_once(query, world):
    """Successive batches by the same workers and drivers are each written once."""
    for batch in range(4):
        query.run_batch(batch)
    assert (each_once(0, 1, 2, 3), []) == (world.visible(), world.left_open())


def test_a_replayed_batch_is_skipped(query, world, tmp_path, broker):
    """A committed batch that Spark replays is not written again, even by another process."""
    query.run_batch(0)
    query.run_batch(1)
    forget_connections()
    messages = query.run_tasks(query.plan(), 1)
    assert [(0, True)] * 2 == [(message.rows, message.is_replay) for message in messages]
    query.commit(messages, 1)
    query.run_batch(2)
    assert each_once(0, 1, 2) == world.visible()


def test_a_replayed_task_reads_all_of_its_input(query, world):
    """Stateful operators upstream store their state only once their output is fully read."""
    query.run_batch(0)
    planned = query.plan()
    read = []

    def batches():
        yield pa.record_batch({"value": ["a row"]})
        read.append("to the end")

    with query.task_context(0, task=0):
        planned.write(batches())
    assert ["to the end"] == read
    assert each_once(0) == world.visible()


def test_the_report_has_each_batch_once(broker, tmp_path):
    """A replay adds a missing line to the report but never replaces one."""
    path = tmp_path / "report.jsonl"
    query = Query(broker, reportPath=str(path))
    query.run_batch(0)
    query.run_batch(0)
    query.run_batch(1)
    first = path.read_text().splitlines(keepends=True)[0]
    path.write_text(first)
    query.run_batch(1)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(0, 6, None), (1, 0, True)] == [
        (line["batch_id"], line["rows"], line.get("replayed")) for line in lines
    ]


def test_a_batch_older_than_the_last_one_is_rejected(query, world):
    """A rolled back checkpoint stops the query with an error that says so."""
    for batch in range(3):
        query.run_batch(batch)
    planned = query.plan()
    with pytest.raises(RolledBackError, match="batch 1 of 'query-1' is not written, since batch 2"):
        query.run_task(planned, 1, 0)
    assert each_once(0, 1, 2) == world.visible()


def test_a_deleted_checkpoint_is_a_new_query(query, broker, world, caplog):
    """A query new to a prefix continues, with a warning that names the earlier queries."""
    query.run_batch(0)
    with caplog.at_level(logging.WARNING):
        Query(broker, "query-2").run_batch(0)
        Query(broker, "query-2").run_batch(1)
    [warning] = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert (
        "query query-2 is new under transactionalIdPrefix 'orders', which was used by query-1"
        in warning
    )
    assert "without its checkpoint, rows that it reads again are written again" in warning
    assert sorted(each_once(0) * 2 + each_once(1)) == world.visible()


def test_two_queries_can_alternate_under_a_prefix(query, broker, world):
    """Each query's batches are tracked separately, so neither affects the other's."""
    other = Query(broker, "query-2")
    query.run_batch(0)
    other.run_batch(0)
    query.run_batch(0)
    query.run_batch(1)
    other.run_batch(0)
    assert sorted(each_once(0) * 2 + each_once(1)) == world.visible()


def test_the_later_of_two_concurrent_drivers_wins(query, broker, world):
    """The earlier driver's commit fails with the other's name, and none of its rows are visible."""
    messages = query.run_tasks(query.plan(), 0)
    forget_connections()
    Query(broker).run_batch(0)
    with pytest.raises(OvertakenError, match=r"another driver has taken over: .* process"):
        query.commit(messages, 0)
    query.abort(messages, 0)
    assert (each_once(0), []) == (world.visible(), world.left_open())


def test_a_stalled_task_of_an_earlier_plan_is_excluded(query, world):
    """Rows written under an old plan belong to no batch, and their transactions are aborted."""
    planned = query.plan()
    early = query.run_task(planned, 0, 0)
    again = query.plan()
    late = query.run_task(planned, 0, 1)
    query.commit(query.run_tasks(again, 0), 0)
    with pytest.raises(OvertakenError):
        query.commit([early, late], 0)
    assert (each_once(0), []) == (world.visible(), world.left_open())


def test_losing_attempts_are_aborted(query, world):
    """If a task ran twice (speculation, retry), one attempt is committed and the other aborted."""
    planned = query.plan()
    query.run_task(planned, 0, 0)
    messages = query.run_tasks(planned, 0)
    query.run_task(planned, 0, 1)
    query.commit(messages, 0)
    assert (each_once(0), []) == (world.visible(), world.left_open())


def test_a_failed_batch_is_aborted(query, world):
    """Abort ends the transactions of finished tasks; None stands for an unfinished one."""
    planned = query.plan()
    message = query.run_task(planned, 0, 0)
    query.abort([message, None], 0)
    assert ([], []) == (world.visible(), world.left_open())
    query.run_batch(0)
    assert each_once(0) == world.visible()


def test_an_abort_after_a_commit_changes_nothing(query, world):
    """Spark calls abort with all messages after a commit that failed or seemed to fail."""
    messages = query.run_tasks(query.plan(), 0)
    query.commit(messages, 0)
    query.abort(messages, 0)
    query.run_batch(1)
    assert each_once(0, 1) == world.visible()


def test_an_abort_without_messages_contacts_no_broker(query, requests):
    """An abort with only None contacts no broker; the next start aborts the transactions."""
    query.abort([None, None], 0)
    query.abort([], 0)
    assert [] == requests


def test_a_failed_abort_is_a_warning(query, broker, caplog):
    """A failed abort must not hide why the batch failed."""
    messages = query.run_tasks(query.plan(), 0)
    refusal = AnswerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    hook = broker.on(ApiKey.INIT_PRODUCER_ID, refusal)
    with caplog.at_level(logging.WARNING):
        query.abort(messages, 0)
    assert hook.fired
    assert any(
        "remain open until a query or job starts with" in message for message in caplog.messages
    )


def test_a_decided_batch_is_completed_by_the_next_start(query, broker, world):
    """A commit interrupted after its decision fails the query; a restart completes it."""
    messages = query.run_tasks(query.plan(), 0)
    refusal = AnswerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    # The first EndTxn is that of the ledger's own transaction.
    hook = broker.on(
        ApiKey.END_TXN,
        lambda request, _: refusal if ".ledger" not in request.transactional_id else None,
        expect=True,
    )
    with pytest.raises(CommitPendingError, match="the batch is decided, but 2 of its 2"):
        query.commit(messages, 0)
    query.abort(messages, 0)
    hook.remove()
    assert [] == world.visible()
    query.run_batch(0)
    query.run_batch(1)
    assert (each_once(0, 1), []) == (world.visible(), world.left_open())


def test_a_half_committed_batch_stops_every_start(query, broker, world):
    """If an operator aborted half of a batch, the error lists what is written and what is not."""
    messages = query.run_tasks(query.plan(), 0)
    refusal = AnswerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    hook = broker.on(
        ApiKey.END_TXN,
        lambda request, _: refusal if ".ledger" not in request.transactional_id else None,
        expect=True,
    )
    with pytest.raises(CommitPendingError):
        query.commit(messages, 0)
    hook.remove()
    world.abort_by_hand(messages[1].transactional.prepared.transaction)
    for batch in (0, 1):
        planned = query.plan()
        with pytest.raises(
            MixedError, match=r"; committed: data-\d offsets .*; aborted: data-\d offsets"
        ):
            query.run_task(planned, batch, 0)
    assert sorted(rows(0, 0)) == world.visible()
    world.resolve(skip=True, write_id="query-1")
    query.run_batch(0)
    query.run_batch(1)
    assert sorted([*rows(0, 0), *each_once(1)]) == world.visible()


def test_a_transaction_that_timed_out_fails_its_batch(query, world):
    """The error of a batch above transaction.timeout.ms names it, and the batch can be retried."""
    messages = query.run_tasks(query.plan(), 0)
    world.time_out_everything()
    with pytest.raises(WinnerLostError, match=r"raise it, up to the brokers' transaction\.max"):
        query.commit(messages, 0)
    query.run_batch(0)
    assert each_once(0) == world.visible()


def test_tasks_without_rows_open_no_transaction(query, world):
    """A batch of empty partitions is committed without a decision."""
    planned = query.plan()
    empty = query.run_task(planned, 0, 0, [])
    query.commit([empty, empty], 0)
    assert ([], []) == (world.visible(), world.left_open())
    planned = query.plan()
    query.commit([query.run_task(planned, 1, 0, []), query.run_task(planned, 1, 1)], 1)
    assert sorted(rows(1, 1)) == world.visible()


def test_a_batch_without_tasks_is_committed(query, world, requests):
    """The commit of a batch without partitions sends no request and records nothing."""
    query.plan()
    requests.clear()
    query.commit([], 0)
    assert [] == requests
    assert {} == dict(world.ledger_state().writes)
    query.run_batch(1)
    assert (each_once(1), []) == (world.visible(), world.left_open())


def test_a_task_with_a_new_producer_sends_few_requests(query, requests):
    """A task with a new producer connects twice, and asks for its coordinator, id and topic."""
    planned = query.plan()
    requests.clear()
    query.run_task(planned, 0, 0)
    assert {
        "API_VERSIONS": 2,
        "METADATA": 2,
        "FIND_COORDINATOR": 1,
        "INIT_PRODUCER_ID": 1,
        "PRODUCE": 1,
    } == Counter(name for name in requests if name != "ADD_PARTITIONS_TO_TXN")


def test_workers_reuse_their_connections_and_ids(query, broker, requests, world):
    """From the second batch on, a task requests a new epoch and writes, without other set-up."""
    query.run_batch(0)
    planned = query.plan()
    requests.clear()
    messages = query.run_tasks(planned, 1)
    assert 2 == requests.count("INIT_PRODUCER_ID") == requests.count("PRODUCE")
    assert {"INIT_PRODUCER_ID", "PRODUCE"} == set(requests) - {"ADD_PARTITIONS_TO_TXN", "METADATA"}
    query.commit(messages, 1)
    assert each_once(0, 1) == world.visible()


def test_a_driver_sends_the_same_requests_for_each_batch(query, requests):
    """The number of requests of plan and commit does not grow with the batches."""
    counts = []
    for batch in range(6):
        planned = query.plan()
        in_plan = len(requests)
        messages = query.run_tasks(planned, batch)
        before_commit = len(requests)
        query.commit(messages, batch)
        counts.append((in_plan, len(requests) - before_commit))
        requests.clear()
    assert 1 == len(set(counts[2:])), counts


# --- jobs


def test_a_job_is_written_once(broker, world, monkeypatch):
    """A job that is run again with its writeId writes nothing, and prints that."""
    lines = []
    monkeypatch.setattr(
        "spark_kafka_sink.spark.sink.writers.announce", lambda logger, line: lines.append(line)
    )
    for _ in range(2):
        BatchJob(broker, writeId="day-1").run()
    assert (each_once(0), []) == (world.visible(), world.left_open())
    assert "Kafka: wrote nothing; write 'day-1' was committed before" == lines[-1]


def test_rerunning_a_written_job_does_not_change_its_report(broker, tmp_path):
    """The report belongs to the run that wrote; a later run neither changes nor recreates it."""
    path = tmp_path / "report.json"
    job = BatchJob(broker, writeId="day-1", reportPath=str(path))
    job.run()
    written = path.read_text()
    assert 6 == json.loads(written)["rows"]
    job.run()
    assert written == path.read_text()
    path.unlink()
    job.run()
    assert not path.exists()


def test_a_write_id_of_another_topic_is_refused(broker, world):
    """A job to another topic under a used writeId is refused before its tasks, on the driver."""
    broker.create_topic("refunds")
    BatchJob(broker, writeId="day-1").run()
    with pytest.raises(RefusedWriteError, match="writeId 'day-1' is the name of a write to topic"):
        BatchJob(broker, writeId="day-1", topic="refunds").plan()
    assert (each_once(0), []) == (world.visible(), world.left_open())


def test_a_job_without_rows_counts_as_written(broker, world):
    """A job that had no rows counts as written, so a later run with rows writes nothing."""
    job = BatchJob(broker, writeId="day-1")
    planned = job.plan()
    planned.commit([])
    job.run()
    assert [] == world.visible()


def test_a_job_without_a_write_id_is_written_every_time(broker, world):
    """Without a writeId every run of a job writes all rows, and the ledger drops its record."""
    for _ in range(2):
        BatchJob(broker).run()
    assert sorted(each_once(0) * 2) == world.visible()
    BatchJob(broker).plan()
    assert 0 == len(world.ledger_state().writes)


def test_a_failed_job_is_aborted_and_can_be_run_again(broker, world):
    """A failed job is not visible, and the same writeId can write it later."""
    job = BatchJob(broker, writeId="day-1")
    planned = job.plan()
    planned.abort([job.run_task(planned, 0), None])
    assert ([], []) == (world.visible(), world.left_open())
    job.run()
    assert each_once(0) == world.visible()


def test_the_later_of_two_concurrent_jobs_wins(broker, world):
    """Of two jobs under one prefix, the earlier one's commit fails with advice."""
    early, late = BatchJob(broker, writeId="day-1"), BatchJob(broker, writeId="day-2")
    planned = early.plan()
    messages = [early.run_task(planned, 0, ["early"])]
    forget_connections()
    late.run()
    with pytest.raises(
        OvertakenError, match="Give each query and job its own transactionalIdPrefix"
    ):
        planned.commit(messages)
    assert each_once(0) == world.visible()


def test_the_foreach_batch_recipe_writes_each_batch_once(broker, world):
    """With a writeId of query id and batch id, foreachBatch skips a replayed batch."""
    for batch in (0, 1, 1, 2):
        job = BatchJob(broker, writeId=f"query-1-{batch}")
        planned = job.plan()
        planned.commit([job.run_task(planned, 0, rows(batch, 0))])
    assert sorted(rows(0, 0) + rows(1, 0) + rows(2, 0)) == world.visible()


# --- checks on the driver before a task


def test_a_missing_ledger_topic_is_created(query, world):
    """The first plan creates a compacted topic with one partition."""
    query.plan()
    configs = world.admin.topic_configs("ledger", timeout=30)
    assert "compact" == configs["cleanup.policy"]
    assert 1 == world.admin.partition_count("ledger", timeout=30)


def test_a_ledger_topic_with_retention_is_rejected(broker):
    """A topic that deletes by age cannot be the ledger, and no task starts."""
    broker.create_topic("old", partitions=1, configs={"cleanup.policy": "delete"})
    with pytest.raises(RefusedWriteError, match=r"^ledgerTopic 'old' has cleanup\.poli"):
        Query(broker, ledgerTopic="old").plan()
    with pytest.raises(RefusedWriteError, match=r"set cleanup\.policy=compact"):
        BatchJob(broker, ledgerTopic="old").plan()


def test_a_timeout_above_the_brokers_limit_is_rejected(broker):
    """The plan fails before the tasks start, and the error names both settings."""
    query = Query(broker, **{"kafka.transaction.timeout.ms": "900001"})
    with pytest.raises(
        RefusedWriteError, match=r"is 900001, which exceeds the brokers' transaction\.max"
    ):
        query.plan()


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (ApiKey.DESCRIBE_CONFIGS, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (ApiKey.INIT_PRODUCER_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (ApiKey.FETCH, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (ApiKey.PRODUCE, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
def test_a_missing_permission_is_reported_before_the_tasks(broker, query, api, code):
    """Whichever right on the ledger or the ids is missing, the error lists all that are needed."""
    BatchJob(broker, transactionalIdPrefix="other").run()
    broker.on(api, AnswerError(code))
    with pytest.raises(RefusedWriteError, match="READ, WRITE, DESCRIBE and DESCRIBE_CONFIGS"):
        query.plan()


def test_a_prefix_must_be_printable(broker, requests):
    """A prefix with unprintable characters is rejected when the writer is created."""
    with pytest.raises(ConfigError, match="transactionalIdPrefix must have 1 to 200 printable"):
        Query(broker, transactionalIdPrefix="a\nb").writer()
    assert [] == requests


def test_a_stream_has_no_write_id(broker):
    """A stream is identified by its query id, so writeId is an error."""
    with pytest.raises(ConfigError, match="writeId is only for batches"):
        Query(broker, writeId="w").writer()


@pytest.mark.parametrize(
    "hidden",
    [(ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_TRANSACTIONS), (ApiKey.DESCRIBE_TRANSACTIONS,)],
    ids=["both", "one"],
)
def test_brokers_that_are_too_old_are_rejected_before_anything_is_written(
    broker, query, requests, hidden
):
    """The error names the broker, the APIs and the version, and nothing has been created."""
    hide_apis(broker, *hidden)
    with pytest.raises(RefusedWriteError) as caught:
        query.plan()
    message = str(caught.value)
    assert f"does not support the API {' and '.join(key.name for key in hidden)}: " in message
    assert "exactly_once requires Apache Kafka 3.0 or later: upgrade the brokers" in message
    assert broker.bootstrap_servers in message
    assert {"API_VERSIONS", "METADATA"} == set(requests)


def test_each_broker_must_be_new_enough(query_of_three):
    """One old broker among new ones could coordinate any of the transactions."""
    broker, query = query_of_three
    hide_apis(broker, ApiKey.LIST_TRANSACTIONS, node_id=2)
    with pytest.raises(RefusedWriteError, match=r"\(id 2\) does not support the API LIST_TRANSACT"):
        query.plan()
