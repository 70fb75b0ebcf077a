"""Errors cross processes: those of pools, of Spark, and of task queues."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from spark_kafka_sink import errors
from spark_kafka_sink.errors import BrokerError, KafkaError

NAMES = [name for name, value in vars(errors).items() if inspect.isclass(value)]
#: An argument of each name that errors take.
ARGUMENTS = {
    "errors": {"a": BrokerError("refused", code=3, name="UNKNOWN")},
    "results": {"b": 5},
    "offsets": {("t", 0): 5},
    "divergent_offsets": {("t", 0): None},
    "partitions": [("t", 0), ("t", 1)],
    "record": ("t", 0, 7),
    "row": 3,
    "partition": 1,
    "code": 41,
    "wanted": 7,
    "available": 9,
    "lost": 2,
}


def made(name):
    """Return an error of a class with an argument for each of its parameters."""
    kind = getattr(errors, name)
    plain, by_name = [], {}
    for parameter in _parameters(kind):
        value = ARGUMENTS.get(parameter.name, f"{parameter.name}\x1b of it")
        if parameter.kind is parameter.KEYWORD_ONLY:
            by_name[parameter.name] = value
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            plain.append(value)
    return kind(*plain or (() if by_name else ("a message\x1b",)), **by_name)


def _parameters(kind):
    """Return the parameters of a class; that of an exception without any is not known."""
    try:
        return list(inspect.signature(kind).parameters.values())
    except ValueError:
        return []


def pickled(error):
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes


@pytest.mark.parametrize("copied", [pickled, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("name", NAMES)
def test_an_error_survives_pickling_and_copying(name, copied):
    """Its type, message and attributes stay the same; otherwise a pool of processes would break."""
    error = made(name)
    error.retriable = True
    error.add_note("a note")
    again = copied(error)
    assert type(error) is type(again)
    assert (str(error), error.args) == (str(again), again.args)
    assert {key: str(value) for key, value in vars(error).items()} == {
        key: str(value) for key, value in vars(again).items()
    }


def test_an_error_with_attributes_set_later_keeps_them():
    """A refused topic is noted after the error was made."""
    error = BrokerError("refused", code=3, name="UNKNOWN", retriable=True)
    error.topic = "orders"
    again = pickled(error)
    assert ("orders", True, 3) == (again.topic, again.retriable, again.code)
    assert isinstance(again, KafkaError)
