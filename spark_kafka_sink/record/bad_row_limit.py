"""The error of a write with more bad rows than maxErrors allows.

It is raised by tasks and by the driver; so this module loads nothing that only tasks need.
"""

from __future__ import annotations

from typing import Final

from spark_kafka_sink.errors import KafkaError

#: How many rows the errors and reports about many of them show.
MOST_SHOWN: Final = 10


class TooManyBadRowsError(KafkaError):
    """A write has more bad rows than maxErrors allows."""


def too_many(what: str, errors: list[str]) -> TooManyBadRowsError:
    """Return the error of a write with more bad rows than maxErrors; `errors` are the first."""
    return TooManyBadRowsError(
        f"{what}, which is more than maxErrors allows. The first of them: {'; '.join(errors)}. "
        "Correct the rows, or raise maxErrors (a number, or a share of all rows such as 5%)"
    )
