"""For each setting, a test which shows that changing it has an observable effect.

A setting that does nothing is worse than a missing one. So every row of `PRODUCER_CONFIG_DEF` has a
row here that names a test, and a new setting cannot be added without one. So has every row of
`CONSUMER_CONFIG_DEF` that the producer does not share, and every setting that the classes of
`KafkaConsumer` and `AdminClient` declare themselves: the others go through the same code.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from spark_kafka_sink.config.admin_config import ADMIN_CONFIG_DEF, AdminConfig
from spark_kafka_sink.config.client_config import ClientConfig
from spark_kafka_sink.config.config_def import ConfigDef
from spark_kafka_sink.config.consumer_config import (
    CONSUMER_CONFIG_DEF,
    KAFKA_CONSUMER_CONFIG_DEF,
    KafkaConsumerConfig,
)
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF
from spark_kafka_sink.config.security_settings import SECURITY_CONFIG_DEF

TESTS = Path(__file__).parents[2]
WIRE = "unit/config/test_settings_on_the_wire.py"
RECORDS = "unit/config/test_settings_of_records.py"
PLACEMENT = "unit/config/test_settings_of_placement.py"
TIME = "unit/config/test_settings_in_time.py"
METRICS = "unit/metrics/test_client_metrics.py"
NETWORK = "unit/network/test_network_client.py"
REBOOTSTRAP = "unit/network/test_rebootstrap.py"
SECURED = "unit/network/authentication/test_secured_connections.py"
ENDPOINT = "unit/network/authentication/test_token_endpoint.py"
SOURCES = "unit/network/authentication/test_token_sources.py"
REFRESH = (
    "unit/network/authentication/test_token_refresh.py"
    "::test_the_settings_determine_when_a_token_is_replaced"
)
READS = "unit/config/test_settings_of_reads.py"
FAILED_WRITES = "unit/producer/test_failed_writes.py"
GROUPS = "unit/config/test_settings_of_groups.py"
ADMIN = "unit/config/test_settings_of_admin.py"
END_TO_END = "unit/consumer/end_to_end"
AUTO_COMMIT = f"{END_TO_END}/commits/test_automatic_commits.py"
READING = f"{END_TO_END}/test_kafka_consumer_reading.py"

OBSERVED = {
    "bootstrap.servers": (
        f"{FAILED_WRITES}::test_the_error_for_unreachable_brokers_names_their_addresses"
    ),
    "acks": f"{WIRE}::test_a_produce_request_has_the_acks",
    "enable.idempotence": f"{WIRE}::test_idempotent_batches_are_numbered",
    "compression.type": f"{WIRE}::test_batches_are_compressed_by_the_configured_codec",
    "compression.gzip.level": f"{WIRE}::test_a_higher_compression_level_shortens_batches",
    "compression.lz4.level": f"{WIRE}::test_a_higher_compression_level_shortens_batches",
    "compression.zstd.level": f"{WIRE}::test_a_higher_compression_level_shortens_batches",
    "batch.size": f"{WIRE}::test_no_batch_is_larger_than_batch_size",
    "buffer.memory": f"{FAILED_WRITES}::test_the_write_fails_if_no_memory_is_freed",
    "max.block.ms": f"{WIRE}::test_max_block_ms_limits_the_wait_for_a_topic",
    "max.request.size": f"{WIRE}::test_a_record_must_fit_into_a_request",
    "max.in.flight.requests.per.connection": (
        f"{WIRE}::test_no_more_requests_are_in_flight_than_allowed"
    ),
    "retries": f"{FAILED_WRITES}::test_the_write_fails_after_the_last_retry",
    "delivery.timeout.ms": (f"{FAILED_WRITES}::test_the_delivery_timeout_fails_the_write"),
    "request.timeout.ms": f"{WIRE}::test_a_produce_request_has_the_request_timeout",
    "retry.backoff.ms": f"{WIRE}::test_a_retry_waits_for_its_backoff",
    "retry.backoff.max.ms": f"{WIRE}::test_the_backoff_grows_up_to_its_maximum",
    "reconnect.backoff.ms": f"{WIRE}::test_reconnecting_waits_for_the_backoff",
    "reconnect.backoff.max.ms": (f"{WIRE}::test_the_reconnect_backoff_grows_up_to_its_maximum"),
    "socket.connection.setup.timeout.ms": f"{WIRE}::test_a_silent_peer_times_out",
    "socket.connection.setup.timeout.max.ms": f"{WIRE}::test_a_silent_peer_times_out",
    "metadata.max.age.ms": f"{WIRE}::test_old_metadata_is_refreshed",
    "metadata.max.idle.ms": f"{TIME}::test_an_idle_topic_expires",
    "metadata.recovery.strategy": (
        f"{REBOOTSTRAP}::test_with_the_strategy_none_only_known_brokers_are_tried"
    ),
    "metadata.recovery.rebootstrap.trigger.ms": (
        f"{REBOOTSTRAP}::test_a_long_time_without_metadata_triggers_a_rebootstrap"
    ),
    "metadata.cluster.check.enable": (
        f"{REBOOTSTRAP}::test_without_the_check_no_broker_is_asked_who_it_is"
    ),
    "connections.max.idle.ms": f"{NETWORK}::test_closing_an_idle_connection_is_not_an_error",
    "client.dns.lookup": (
        f"{REBOOTSTRAP}::test_bootstrap_servers_can_be_resolved_to_canonical_names"
    ),
    "send.buffer.bytes": f"{WIRE}::test_sockets_get_the_configured_buffer_sizes",
    "receive.buffer.bytes": f"{WIRE}::test_sockets_get_the_configured_buffer_sizes",
    "partitioner.ignore.keys": f"{WIRE}::test_keys_can_be_ignored",
    "linger.ms": f"{RECORDS}::test_a_batch_lingers_for_more_records",
    "partitioner.class": f"{RECORDS}::test_the_partitioner_chooses_the_partition_of_a_key",
    "partitioner.adaptive.partitioning.enable": (
        f"{PLACEMENT}::test_adaptive_partitioning_avoids_long_queues"
    ),
    "partitioner.availability.timeout.ms": (
        f"{PLACEMENT}::test_the_partitions_of_a_stuck_node_are_not_chosen"
    ),
    "partitioner.rack.aware": f"{PLACEMENT}::test_partitions_of_the_clients_rack_are_chosen",
    "client.rack": f"{PLACEMENT}::test_partitions_of_the_clients_rack_are_chosen",
    "key.serializer": f"{RECORDS}::test_keys_and_values_are_serialized",
    "value.serializer": f"{RECORDS}::test_keys_and_values_are_serialized",
    "interceptor.classes": f"{RECORDS}::test_records_pass_through_interceptors",
    "transactional.id": f"{RECORDS}::test_init_producer_id_has_id_and_timeout",
    "transaction.timeout.ms": f"{RECORDS}::test_init_producer_id_has_id_and_timeout",
    "metric.reporters": f"{METRICS}::test_a_reporter_can_be_a_class_or_an_object",
    "metrics.num.samples": f"{TIME}::test_the_number_of_samples_is_configurable",
    "metrics.recording.level": f"{TIME}::test_sensors_above_the_recording_level_are_not_recorded",
    "metrics.sample.window.ms": f"{TIME}::test_the_window_of_samples_is_configurable",
    "client.id": f"{WIRE}::test_every_request_has_the_client_id",
    "security.protocol": f"{SECURED}::test_every_security_protocol_works",
    "ssl.truststore.type": f"{SECURED}::test_every_kind_of_truststore_works",
    "ssl.truststore.location": f"{SECURED}::test_every_kind_of_truststore_works",
    "ssl.truststore.password": f"{SECURED}::test_every_kind_of_truststore_works",
    "ssl.truststore.certificates": f"{SECURED}::test_every_kind_of_truststore_works",
    "ssl.keystore.type": f"{SECURED}::test_every_kind_of_keystore_works",
    "ssl.keystore.location": f"{SECURED}::test_every_kind_of_keystore_works",
    "ssl.keystore.password": f"{SECURED}::test_every_kind_of_keystore_works",
    "ssl.keystore.key": f"{SECURED}::test_every_kind_of_keystore_works",
    "ssl.keystore.certificate.chain": f"{SECURED}::test_every_kind_of_keystore_works",
    "ssl.key.password": f"{SECURED}::test_every_kind_of_keystore_works",
    "ssl.endpoint.identification.algorithm": f"{SECURED}::test_the_certificate_must_match_the_host",
    "ssl.protocol": f"{SECURED}::test_tls_versions_and_cipher_suites_can_be_chosen",
    "ssl.enabled.protocols": f"{SECURED}::test_tls_versions_and_cipher_suites_can_be_chosen",
    "ssl.cipher.suites": f"{SECURED}::test_tls_versions_and_cipher_suites_can_be_chosen",
    "sasl.mechanism": f"{SECURED}::test_every_mechanism_works",
    "sasl.jaas.config": f"{SECURED}::test_every_mechanism_works",
    "sasl.login.callback.handler.class": f"{SOURCES}::test_a_function_provides_tokens",
    "sasl.kerberos.service.name": (
        "unit/network/authentication/test_kerberos_tickets.py::test_a_ticket_for_the_brokers_service_is_requested"
    ),
    "sasl.oauthbearer.token.endpoint.url": f"{ENDPOINT}::test_a_token_is_requested_over_https",
    "sasl.oauthbearer.client.credentials.client.id": (
        f"{ENDPOINT}::test_a_token_is_requested_over_https"
    ),
    "sasl.oauthbearer.client.credentials.client.secret": (
        f"{ENDPOINT}::test_a_token_is_requested_over_https"
    ),
    "sasl.oauthbearer.scope": f"{ENDPOINT}::test_the_settings_determine_scope_and_encoding",
    "sasl.oauthbearer.header.urlencode": (
        f"{ENDPOINT}::test_the_settings_determine_scope_and_encoding"
    ),
    "sasl.oauthbearer.sub.claim.name": f"{SOURCES}::test_another_claim_may_be_the_subject",
    "sasl.login.connect.timeout.ms": f"{ENDPOINT}::test_an_unreachable_endpoint_is_an_error",
    "sasl.login.read.timeout.ms": f"{ENDPOINT}::test_a_silent_endpoint_times_out",
    "sasl.login.retry.backoff.ms": f"{ENDPOINT}::test_no_retry_without_time_for_the_backoff",
    "sasl.login.retry.backoff.max.ms": f"{ENDPOINT}::test_requests_to_a_busy_endpoint_are_retried",
    "sasl.login.refresh.window.factor": REFRESH,
    "sasl.login.refresh.window.jitter": REFRESH,
    "sasl.login.refresh.min.period.seconds": REFRESH,
    "sasl.login.refresh.buffer.seconds": REFRESH,
}

#: The settings of a consumer; those that all clients share go through the same code.
OBSERVED_IN_READS = {
    "isolation.level": f"{READS}::test_a_fetch_request_has_the_setting",
    "max.partition.fetch.bytes": f"{READS}::test_a_fetch_request_has_the_setting",
    "fetch.max.bytes": f"{READS}::test_a_fetch_request_has_the_setting",
    "fetch.min.bytes": f"{READS}::test_a_fetch_request_has_the_setting",
    "fetch.max.wait.ms": f"{READS}::test_a_fetch_request_has_the_setting",
    "client.rack": f"{READS}::test_a_fetch_request_has_the_setting",
    "client.id": f"{READS}::test_a_fetch_request_has_the_client_id",
    "receive.buffer.bytes": f"{READS}::test_sockets_get_the_configured_buffer_size",
    "check.crcs": f"{READS}::test_checksums_are_checked_unless_switched_off",
    "max.uncompressed.batch.bytes": f"{READS}::test_a_batch_may_not_grow_beyond_the_limit",
    "default.api.timeout.ms": f"{READS}::test_a_look_up_has_the_configured_time",
}

#: The settings that `KafkaConsumerConfig` declares itself.
OBSERVED_IN_GROUPS = {
    "group.id": f"{GROUPS}::test_a_join_has_the_setting",
    "group.instance.id": f"{GROUPS}::test_a_join_has_the_setting",
    "group.protocol": f"{GROUPS}::test_a_member_names_the_assignor_of_the_broker",
    "group.remote.assignor": f"{GROUPS}::test_a_member_names_the_assignor_of_the_broker",
    "session.timeout.ms": f"{GROUPS}::test_a_join_has_the_setting",
    "heartbeat.interval.ms": f"{GROUPS}::test_heartbeats_follow_the_interval",
    "max.poll.interval.ms": f"{GROUPS}::test_a_join_has_the_setting",
    "max.poll.records": f"{READING}::test_a_poll_returns_at_most_max_poll_records",
    "partition.assignment.strategy": f"{GROUPS}::test_a_join_offers_the_assignors",
    "enable.auto.commit": f"{AUTO_COMMIT}::test_nothing_is_committed_before_a_rebalance_by_hand",
    "auto.commit.interval.ms": f"{AUTO_COMMIT}::test_positions_are_committed_after_the_interval",
    "auto.offset.reset": (
        f"{END_TO_END}/test_kafka_consumer_positions.py::test_by_duration_starts_at_the_time"
    ),
    "max.partition.fetch.bytes": f"{GROUPS}::test_a_fetch_has_the_limit_of_a_partition",
    "key.deserializer": f"{GROUPS}::test_keys_and_values_are_deserialized",
    "value.deserializer": f"{GROUPS}::test_keys_and_values_are_deserialized",
    "interceptor.classes": f"{READING}::test_interceptors_see_records_and_commits",
    "allow.auto.create.topics": f"{GROUPS}::test_a_subscription_may_create_its_topic",
    "exclude.internal.topics": (
        f"{END_TO_END}/test_kafka_consumer_rebalances.py"
        "::test_internal_topics_match_a_pattern_unless_they_are_excluded"
    ),
    "default.api.timeout.ms": (
        f"{END_TO_END}/commits/test_asynchronous_commits.py"
        "::test_an_asynchronous_commit_ends_by_the_default_timeout"
    ),
    "metric.reporters": (
        "unit/consumer/test_kafka_consumer_metrics.py::test_reporters_are_told_and_closed_once"
    ),
    "metrics.num.samples": OBSERVED["metrics.num.samples"],
    "metrics.recording.level": OBSERVED["metrics.recording.level"],
    "metrics.sample.window.ms": OBSERVED["metrics.sample.window.ms"],
    "client.id": f"{GROUPS}::test_a_join_has_the_client_id",
}

#: The settings that `AdminConfig` declares itself; connections are those of all clients.
OBSERVED_IN_ADMIN = {
    "default.api.timeout.ms": f"{ADMIN}::test_a_call_has_the_configured_time",
    "connections.max.idle.ms": OBSERVED["connections.max.idle.ms"],
    "receive.buffer.bytes": OBSERVED["receive.buffer.bytes"],
    "client.id": f"{ADMIN}::test_a_request_has_the_client_id",
}


@cache
def _tests_of(path: Path) -> frozenset[str]:
    """Return the test functions of a module without importing it."""
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    )


def test_every_setting_is_observed():
    """Each setting of the producer has a row, and there are no other rows."""
    assert set(PRODUCER_CONFIG_DEF.names) == set(OBSERVED)


def test_every_setting_of_the_consumer_is_observed():
    """Each setting that only the consumer handles has a row, and there are no other rows."""
    shared = {*ConfigDef.of(ClientConfig).names, *SECURITY_CONFIG_DEF.names}
    assert set(CONSUMER_CONFIG_DEF.names) - shared == set(OBSERVED_IN_READS)


@pytest.mark.parametrize(
    ("config", "table", "observed"),
    [
        (KafkaConsumerConfig, KAFKA_CONSUMER_CONFIG_DEF, OBSERVED_IN_GROUPS),
        (AdminConfig, ADMIN_CONFIG_DEF, OBSERVED_IN_ADMIN),
    ],
)
def test_every_setting_of_another_client_is_observed(config, table, observed):
    """Each setting that its own class declares has a row, and there are no other rows."""
    declared = {name.replace("_", ".") for name in config.__annotations__}
    assert declared.intersection(table.names) == set(observed)


@pytest.mark.parametrize(
    "test",
    [
        *OBSERVED.values(),
        *OBSERVED_IN_READS.values(),
        *OBSERVED_IN_GROUPS.values(),
        *OBSERVED_IN_ADMIN.values(),
    ],
)
def test_the_test_that_observes_a_setting_exists(test):
    """Each row names an existing test."""
    path, _, name = test.partition("::")
    assert name in _tests_of(TESTS / path)
