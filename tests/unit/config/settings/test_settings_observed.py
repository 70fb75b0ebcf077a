"""For each setting, a test which shows that changing it has an observable effect.

A setting that does nothing is worse than a missing one. So every row of `PRODUCER_CONFIG_DEF` has a
row here that names a test, and a new setting cannot be added without one.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from spark_kafka_sink.config.producer_settings import PRODUCER_CONFIG_DEF

TESTS = Path(__file__).parents[3]
WIRE = "unit/config/settings/test_settings_on_the_wire.py"
RECORDS = "unit/config/settings/test_settings_of_records.py"
PLACEMENT = "unit/config/settings/test_settings_of_placement.py"
TIME = "unit/config/settings/test_settings_in_time.py"
METRICS = "unit/producer/measures/test_producer_metrics.py"
NETWORK = "unit/network/test_network_client.py"
REBOOTSTRAP = "unit/network/test_rebootstrap.py"
SECURED = "unit/network/authentication/test_secured_connections.py"
ENDPOINT = "unit/network/authentication/test_token_endpoint.py"
SOURCES = "unit/network/authentication/test_token_sources.py"
REFRESH = (
    "unit/network/authentication/test_token_refresh.py"
    "::test_when_a_token_is_replaced_is_as_the_settings_say"
)
FAILED_WRITES = "unit/producer/test_failed_writes.py"

OBSERVED = {
    "bootstrap.servers": f"{FAILED_WRITES}::test_unreachable_brokers_are_told_with_their_addresses",
    "acks": f"{WIRE}::test_acks_are_asked_for",
    "enable.idempotence": f"{WIRE}::test_idempotent_batches_are_numbered",
    "compression.type": f"{WIRE}::test_batches_are_compressed_by_the_codec_that_was_chosen",
    "compression.gzip.level": f"{WIRE}::test_the_level_of_compression_shows_in_the_batches",
    "compression.lz4.level": f"{WIRE}::test_the_level_of_compression_shows_in_the_batches",
    "compression.zstd.level": f"{WIRE}::test_the_level_of_compression_shows_in_the_batches",
    "batch.size": f"{WIRE}::test_no_batch_is_larger_than_batch_size",
    "buffer.memory": f"{FAILED_WRITES}::test_memory_that_does_not_come_free_fails_the_write",
    "max.block.ms": f"{WIRE}::test_a_topic_is_waited_for_no_longer_than_asked",
    "max.request.size": f"{WIRE}::test_a_record_must_fit_into_a_request",
    "max.in.flight.requests.per.connection": (
        f"{WIRE}::test_no_more_requests_are_in_flight_than_allowed"
    ),
    "retries": f"{FAILED_WRITES}::test_no_more_retries_than_allowed",
    "delivery.timeout.ms": (
        f"{FAILED_WRITES}::test_a_batch_that_is_not_acknowledged_in_time_fails_the_write"
    ),
    "request.timeout.ms": f"{WIRE}::test_the_broker_is_told_how_long_the_client_waits",
    "retry.backoff.ms": f"{WIRE}::test_a_retry_waits_for_its_backoff",
    "retry.backoff.max.ms": f"{WIRE}::test_the_backoff_grows_up_to_its_maximum",
    "reconnect.backoff.ms": f"{WIRE}::test_a_lost_broker_is_connected_to_after_a_backoff",
    "reconnect.backoff.max.ms": (f"{WIRE}::test_the_backoff_of_connecting_grows_up_to_its_maximum"),
    "socket.connection.setup.timeout.ms": f"{WIRE}::test_a_peer_that_says_nothing_is_given_up",
    "socket.connection.setup.timeout.max.ms": f"{WIRE}::test_a_peer_that_says_nothing_is_given_up",
    "metadata.max.age.ms": f"{WIRE}::test_metadata_is_asked_for_again_when_it_is_old",
    "metadata.max.idle.ms": f"{TIME}::test_a_topic_is_forgotten_when_it_was_idle_for_so_long",
    "metadata.recovery.strategy": (
        f"{REBOOTSTRAP}::test_with_the_strategy_none_only_known_brokers_are_tried"
    ),
    "metadata.recovery.rebootstrap.trigger.ms": (
        f"{REBOOTSTRAP}::test_brokers_that_give_no_metadata_for_too_long_are_forgotten"
    ),
    "connections.max.idle.ms": f"{NETWORK}::test_an_idle_connection_is_closed_without_an_alarm",
    "client.dns.lookup": (
        f"{REBOOTSTRAP}::test_the_bootstrap_servers_become_nodes_by_their_canonical_names"
    ),
    "send.buffer.bytes": f"{WIRE}::test_sockets_get_the_buffers_that_were_asked_for",
    "receive.buffer.bytes": f"{WIRE}::test_sockets_get_the_buffers_that_were_asked_for",
    "partitioner.ignore.keys": f"{WIRE}::test_keys_may_be_ignored",
    "linger.ms": f"{RECORDS}::test_a_batch_waits_for_more_records",
    "partitioner.class": f"{RECORDS}::test_the_partitioner_decides_where_records_go",
    "partitioner.adaptive.partitioning.enable": (
        f"{PLACEMENT}::test_adaptive_partitioning_spares_long_queues"
    ),
    "partitioner.availability.timeout.ms": (
        f"{PLACEMENT}::test_a_node_that_takes_nothing_for_too_long_gets_nothing"
    ),
    "key.serializer": f"{RECORDS}::test_serializers_make_the_bytes",
    "value.serializer": f"{RECORDS}::test_serializers_make_the_bytes",
    "interceptor.classes": f"{RECORDS}::test_interceptors_see_records",
    "transactional.id": f"{RECORDS}::test_a_transactional_producer_introduces_itself",
    "transaction.timeout.ms": f"{RECORDS}::test_a_transactional_producer_introduces_itself",
    "metric.reporters": f"{METRICS}::test_a_reporter_may_be_a_class_or_an_object",
    "metrics.num.samples": f"{TIME}::test_a_metric_remembers_so_many_samples",
    "metrics.recording.level": f"{TIME}::test_what_is_finer_than_the_level_is_not_recorded",
    "metrics.sample.window.ms": f"{TIME}::test_a_sample_lasts_as_long_as_its_window",
    "client.id": f"{WIRE}::test_every_request_carries_the_clients_name",
    "security.protocol": f"{SECURED}::test_each_protocol_gets_through",
    "ssl.truststore.type": f"{SECURED}::test_a_truststore_says_whom_to_trust",
    "ssl.truststore.location": f"{SECURED}::test_a_truststore_says_whom_to_trust",
    "ssl.truststore.password": f"{SECURED}::test_a_truststore_says_whom_to_trust",
    "ssl.truststore.certificates": f"{SECURED}::test_a_truststore_says_whom_to_trust",
    "ssl.keystore.type": f"{SECURED}::test_a_keystore_says_who_the_client_is",
    "ssl.keystore.location": f"{SECURED}::test_a_keystore_says_who_the_client_is",
    "ssl.keystore.password": f"{SECURED}::test_a_keystore_says_who_the_client_is",
    "ssl.keystore.key": f"{SECURED}::test_a_keystore_says_who_the_client_is",
    "ssl.keystore.certificate.chain": f"{SECURED}::test_a_keystore_says_who_the_client_is",
    "ssl.key.password": f"{SECURED}::test_a_keystore_says_who_the_client_is",
    "ssl.endpoint.identification.algorithm": f"{SECURED}::test_the_certificate_is_for_the_host",
    "ssl.protocol": f"{SECURED}::test_versions_and_suites_may_be_chosen",
    "ssl.enabled.protocols": f"{SECURED}::test_versions_and_suites_may_be_chosen",
    "ssl.cipher.suites": f"{SECURED}::test_versions_and_suites_may_be_chosen",
    "sasl.mechanism": f"{SECURED}::test_each_mechanism_gets_through",
    "sasl.jaas.config": f"{SECURED}::test_each_mechanism_gets_through",
    "sasl.login.callback.handler.class": f"{SOURCES}::test_a_function_gives_tokens",
    "sasl.kerberos.service.name": (
        "unit/network/authentication/test_kerberos_tickets.py::test_a_ticket_is_asked_for_the_brokers_service"
    ),
    "sasl.oauthbearer.token.endpoint.url": f"{ENDPOINT}::test_a_token_is_asked_for_over_https",
    "sasl.oauthbearer.client.credentials.client.id": (
        f"{ENDPOINT}::test_a_token_is_asked_for_over_https"
    ),
    "sasl.oauthbearer.client.credentials.client.secret": (
        f"{ENDPOINT}::test_a_token_is_asked_for_over_https"
    ),
    "sasl.oauthbearer.scope": f"{ENDPOINT}::test_scope_and_encoding_are_as_the_settings_say",
    "sasl.oauthbearer.header.urlencode": (
        f"{ENDPOINT}::test_scope_and_encoding_are_as_the_settings_say"
    ),
    "sasl.oauthbearer.sub.claim.name": f"{SOURCES}::test_another_claim_names_the_subject",
    "sasl.login.connect.timeout.ms": f"{ENDPOINT}::test_an_endpoint_that_does_not_listen_is_told",
    "sasl.login.read.timeout.ms": f"{ENDPOINT}::test_an_endpoint_that_keeps_silent_is_given_up",
    "sasl.login.retry.backoff.ms": f"{ENDPOINT}::test_a_busy_endpoint_is_given_time",
    "sasl.login.retry.backoff.max.ms": f"{ENDPOINT}::test_a_busy_endpoint_is_asked_again",
    "sasl.login.refresh.window.factor": REFRESH,
    "sasl.login.refresh.window.jitter": REFRESH,
    "sasl.login.refresh.min.period.seconds": REFRESH,
    "sasl.login.refresh.buffer.seconds": REFRESH,
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


@pytest.mark.parametrize("setting", OBSERVED)
def test_the_test_that_observes_a_setting_exists(setting):
    """Each row names an existing test."""
    path, _, name = OBSERVED[setting].partition("::")
    assert name in _tests_of(TESTS / path)
