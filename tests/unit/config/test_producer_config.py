from __future__ import annotations

import dataclasses
import pickle

import pytest

from spark_kafka_sink.config.plugin_reference import PluginReference
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF, REFUSED, ProducerConfig
from spark_kafka_sink.config.security_settings import SecuritySettings
from spark_kafka_sink.errors import ConfigError
from tests.support.producer.producer_configs import config, refusal


def test_defaults_equal_javas_with_three_exceptions():
    """Defaults are those of Kafka 4 except for the codec, the batch size and the client id."""
    assert (
        ProducerConfig(
            bootstrap_servers=(("localhost", 9092),),
            acks=-1,
            enable_idempotence=True,
            compression_type="lz4",
            compression_gzip_level=-1,
            compression_lz4_level=9,
            compression_zstd_level=3,
            batch_size=1_000_000,
            buffer_memory=33_554_432,
            linger_ms=5,
            max_block_ms=60_000,
            max_request_size=1_048_576,
            max_in_flight_requests_per_connection=5,
            retries=2**31 - 1,
            delivery_timeout_ms=120_000,
            request_timeout_ms=30_000,
            retry_backoff_ms=100,
            retry_backoff_max_ms=1_000,
            reconnect_backoff_ms=50,
            reconnect_backoff_max_ms=1_000,
            socket_connection_setup_timeout_ms=10_000,
            socket_connection_setup_timeout_max_ms=30_000,
            metadata_max_age_ms=300_000,
            metadata_max_idle_ms=300_000,
            metadata_recovery_strategy="rebootstrap",
            metadata_recovery_rebootstrap_trigger_ms=300_000,
            metadata_cluster_check_enable=True,
            connections_max_idle_ms=540_000,
            client_dns_lookup="use_all_dns_ips",
            send_buffer_bytes=-1,
            receive_buffer_bytes=32_768,
            partitioner_class=None,
            partitioner_ignore_keys=False,
            partitioner_adaptive_partitioning_enable=True,
            partitioner_availability_timeout_ms=0,
            partitioner_rack_aware=False,
            client_rack="",
            key_serializer=None,
            value_serializer=None,
            interceptor_classes=(),
            transactional_id=None,
            transaction_timeout_ms=60_000,
            metric_reporters=(),
            metrics_num_samples=2,
            metrics_recording_level="INFO",
            metrics_sample_window_ms=30_000,
            client_id="spark-kafka-sink",
            security=config().security,
        )
        == config()
    )


def test_every_row_of_the_table_is_an_attribute():
    """The attributes are the names of the table with underscores."""
    classes = (ProducerConfig, SecuritySettings)
    fields = {it.name for each in classes for it in dataclasses.fields(each) if it.compare}
    fields -= {"security", "allow_auto_create_topics"}
    assert {name.replace(".", "_") for name in PRODUCER_CONFIG_DEF.names} == fields


def test_no_setting_is_both_supported_and_unsupported():
    """No setting is in both tables."""
    assert set() == set(PRODUCER_CONFIG_DEF.names) & set(REFUSED)


def test_a_configuration_can_be_pickled():
    """A configuration equals itself after pickling."""
    assert config(acks="1") == pickle.loads(pickle.dumps(config(acks="1")))  # noqa: S301 -- our own bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1", (("a", 1),)),
        (" a.example:1 ,b:65535", (("a.example", 1), ("b", 65_535))),
        ("PLAINTEXT://a:1", (("a", 1),)),
        ("[::1]:9092", (("::1", 9092),)),
        ("127.0.0.1:9092,127.0.0.1:9092", (("127.0.0.1", 9092),)),
        ("a:1,,b:2,", (("a", 1), ("b", 2))),
    ],
)
def test_addresses_are_parsed_as_in_java(text, expected):
    """Addresses are host:port, with an optional protocol and IPv6 brackets, each used once."""
    assert expected == config(bootstrap_servers=text).bootstrap_servers


def test_addresses_may_be_a_list():
    """Addresses may be a Python list."""
    assert (("a", 1), ("b", 2)) == config(bootstrap_servers=["a:1", "b:2"]).bootstrap_servers


@pytest.mark.parametrize("text", ["a", "a:", ":1", "a:0", "a:65536", "a:b", "a b:1", "a:1:"])
def test_an_invalid_address_is_rejected(text):
    """The error shows an address that is not host:port with a port from 1 to 65535."""
    assert f"bootstrap.servers: {text!r} is not host:port, such as localhost:9092" == refusal(
        bootstrap_servers=text
    )


@pytest.mark.parametrize("password", ["p@ss", "pa,ss", "p,a@s,s"])
def test_a_password_in_an_address_is_not_shown(password):
    """Kafka's addresses have no user, as URLs have; the error says where user and password go."""
    assert (
        "bootstrap.servers: '[hidden]@kafka:9092' is not host:port, such as localhost:9092; user "
        "and password belong in sasl.jaas.config"
    ) == refusal(bootstrap_servers=f"a:1,SASL_SSL://user:{password}@kafka:9092")


def test_addresses_are_required():
    """A configuration without bootstrap.servers is an error."""
    with pytest.raises(ConfigError, match=r"^kafka\.bootstrap\.servers is required: "):
        ProducerConfig.from_mapping({}, prefix="kafka.")


def test_addresses_must_not_be_empty():
    """A bootstrap.servers without any address is an error."""
    assert "bootstrap.servers contains no address: set host:port, or several" == refusal(
        bootstrap_servers=" , "
    )


@pytest.mark.parametrize(
    ("given", "expected"), [("all", -1), ("-1", -1), (-1, -1), ("0", 0), (1, 1)]
)
def test_acks_is_converted_to_a_number(given, expected):
    """The words and numbers for acks are converted to an int, and `all` to -1."""
    assert expected == config(acks=given).acks


@pytest.mark.parametrize("value", ["2", "ALL", "-2"])
def test_other_values_of_acks_are_rejected(value):
    """Other values of acks than Kafka's four are an error."""
    assert f"acks must be one of: all, -1, 0, 1, not {value!r}" == refusal(acks=value)


@pytest.mark.parametrize("settings", [{"acks": "0"}, {"acks": "1"}, {"retries": "0"}])
def test_default_idempotence_is_disabled_by_conflicting_settings(settings):
    """acks=0, acks=1 and retries=0 disable idempotence that is on only by default."""
    assert not config(**settings).enable_idempotence


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"acks": "1"}, "acks must be all with enable.idempotence=true"),
        ({"acks": "0"}, "acks must be all with enable.idempotence=true"),
        ({"retries": "0"}, "retries must be greater than 0 with enable.idempotence=true"),
    ],
)
def test_explicit_idempotence_contradicts_conflicting_settings(settings, expected):
    """An explicit enable.idempotence=true contradicts acks=0, acks=1 and retries=0."""
    assert expected == refusal(enable_idempotence="true", **settings)


@pytest.mark.parametrize("settings", [{}, {"acks": "1"}, {"enable_idempotence": "true"}])
def test_idempotence_allows_five_requests_in_flight(settings):
    """With idempotence, more than five in-flight requests are an error, as in Kafka 4."""
    message = refusal(max_in_flight_requests_per_connection="6", **settings)
    assert "max.in.flight.requests.per.connection must be at most 5 with" in message


def test_without_idempotence_any_number_may_be_in_flight():
    """Without idempotence, more than five requests may be in flight."""
    settings = config(enable_idempotence=False, max_in_flight_requests_per_connection=50)
    assert 50 == settings.max_in_flight_requests_per_connection


def test_a_delivery_timeout_that_is_too_short_is_rejected():
    """A given delivery.timeout.ms below linger.ms + request.timeout.ms is an error."""
    assert (
        "delivery.timeout.ms is 30004, but must be at least linger.ms + request.timeout.ms, "
        "which is 30005" == refusal(delivery_timeout_ms="30004")
    )


def test_a_delivery_timeout_may_equal_the_sum_of_its_parts():
    """A given delivery.timeout.ms may equal linger.ms + request.timeout.ms."""
    assert 30_005 == config(delivery_timeout_ms=30_005).delivery_timeout_ms


def test_the_default_delivery_timeout_grows_with_the_request_timeout():
    """A long request.timeout.ms raises the default of delivery.timeout.ms."""
    assert 500_005 == config(request_timeout_ms=500_000).delivery_timeout_ms


def test_the_delivery_timeout_is_limited_to_a_32_bit_int():
    """The raised default of delivery.timeout.ms is limited to a 32-bit int."""
    settings = config(linger_ms=2**40, request_timeout_ms=2**31 - 1)
    assert 2**31 - 1 == settings.delivery_timeout_ms


@pytest.mark.parametrize("settings", [{"acks": "1"}, {"retries": 0}, {"enable_idempotence": False}])
def test_transactions_require_idempotence(settings):
    """A transactional id contradicts settings that disable idempotence."""
    assert (
        "transactional.id requires enable.idempotence=true, which requires acks=all and retries "
        "greater than 0" == refusal(transactional_id="t", **settings)
    )


def test_an_empty_transactional_id_is_rejected():
    """An empty transactional id is an error, as in Java."""
    assert "transactional.id must not be empty, not ' '" == refusal(transactional_id=" ")


def test_a_transactional_id_is_accepted():
    """A transactional id is accepted with idempotence at its default."""
    settings = config(transactional_id=" t 1 ")
    assert ("t 1", True) == (settings.transactional_id, settings.enable_idempotence)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("0", "must be at least 1, not '0'"),
        ("2147483648", "must be a 32-bit integer without a unit, not '2147483648'"),
    ],
)
def test_a_transaction_timeout_is_a_positive_int(value, problem):
    """The transaction timeout is from 1 to 2^31-1 ms; brokers have their own limit."""
    assert f"transaction.timeout.ms {problem}" == refusal(transaction_timeout_ms=value)


@pytest.mark.parametrize("value", ["NONE", "none", "Rebootstrap"])
def test_the_recovery_strategy_is_case_insensitive(value):
    """metadata.recovery.strategy is case-insensitive (KIP-899)."""
    settings = config(metadata_recovery_strategy=value)
    assert value.lower() == settings.metadata_recovery_strategy


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("metadata.recovery.strategy", "x", "must be one of: none, rebootstrap, not 'x'"),
        ("metadata.recovery.rebootstrap.trigger.ms", -1, "must be at least 0, not -1"),
        ("metadata.max.idle.ms", 4_999, "must be at least 5000, not 4999"),
        ("send.buffer.bytes", -2, "must be at least -1, not -2"),
        ("receive.buffer.bytes", -2, "must be at least -1, not -2"),
        (
            "client.dns.lookup",
            "default",
            (
                "must be one of: use_all_dns_ips, resolve_canonical_bootstrap_servers_only, not "
                "'default'"
            ),
        ),
        ("metrics.num.samples", 0, "must be at least 1, not 0"),
        ("metrics.sample.window.ms", -1, "must be at least 0, not -1"),
        ("metrics.recording.level", "info", "must be one of: INFO, DEBUG, TRACE, not 'info'"),
        ("partitioner.availability.timeout.ms", -1, "must be at least 0, not -1"),
        ("partitioner.adaptive.partitioning.enable", "on", "must be true or false, not 'on'"),
    ],
)
def test_values_that_kafka_rejects_are_rejected(name, value, problem):
    """The ranges and words of settings are Kafka's."""
    assert f"{name} {problem}" == refusal(**{name.replace(".", "_"): value})


@pytest.mark.parametrize("value", [-1, 0, 2**63 - 1])
def test_the_maximum_idle_time_has_no_bounds(value):
    """connections.max.idle.ms has no bounds, as in Java."""
    assert value == config(connections_max_idle_ms=value).connections_max_idle_ms


def test_a_retry_backoff_may_exceed_its_maximum():
    """A retry.backoff.ms above its maximum is not an error."""
    settings = config(retry_backoff_ms=5_000)
    assert (5_000, 1_000) == (settings.retry_backoff_ms, settings.retry_backoff_max_ms)


def test_plugins_become_references():
    """Serializers, partitioner, interceptors and reporters become references."""
    settings = config(
        key_serializer="org.apache.kafka.common.serialization.LongSerializer",
        value_serializer=len,
        partitioner_class="fnv1a",
        interceptor_classes=["a:b", len],
        metric_reporters="a:b, c:d",
    )
    assert PluginReference("int64") == settings.key_serializer
    assert PluginReference(target=len) == settings.value_serializer
    assert PluginReference("fnv1a") == settings.partitioner_class
    assert (
        PluginReference(import_path="a:b"),
        PluginReference(target=len),
    ) == settings.interceptor_classes
    assert ("a:b", "c:d") == tuple(each.import_path for each in settings.metric_reporters)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("key.serializer", "bytes"),
        ("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer"),
        ("partitioner.class", "default"),
        ("partitioner.class", ""),
    ],
)
def test_default_behaviour_needs_no_plugin(name, value):
    """The bytes serializer and the default partitioner, by any name, need no plug-in."""
    assert config() == config(**{name.replace(".", "_"): value})


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("interceptor.classes", "a:b,,c:d", "interceptor, or the object itself, not ''"),
        ("metric.reporters", [5], "reporter, or the object itself, not 5"),
        ("key.serializer", None, "serializer, or the object itself, not None"),
    ],
)
def test_an_invalid_plugin_is_rejected(name, value, problem):
    """The error for an invalid plug-in names its setting."""
    message = refusal(**{name.replace(".", "_"): value})
    assert message.startswith(f"{name} must be ")
    assert message.endswith(problem)


def test_names_of_settings_must_be_strings():
    """A setting whose name is not a string is an error."""
    with pytest.raises(ConfigError, match=r"^the name of a setting must be a string, not 5$"):
        ProducerConfig.from_mapping({"bootstrap.servers": "a:1", 5: 5})


def test_configurations_are_immutable_and_compared_by_value():
    """Equal settings give equal configurations with equal hashes, which are immutable."""
    assert {config(acks=1, linger_ms=2)} == {config(acks="1", linger_ms=" 2 ")}
    assert config(acks=1) != config(acks=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().acks = 1


def test_the_repr_shows_settings_but_not_the_content_of_objects():
    """The repr shows each setting, but only the type of an object."""

    class Vault:
        def __repr__(self):
            return "hunter2"

    shown = repr(config(value_serializer=Vault()))
    assert "hunter2" not in shown
    assert "Vault)" in shown
    assert "linger_ms=5, " in shown
    assert "_origin" not in shown


def test_a_batch_must_fit_into_memory():
    """A given batch.size above buffer.memory is an error."""
    assert "batch.size is 2000, but must not exceed buffer.memory, which is 1000" == refusal(
        batch_size=2000, buffer_memory=1000
    )


@pytest.mark.parametrize("settings", [{"buffer_memory": 70_000}, {"max_request_size": 70_000}])
def test_the_default_batch_size_fits_into_memory_and_requests(settings):
    """The default of batch.size does not exceed buffer.memory or max.request.size."""
    assert 70_000 == config(**settings).batch_size


def test_an_explicit_batch_size_may_exceed_a_request():
    """A batch may be larger than a request: it is then sent alone, as in Java."""
    assert 2_000_000 == config(batch_size=2_000_000).batch_size


def test_a_reconnect_backoff_alone_is_constant():
    """A reconnect.backoff.ms without a maximum is its own maximum, as in Java."""
    assert 5_000 == config(reconnect_backoff_ms="5000").reconnect_backoff_max_ms
    assert 20 == config(reconnect_backoff_ms="20").reconnect_backoff_max_ms


def test_a_reconnect_backoff_with_its_maximum_grows():
    """A given reconnect.backoff.max.ms is not changed."""
    settings = config(reconnect_backoff_ms=20, reconnect_backoff_max_ms=300)
    assert 300 == settings.reconnect_backoff_max_ms


@pytest.mark.parametrize(
    ("codec", "expected"), [("none", None), ("gzip", -1), ("snappy", None), ("lz4", 9), ("zstd", 3)]
)
def test_the_compression_level_is_that_of_the_codec(codec, expected):
    """The compression level is that of the configured codec."""
    assert expected == config(compression_type=codec).compression_level


@pytest.mark.parametrize(
    ("codec", "level"), [("gzip", "1"), ("gzip", "9"), ("lz4", "17"), ("zstd", "-131072")]
)
def test_levels_at_the_ends_of_their_ranges_are_accepted(codec, level):
    """The ranges of KIP-390 include their ends."""
    settings = ProducerConfig.from_mapping(
        {"bootstrap.servers": "a:1", "compression.type": codec, f"compression.{codec}.level": level}
    )
    assert int(level) == settings.compression_level


@pytest.mark.parametrize(
    ("codec", "level"),
    [("gzip", 0), ("gzip", 10), ("lz4", 0), ("lz4", 18), ("zstd", 23), ("zstd", -131_073)],
)
def test_levels_out_of_their_ranges_are_rejected(codec, level):
    """The ranges of KIP-390 are enforced, even for codecs that are not in use."""
    with pytest.raises(ConfigError, match=rf"^compression\.{codec}\.level must be "):
        ProducerConfig.from_mapping(
            {"bootstrap.servers": "a:1", f"compression.{codec}.level": level}
        )


def test_an_unknown_codec_is_rejected():
    """The error for an unknown codec lists the known ones."""
    assert (
        "compression.type must be one of: none, gzip, snappy, lz4, zstd, not 'brotli'"
        == refusal(compression_type="brotli")
    )


@pytest.mark.parametrize(
    ("value", "expected"), [("0.5", 0.5), (" 1 ", 1.0), (1, 1.0), ("8e-1", 0.8)]
)
def test_fractions_are_accepted(value, expected):
    """A setting of Java's type double accepts fractions."""
    made = config(security_protocol="SASL_SSL", sasl_login_refresh_window_factor=value)
    assert expected == made.security.sasl_login_refresh_window_factor


def test_kafkas_two_phase_commit_is_rejected_with_the_reason():
    """Two-phase commit is rejected, since stable brokers do not support it yet."""
    with pytest.raises(ConfigError, match=r"never time out \(KIP-939\).* 6 of InitProducerId"):
        config(transaction_two_phase_commit_enable="true")


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_each_unsupported_setting_is_rejected_with_the_reason(name):
    """The error for an unsupported setting gives the reason."""
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_mapping({"bootstrap.servers": "a:1", name: "x"}, prefix="kafka.")
    assert f"kafka.{name} is not supported: {REFUSED[name].reason}" == str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in REFUSED for value in REFUSED[name].accepted]
)
def test_unsupported_settings_are_accepted_if_they_change_nothing(name, value):
    """An unsupported setting is accepted with a value that describes the actual behaviour."""
    assert config() == ProducerConfig.from_mapping(
        {"bootstrap.servers": "localhost:9092", name: value}
    )


def test_an_unknown_setting_is_rejected_with_a_suggestion():
    """The error for an unknown setting suggests the nearest known one."""
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_mapping({"bootstrap.servers": "a:1", "linger": 1}, prefix="kafka.")
    assert "unknown option 'kafka.linger'; did you mean 'kafka.linger.ms'?" == str(caught.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("kafka.acks", "acks"),
        ("kafka.ack", "acks"),
        ("Kafka.Linger.Ms", "linger.ms"),
        ("kafka.transaction.two.phase.commit.enable", "transaction.two.phase.commit.enable"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "kafka."])
def test_a_setting_with_sparks_prefix_is_rejected_with_its_own_name(name, meant, prefix):
    """For a name with Spark's prefix, the error suggests the setting's own name."""
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_mapping({"bootstrap.servers": "a:1", name: "1"}, prefix=prefix)
    assert f"unknown option '{prefix}{name}'; did you mean '{prefix}{meant}'?" == str(caught.value)


@pytest.mark.parametrize(
    "name", ["max.request.size", "buffer.memory", "max.in.flight.requests.per.connection"]
)
def test_settings_that_would_prevent_sending_are_rejected(name):
    """Settings with which a producer could not send anything are an error."""
    with pytest.raises(ConfigError, match="must be at least 1, not 0"):
        ProducerConfig.from_mapping({"bootstrap.servers": "a:1", name: 0})
