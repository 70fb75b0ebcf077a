"""What happens where a real Kafka cannot be had.

Elsewhere the tests that need one skip, with the reason. Under CI they fail: there a suite that
never met Kafka must not look like one that did. What may be missing there too, so that the reason
is all that CI tells of it: Kerberos, whose parts only root can install, and Spark's own Kafka
source, of which mirrors of Maven's repository have some versions and not others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping


class KafkaUnavailableError(Exception):
    """A real Kafka cannot be had in this way; the message says why."""

    ci_needs_it = True


class KerberosUnavailableError(KafkaUnavailableError):
    """What the tests of Kerberos need beside Kafka is not installed; the message says what."""

    ci_needs_it = False


class SparkSourceUnavailableError(KafkaUnavailableError):
    """The jars of Spark's own Kafka source cannot be had; the message says what Maven said."""

    ci_needs_it = False


def skip_or_fail(reason: KafkaUnavailableError, environment: Mapping[str, str]) -> NoReturn:
    """Skip the test that asks, or fail it where `CI` is set and needs what is missing."""
    if reason.ci_needs_it and environment.get("CI", "").lower() not in {"", "0", "false"}:
        pytest.fail(f"CI needs a real Kafka: {reason}", pytrace=False)
    pytest.skip(str(reason))
