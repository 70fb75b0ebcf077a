"""Where a real Kafka is missing."""

from __future__ import annotations

import pytest

from tests.support.kafka_unavailable import (
    KafkaUnavailableError,
    KerberosUnavailableError,
    skip_or_fail,
)

REASON = KafkaUnavailableError("no Maven")


@pytest.mark.parametrize("environment", [{}, {"CI": ""}, {"CI": "false"}, {"CI": "0"}])
def test_a_missing_kafka_skips_with_the_reason(environment):
    """On somebody's own machine a test that finds no Kafka skips and says why."""
    with pytest.raises(pytest.skip.Exception, match="no Maven"):
        skip_or_fail(REASON, environment)


@pytest.mark.parametrize("value", ["true", "1", "yes"])
def test_a_missing_kafka_fails_under_ci(value):
    """Where CI is set, a test that finds no Kafka fails and says why."""
    with pytest.raises(pytest.fail.Exception, match="no Maven"):
        skip_or_fail(REASON, {"CI": value})


def test_a_missing_kerberos_skips_under_ci_too():
    """What only root can install is not asked of every machine; the reason is told."""
    with pytest.raises(pytest.skip.Exception, match="krb5kdc: not installed"):
        skip_or_fail(KerberosUnavailableError("krb5kdc: not installed"), {"CI": "true"})
