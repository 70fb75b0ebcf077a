"""Admin requests to the embedded broker and to Apache Kafka: the same answers.

The method is that of test_devbroker_conformance.
"""

from __future__ import annotations

import time
import uuid

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.describe_cluster import DescribeClusterRequest
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsRequest
from spark_kafka_sink.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.support.devbroker.admin_requests import (
    APPEND,
    BROKER,
    BROKER_LOGGER,
    DELETE,
    GROUP,
    SET,
    SUBTRACT,
    TOPIC,
    alter_configs,
    alter_replica_log_dirs,
    create_partitions,
    delete_records,
    delete_topics,
    describe_configs,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    elect_leaders,
    list_reassignments,
    list_transactions,
    offset_for_epoch,
    reassign,
    replace_configs,
)
from tests.support.devbroker.broker_asker import observe, sequenced
from tests.support.devbroker.transactional_client import PRODUCE_TV1, TransactionalRequests
from tests.support.kafka.kafka_files import KAFKA_3

PATIENCE_SECONDS = 120
GOOD = sequenced(0, 3)
NEXT = sequenced(3, 3)
#: The newest versions that 3.9 supports, too.
LIST_TRANSACTIONS, DESCRIBE_CLUSTER = 1, 1


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def deletion(broker):
    """Delete topics by name and id, twice, and topics that do not exist."""

    def deleted(*topics, version=6):
        responses = broker.ask(delete_topics(*topics), version).responses
        return sorted(
            (r.error_code, r.name in {first, second, third}, r.topic_id != uuid.UUID(int=0))
            for r in responses
        )

    first, second, third = (broker.topic() for _ in range(3))
    topic_id = broker.topic_id(second)
    notes = [
        deleted(first, first),
        deleted((first, topic_id)),
        deleted((None, uuid.UUID(int=0))),
        deleted("no-such", uuid.UUID(int=77)),
        deleted(first),
        deleted(topic_id),
    ]
    wait_for(lambda: broker.offsets((first, 0, -1))[0][0] != 0)
    return [*notes, deleted(first), broker.offsets((first, 0, -1), (third, 0, -1))]


def partitions(broker):
    """Create more, fewer and the same number of partitions, with all kinds of assignments."""
    topic = broker.topic(2)

    def created(*topics, **fields):
        results = broker.ask(create_partitions(*topics, **fields), 3).results
        return sorted(result.error_code for result in results)

    notes = [
        created((topic, 2)),
        created((topic, 1)),
        created(("no-such", 3)),
        created((topic, 3), (topic, 4)),
        created((topic, 4, [[1]])),
        created((topic, 3, [[77]])),
        created((topic, 3), validate_only=True),
        broker.offsets((topic, 2, -1)),
        created((topic, 3)),
    ]
    wait_for(lambda: broker.offsets((topic, 2, -1))[0][0] == 0)
    return [*notes, broker.offsets((topic, 2, -1))]


def records(broker):
    """Delete records, and read what is left."""
    topic = broker.topic()
    compacted = broker.topic(cleanup_policy="compact")
    broker.produce(topic, GOOD)
    broker.produce(topic, NEXT)

    def deleted(offset, name=topic, partition=0):
        (answer,) = broker.ask(delete_records((name, partition, offset)), 2).topics
        (result,) = answer.partitions
        return result.error_code, result.low_watermark

    notes = [
        deleted(7),
        deleted(-2),
        deleted(0),
        deleted(4),
        deleted(2),
        deleted(0, compacted),
        deleted(0, "no-such"),
        deleted(0, topic, 5),
        (broker.offsets((topic, 0, -1)), broker.offsets((topic, 0, -2))),
        broker.fetch(topic, [3]),
        broker.fetch(topic, [4]),
        deleted(-1),
        (broker.offsets((topic, 0, -1)), broker.offsets((topic, 0, -2))),
        broker.fetch(topic, [6]),
    ]
    broker.produce(topic, sequenced(6, 1))
    return [*notes, broker.fetch(topic, [6])]


def settings(broker):
    """Change a topic's configs, in all ways that are accepted and rejected."""
    topic = broker.topic(max_message_bytes="1000")

    def described(*keys):
        (result,) = broker.ask(
            describe_configs((TOPIC, topic), keys=keys, synonyms=False), 4
        ).results
        return result.error_code, sorted(
            (c.name, c.value, c.read_only, c.config_source == 1, c.is_sensitive, c.config_type)
            for c in result.configs
        )

    def altered(*configs, name=topic, resource=TOPIC, **fields):
        (response,) = broker.ask(alter_configs((resource, name, configs), **fields), 1).responses
        return response.error_code

    keys = ("max.message.bytes", "cleanup.policy", "message.timestamp.type", "no.such")
    notes = [
        described(*keys),
        altered(("cleanup.policy", APPEND, "compact")),
        altered(("max.message.bytes", SET, "x")),
        altered(("no.such", SET, "x")),
        altered(("max.message.bytes", APPEND, "1")),
        altered(("max.message.bytes", SET, None)),
        altered(("max.message.bytes", 9, "1")),
        altered(("max.message.bytes", SET, "1"), ("max.message.bytes", SET, "2")),
        altered(("max.message.bytes", SET, "1"), name="no-such"),
        altered(("max.message.bytes", SET, "1"), validate_only=True),
    ]
    wait_for(lambda: "compact" in str(described("cleanup.policy")))
    notes.append(described(*keys))
    notes.append(altered(("max.message.bytes", DELETE, None)))
    notes.append(altered(("cleanup.policy", SUBTRACT, "compact")))
    wait_for(lambda: "compact" not in str(described("cleanup.policy")))
    notes.append(described(*keys))
    missing = broker.ask(describe_configs((TOPIC, "no-such"), (TOPIC, "a b"), (77, "x")), 4)
    notes.append([result.error_code for result in missing.results])
    return notes


def epochs(broker):
    """Look up the end offsets of leader epochs."""
    topic = broker.topic()
    broker.produce(topic, GOOD)

    def end(*asked, **fields):
        (answer,) = broker.ask(offset_for_epoch(*asked, **fields), 4).topics[0].partitions
        return answer.error_code, answer.leader_epoch, answer.end_offset

    return [
        end(topic, 0, 0),
        end(topic, 0, 5),
        end(topic, 0, 0, current_leader_epoch=0),
        end(topic, 0, 0, current_leader_epoch=4),
        end(topic, 3, 0),
        end("no-such", 0, 0),
    ]


def cluster(broker):
    """Describe the cluster, with valid and invalid endpoint types."""

    def described(endpoint_type, operations):
        answer = broker.ask(
            DescribeClusterRequest(
                include_cluster_authorized_operations=operations, endpoint_type=endpoint_type
            ),
            DESCRIBE_CLUSTER,
        )
        return answer.error_code, len(answer.brokers), answer.cluster_authorized_operations

    return [described(1, True), described(1, False), described(2, False), described(5, False)]


def transactions(broker):
    """Describe and list transactions and their producers."""
    broker.wait_for_coordinators()
    topic = broker.topic(2)
    client = TransactionalRequests(f"conformance-{uuid.uuid4().hex}", topic)
    client.timestamp = int(time.time() * 1000)
    client.ask = broker.ask
    notes = []

    def look():
        states = broker.ask(
            DescribeTransactionsRequest(
                transactional_ids=(client.transactional_id, "nobody-knows", "")
            ),
            0,
        ).transaction_states
        notes.append(
            sorted(
                (
                    s.error_code,
                    s.transaction_state,
                    s.transaction_timeout_ms,
                    (s.transaction_start_time_ms > 0) - (s.transaction_start_time_ms < 0),
                    s.producer_epoch,
                    [sorted(t.partitions) for t in s.topics],
                )
                for s in states
            )
        )
        for filters in ({}, {"states": ["Ongoing", "x"]}, {"duration_ms": 60_000}):
            answer = broker.ask(list_transactions(**filters), LIST_TRANSACTIONS)
            notes.append(
                (
                    answer.error_code,
                    answer.unknown_state_filters,
                    [
                        s.transaction_state
                        for s in answer.transaction_states
                        if s.transactional_id == client.transactional_id
                    ],
                )
            )
        (answer,) = broker.ask(describe_producers(topic, 0, 1, 7), 0).topics
        notes.append(
            sorted(
                (
                    p.partition_index,
                    p.error_code,
                    [
                        (
                            a.producer_epoch,
                            a.last_sequence,
                            a.coordinator_epoch,
                            a.current_txn_start_offset,
                        )
                        for a in p.active_producers
                    ],
                )
                for p in answer.partitions
            )
        )

    answers = []

    def patiently(call, *, bad):
        def done():
            answers.append(call())
            first = answers[-1][0]
            return (first[0] if isinstance(first, tuple) else first) not in bad

        wait_for(done)
        return answers[-1]

    busy = {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
    identity = patiently(client.init, bad=busy)[1]
    look()
    patiently(lambda: client.add(identity, 0), bad=busy)
    look()
    patiently(lambda: client.produce(identity, 0, version=PRODUCE_TV1, count=2), bad=busy)
    look()
    client.end(identity, committed=True, version=4)
    wait_for(lambda: client.latest() == client.latest(isolation_level=0))
    wait_for(
        lambda: (
            "CompleteCommit"
            == broker.ask(
                DescribeTransactionsRequest(transactional_ids=(client.transactional_id,)), 0
            )
            .transaction_states[0]
            .transaction_state
        )
    )
    look()
    return notes


def patterns(broker):
    """Filter transactional ids by regular expressions."""
    broker.wait_for_coordinators()
    prefix = f"p{uuid.uuid4().hex}"
    for name in ("a", "a.b", "b"):
        client = TransactionalRequests(f"{prefix}.{name}", "unused")
        client.ask = broker.ask
        wait_for(lambda: client.init()[0] == 0)  # noqa: B023 - called at once

    def listed(pattern):
        answer = broker.ask(list_transactions(pattern=pattern), 2)
        return answer.error_code, sorted(
            state.transactional_id.removeprefix(prefix)
            for state in answer.transaction_states
            if state.transactional_id.startswith(prefix)
        )

    return [
        listed(pattern)
        for pattern in (
            *(None, "", f"{prefix}.*", f"{prefix}\\.a", f"{prefix}.[ab]", prefix),
            *(f"(?i){prefix}.A", f"({prefix}(.(a+|b)+)+)+", rf"\Q{prefix}.a.b", r".*\ba\b.{2}"),
            *("(", "a**", "(?=a)", r"(a)\1", r"\C", r"\pX"),
        )
    ]


def directories(broker):
    """Describe the directory of a broker, and move replicas to it and elsewhere."""
    topic = broker.topic(2)
    broker.produce(topic, GOOD)

    def described(topics, version):
        answer = broker.ask(describe_log_dirs(topics), version)
        [directory] = answer.results
        return (
            answer.error_code,
            directory.error_code,
            directory.is_cordoned,
            sorted(
                (
                    found.name == topic,
                    [
                        (p.partition_index, p.partition_size, p.offset_lag, p.is_future_key)
                        for p in sorted(found.partitions, key=lambda p: p.partition_index)
                    ],
                )
                for found in directory.topics
                if found.name == topic or topics is not None
            ),
        )

    def moved(path, topics):
        answer = broker.ask(alter_replica_log_dirs(path, topics), 2)
        return sorted(
            (len(found.topic_name), p.partition_index, p.error_code)
            for found in answer.results
            for p in found.partitions
        )

    path = broker.ask(describe_log_dirs({}), 5).results[0].log_dir
    wanted = {topic: [1, 1, 7], "no-such": [0]}
    return [
        *(described(None, version) for version in range(1, 6)),
        described(wanted, 5),
        described({}, 5),
        moved(path, {topic: [0, 0, 7], "no-such": [0]}),
        moved("/no-such", {topic: [0]}),
        moved(path, {"x" * 230: [0]}),
    ]


def quorum(broker):
    """Describe the controllers, and partitions that have none."""

    def described(request, version):
        answer = broker.ask(request, version)
        return answer.error_code, [
            (
                found.topic_name,
                [
                    (
                        p.partition_index,
                        p.error_code,
                        p.leader_id,
                        p.leader_epoch > 0,  # how often Kafka's controller was elected varies
                        p.high_watermark > 0,
                        [
                            (
                                voter.replica_id,
                                voter.log_end_offset >= p.high_watermark,
                                voter.last_fetch_timestamp > 0,
                                voter.last_caught_up_timestamp > 0,
                            )
                            for voter in p.current_voters
                        ],
                        p.observers,
                    )
                    for p in found.partitions
                ],
            )
            for found in answer.topics
        ]

    return [
        *(described(describe_quorum(), version) for version in range(3)),
        described(describe_quorum("no-such", 0, 1), 2),
        described(describe_quorum("__cluster_metadata", 1), 2),
        described(describe_quorum("__cluster_metadata", 0, 0), 2),
    ]


def pages(broker):
    """Describe the partitions of topics page by page."""
    names = sorted(broker.topic(2) for _ in range(2))
    first, second = names

    def page(*topics, **more):
        answer = broker.ask(describe_topic_partitions(*topics, **more), 0)
        cursor = answer.next_cursor
        return [
            (
                names.index(found.name) if found.name in names else found.name,
                found.error_code,
                found.is_internal,
                found.topic_id == uuid.UUID(int=0),
                found.topic_authorized_operations,
                [
                    (
                        p.error_code,
                        p.partition_index,
                        p.leader_id,
                        p.leader_epoch,
                        p.replica_nodes,
                        p.isr_nodes,
                        p.eligible_leader_replicas,
                        p.last_known_elr,
                        p.offline_replicas,
                    )
                    for p in found.partitions
                ],
            )
            for found in answer.topics
        ], cursor and (names.index(cursor.topic_name), cursor.partition_index)

    return [
        page(first),
        page(second, first, "a b", "a-missing-one", first, most=1),
        page(second, first, most=2),
        page(first, most=0, cursor=(first, 1)),
        page(first, cursor=(second, 1)),
        page(first, cursor=(first, 9)),
        page(first, cursor=(first, -1)),
        page("__cluster_metadata"),
    ]


def elections(broker):
    """Elect leaders of partitions that have the right one, or do not exist."""
    topic = broker.topic(2)

    def elected(topics, election_type, version=2):
        answer = broker.ask(elect_leaders(topics, election_type), version)
        return answer.error_code, [
            (found.topic == topic, [(p.partition_id, p.error_code) for p in found.partition_result])
            for found in answer.replica_election_results
            if topics is not None
        ]

    some = {topic: [0, 1, 7], "no-such": [0]}
    return [
        elected(some, 0, 0),
        *(elected(some, kind, version) for kind in (0, 1, 5) for version in (1, 2)),
        *(elected(None, kind) for kind in (0, 1, 5)),
    ]


def reassignments(broker):
    """Move partitions to the same broker, and to others."""
    topic = broker.topic(2)
    moves = [
        *(
            (topic, 0, [1]),
            (topic, 1, [1, 77]),
            (topic, 7, [1]),
            (topic, 1, []),
            (topic, 1, [1, 1]),
        ),
        *(("no-such", 0, [1]), (topic, 0, None)),
    ]

    def moved(version, **more):
        answer = broker.ask(reassign(*moves, **more), version)
        return (
            answer.error_code,
            answer.allow_replication_factor_change,
            [
                (found.name == topic, [(p.partition_index, p.error_code) for p in found.partitions])
                for found in answer.responses
            ],
        )

    def listed(topics):
        answer = broker.ask(list_reassignments(topics), 0)
        return answer.error_code, answer.topics

    some = {topic: [0, 9], "no-such": [0]}
    return [moved(0), moved(1), moved(1, keep_factor=True), listed(None), listed(some)]


def broker_settings(broker):
    """Change settings of brokers, which are the defaults of topics, and reset them."""
    topic = broker.topic()
    name = "log.cleaner.min.compaction.lag.ms"

    def described(resource, *keys):
        request = describe_configs(resource, keys=keys, synonyms=True)
        [result] = broker.ask(request, 4).results
        return result.error_code, sorted(
            (
                *(config.name, config.value, config.read_only, config.config_source),
                *(config.is_sensitive, config.config_type),
                [(it.name, it.value, it.source) for it in config.synonyms],
            )
            for config in result.configs
        )

    def altered(resource, *configs, **more):
        request = alter_configs((BROKER, resource, configs), **more)
        return broker.ask(request, 1).responses[0].error_code

    def look():
        return [
            described((TOPIC, topic), "min.compaction.lag.ms", "flush.ms", "cleanup.policy"),
            described((BROKER, "1"), name, "log.flush.interval.ms", "log.cleanup.policy"),
            described((BROKER, ""), name),
        ]

    notes = [
        described((BROKER, "1"), "broker.id", "broker.rack", "log.roll.hours", "num.partitions"),
        described((BROKER, "77"), name),
        described((BROKER, "x"), name),
        described((BROKER_LOGGER, ""), name),
        described((BROKER_LOGGER, "77"), name),
        described((GROUP, ""), name),
        look(),
        altered("", ("num.partitions", SET, "7")),
        altered("", ("log.retention.hours", SET, "7")),
        altered("1", (name, SET, "x")),
        altered("1", (name, SET, None)),
        altered("77", (name, SET, "1")),
        altered("x", (name, SET, "1")),
        altered("", (name, 9, "1")),
        altered("", (name, APPEND, "1")),
        altered("1", (name, SET, "1"), validate_only=True),
        altered("", (name, SET, "1000")),
        altered("1", (name, SET, "2000"), ("log.cleanup.policy", APPEND, "compact")),
    ]
    wait_for(lambda: described((TOPIC, topic), "min.compaction.lag.ms")[1][0][1] == "2000")
    notes.append(look())
    legacy = (TOPIC, topic, {"segment.ms": "5000"}), (BROKER, "1", {}), (BROKER_LOGGER, "1", {})
    notes.append(altered("", (name, DELETE, None)))
    for version in range(3):
        answer = broker.ask(replace_configs(*legacy), version)
        notes.append([response.error_code for response in answer.responses])
    wait_for(lambda: described((TOPIC, topic), "min.compaction.lag.ms")[1][0][1] == "0")
    wait_for(lambda: described((TOPIC, topic), "segment.ms")[1][0][1] == "5000")
    return [*notes, look()]


def resources(broker):
    """List what has settings."""
    topic = broker.topic()

    def listed(*types, version=1):
        answer = broker.ask(ListConfigResourcesRequest(resource_types=types), version)
        return answer.error_code, [
            (found.resource_type, found.resource_name == topic or found.resource_name)
            for found in answer.config_resources
            if found.resource_type != TOPIC or found.resource_name == topic
        ]

    return [listed(version=0), listed(), listed(TOPIC), listed(BROKER), listed(99)]


SCENARIOS = [deletion, partitions, records, settings, epochs, cluster, transactions]


def check(kafka, scenario):
    expected = observe(scenario, int(kafka.bootstrap_servers.rpartition(":")[2]))

    with DevBroker(transaction_version=0 if kafka.version == KAFKA_3 else 2) as devbroker:
        actual = observe(scenario, devbroker.port)

    assert expected == actual


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_admin_requests_get_the_same_answers_as_from_kafka(kafka, scenario):
    """Kafka and the embedded broker give the same answers to the same requests."""
    check(kafka, scenario)


def test_patterns_filter_as_in_kafka(kafka_4):
    """Filters by pattern, which only the newest version supports, work as in Kafka."""
    check(kafka_4, patterns)


NEWEST = [directories, quorum, pages, elections, reassignments, broker_settings, resources]


@pytest.mark.parametrize("scenario", NEWEST, ids=lambda scenario: scenario.__name__)
def test_the_cluster_is_described_and_changed_as_in_kafka(kafka_4, scenario):
    """What older versions do not have, or answer differently, is answered as by the newest."""
    check(kafka_4, scenario)
