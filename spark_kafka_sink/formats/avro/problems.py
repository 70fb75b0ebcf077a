"""What can be wrong with a payload of Avro, in words.

The compiled loop writes down the number of a problem and one number of detail, so that a text is
made for a reason and not for a row; the interpreter words its errors with the same texts.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from spark_kafka_sink.formats.avro.plan import MOST_EMPTY_ITEMS


class Problem(IntEnum):
    """Why an operation cannot go on."""

    #: Nothing is wrong: the loop and the interpreter disagree.
    NOTHING = 0
    BYTES_LEFT = 1
    NO_BRANCH = 2
    #: One of the plan's own problems.
    PLANNED = 3
    TOO_LONG = 4
    TOO_MANY_BITS = 5
    NO_TIME = 6
    TIMESTAMP_RANGE = 7
    NOT_UTF8 = 8
    EMPTY_DECIMAL = 9
    TOO_MANY_DIGITS = 10
    NO_SYMBOL = 11
    LOST_SYMBOL = 12
    NO_BOOLEAN = 13
    LONG_BLOCK = 14
    UNCOUNTABLE_BLOCK = 15
    TOO_MANY_ITEMS = 16
    TOO_MANY_EMPTY_ITEMS = 17
    #: The payload has fewer bytes than are skipped.
    TOO_SHORT = 18


_TEXTS: Final = {
    Problem.BYTES_LEFT: "bytes are left behind the value",
    Problem.NO_BRANCH: "the union has no branch {}",
    Problem.TOO_LONG: "a value of {} bytes is longer than the payload",
    Problem.TOO_MANY_BITS: "a number has more bits than its type",
    Problem.NO_TIME: "{} microseconds are no time of the day",
    Problem.TIMESTAMP_RANGE: "a timestamp is beyond the range of microseconds",
    Problem.NOT_UTF8: "a string is not UTF-8",
    Problem.EMPTY_DECIMAL: "a decimal has no bytes",
    Problem.TOO_MANY_DIGITS: "a decimal has more than {} digits",
    Problem.NO_SYMBOL: "the enum has no symbol {}",
    Problem.LOST_SYMBOL: "the reader's enum lacks the writer's symbol, and has no default",
    Problem.NO_BOOLEAN: "a boolean is {}",
    Problem.LONG_BLOCK: "a block of {} bytes is longer than the payload",
    Problem.UNCOUNTABLE_BLOCK: "a block has more items than a long can count",
    Problem.TOO_MANY_ITEMS: "a block of {} items is longer than the payload",
    Problem.TOO_MANY_EMPTY_ITEMS: f"it has more than {MOST_EMPTY_ITEMS} items without bytes",
}


def worded(problem: Problem, detail: int | str = "") -> str:
    """Return the text of a problem with its detail, if it has one."""
    return _TEXTS[problem].format(detail)
