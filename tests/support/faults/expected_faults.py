"""A fault that a test injects must act, or the test might pass without what it is about.

While a test runs, `DevBroker.on` and `SchemaRegistry.on` expect each action to be injected at least
once, unless the test says `expect=False`, for instance because it shows that no such request is
sent. A function may be meant to watch requests only, so it is expected to act only with
`expect=True`.

The broker is not imported here, or a mistake in any of its modules would keep all tests from being
collected.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.kafka.real_kafka import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_kafka_sink.devbroker.net.faults import Hook

#: How long a test waits for a fault; one that passes never waits as long.
_PATIENCE_SECONDS: Final = 120.0


@contextmanager
def expected_faults() -> Iterator[None]:
    """Raise AssertionError at the end if an action that was installed since has never acted."""
    imported = sys.modules.get("spark_kafka_sink.devbroker")
    if imported is None:
        # No test of this process has a broker.
        yield
        return
    hooks: list[Hook] = []
    with pytest.MonkeyPatch.context() as patch:
        for owner in (imported.DevBroker, imported.dev_broker.SchemaRegistry):
            patch.setattr(owner, "on", _expecting(owner.on, hooks))
        yield
    if idle := [hook for hook in hooks if not hook.fired]:
        raise AssertionError(f"never acted, although expected to: {idle}")


def _expecting(install: Any, hooks: list[Hook]) -> Any:
    """Return a method that installs a hook, and adds it to those that must act."""

    @wraps(install)
    def on(
        owner: Any,
        target: Any,
        fault: Any,
        *,
        times: int | None = None,
        expect: bool | None = None,
    ) -> Hook:
        hook: Hook = install(owner, target, fault, times=times, expect=bool(expect))
        if expect or (expect is None and not callable(fault)):
            hooks.append(hook)
        return hook

    return on


def wait_until_injected(hook: Hook) -> None:
    """Wait until a fault has been injected."""
    wait_until(lambda: hook.fired, seconds=_PATIENCE_SECONDS, what=f"injection by {hook}")
