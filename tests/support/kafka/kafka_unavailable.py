"""The handling of tests that need a real Kafka when none is available.

Such tests are skipped with the reason. Under CI they fail, since a suite that ran without Kafka
must not look like one that ran with it. Two parts may be missing under CI too, where their tests
are skipped: Kerberos, which only root can install, and Spark's own Kafka source, of which Maven
mirrors have only some versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import pytest

from tests.support.skips import ToleratedSkip, is_ci

if TYPE_CHECKING:
    from collections.abc import Mapping


class KafkaUnavailableError(Exception):
    """A real Kafka is not available in this way; the message says why."""

    ci_needs_it = True


class KerberosUnavailableError(KafkaUnavailableError):
    """What the tests of Kerberos need besides Kafka is not installed; the message says what."""

    ci_needs_it = False


class SparkSourceUnavailableError(KafkaUnavailableError):
    """The jars of Spark's own Kafka source are not available; the message is Maven's."""

    ci_needs_it = False


class KafkaFailedError(Exception):
    """An available broker exits, or does not start or stop in time: its tests fail everywhere."""


def skip_or_fail(reason: KafkaUnavailableError, environment: Mapping[str, str]) -> NoReturn:
    """Skip the current test, or fail it if `CI` is set and requires what is missing."""
    if ci_needs(reason, environment):
        pytest.fail(f"CI needs a real Kafka: {reason}", pytrace=False)
    raise ToleratedSkip(str(reason))


def ci_needs(missing: KafkaUnavailableError, environment: Mapping[str, str]) -> bool:
    """Return whether the tests run under CI, and CI requires what is missing."""
    return missing.ci_needs_it and is_ci(environment)
