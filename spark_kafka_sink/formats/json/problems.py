"""What can be wrong with a payload of JSON, by numbers that the compiled loop writes down."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from spark_kafka_sink.formats.json.plan import MOST_CHARACTERS, MOST_DEPTH


class Problem(IntEnum):
    """Why a payload is malformed."""

    #: Nothing is wrong: the loop and the interpreter disagree.
    NOTHING = 0
    #: The payload has fewer bytes than are skipped.
    TOO_SHORT = 1
    NOT_UTF8 = 2
    #: The payload is null.
    NULL = 3
    #: A value of another type, a value that is none, something behind the value.
    OTHER_TYPE = 4
    NO_VALUE = 5
    LEFT = 6
    NO_COMMA_IN_OBJECT = 7
    NO_COMMA_IN_ARRAY = 8
    NO_NAME = 9
    NO_COLON = 10
    BAD_STRING = 11
    HALF_PAIR = 12
    TOO_DEEP = 13
    LONG_NUMBER = 14
    NOT_WHOLE = 15
    DOES_NOT_FIT = 16
    #: A string in the place of a number, and of a decimal.
    NOT_A_NUMBER = 17
    NOT_A_DECIMAL = 18
    NOT_BASE64 = 19
    NOT_A_DATE = 20
    NOT_A_TIMESTAMP = 21
    OTHER_ZONE = 22


#: What is before and behind the part that is shown; what is behind depends on the type for some.
TEXTS: Final = {
    Problem.NOT_UTF8: ("it is not UTF-8", ""),
    Problem.NULL: ("", " instead of "),
    Problem.OTHER_TYPE: ("", " instead of "),
    Problem.NO_VALUE: ("", " instead of a value"),
    Problem.LEFT: ("", " is left behind the value"),
    Problem.NO_COMMA_IN_OBJECT: ("", " instead of ',' or '}'"),
    Problem.NO_COMMA_IN_ARRAY: ("", " instead of ',' or ']'"),
    Problem.NO_NAME: ("", " instead of a name in quotation marks"),
    Problem.NO_COLON: ("", " instead of ':'"),
    Problem.BAD_STRING: ("a string has no end, or a wrong escape: ", ""),
    Problem.HALF_PAIR: ("a string has half of a surrogate pair", ""),
    Problem.TOO_DEEP: (f"objects and arrays are in more than {MOST_DEPTH} others", ""),
    Problem.LONG_NUMBER: (f"a number has more than {MOST_CHARACTERS} characters", ""),
    Problem.NOT_WHOLE: ("", " is not written as an integer"),
    Problem.DOES_NOT_FIT: ("", " does not fit into "),
    Problem.NOT_A_NUMBER: ("the string ", " is not a number"),
    Problem.NOT_A_DECIMAL: ("a string is not a number", ""),
    Problem.NOT_BASE64: ("a string is not base64", ""),
    Problem.NOT_A_DATE: ("", " is not a date (2024-12-31)"),
    Problem.NOT_A_TIMESTAMP: ("", " is not "),
    Problem.OTHER_ZONE: ("", " has "),
}
