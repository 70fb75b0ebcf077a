"""Tests that need a real Kafka which is missing."""

from __future__ import annotations

import pytest

from tests.support.kafka.kafka_unavailable import (
    KafkaUnavailableError,
    KerberosUnavailableError,
    SparkSourceUnavailableError,
    skip_or_fail,
)

REASON = KafkaUnavailableError("no Maven")


@pytest.mark.parametrize("environment", [{}, {"CI": ""}, {"CI": "false"}, {"CI": "0"}])
def test_a_missing_kafka_skips_with_the_reason(environment):
    """On a developer's machine a test without Kafka is skipped, with the reason."""
    with pytest.raises(pytest.skip.Exception, match="no Maven"):
        skip_or_fail(REASON, environment)


@pytest.mark.parametrize("value", ["true", "1", "yes"])
def test_a_missing_kafka_fails_under_ci(value):
    """If CI is set, a test without Kafka fails, with the reason."""
    with pytest.raises(pytest.fail.Exception, match="no Maven"):
        skip_or_fail(REASON, {"CI": value})


@pytest.mark.parametrize("kind", [KerberosUnavailableError, SparkSourceUnavailableError])
def test_optional_dependencies_skip_under_ci_too(kind):
    """Missing Kerberos packages and Spark jars skip a test, with the reason."""
    with pytest.raises(pytest.skip.Exception, match="krb5kdc: not installed"):
        skip_or_fail(kind("krb5kdc: not installed"), {"CI": "true"})
