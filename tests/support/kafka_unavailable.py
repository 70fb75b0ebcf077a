"""What happens where a real Kafka cannot be had.

Elsewhere the tests that need one skip, with the reason. Under CI they fail: there a suite that
never met Kafka must not look like one that did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping


class KafkaUnavailableError(Exception):
    """A real Kafka cannot be had in this way; the message says why."""

    what = "a real Kafka"


class KerberosUnavailableError(KafkaUnavailableError):
    """What the tests of Kerberos need beside Kafka cannot be had; the message says what and why."""

    what = "Kerberos (scripts/find_kerberos.sh)"


def skip_or_fail(reason: KafkaUnavailableError, environment: Mapping[str, str]) -> NoReturn:
    """Skip the test that asks, or fail it where `CI` is set."""
    if environment.get("CI", "").lower() not in {"", "0", "false"}:
        pytest.fail(f"CI needs {reason.what}: {reason}", pytrace=False)
    pytest.skip(str(reason))
