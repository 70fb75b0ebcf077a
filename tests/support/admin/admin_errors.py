"""The errors of the public admin client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from spark_kafka_sink import AdminError


def failed(caught: pytest.ExceptionInfo[AdminError]) -> dict[Any, str]:
    """Return the names of the errors by item."""
    return {item: error.name for item, error in caught.value.errors.items()}
