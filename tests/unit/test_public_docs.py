"""Every public name has a docstring with its parameters and an example that runs."""

from __future__ import annotations

import doctest
import inspect
import re
import time
from enum import Enum
from importlib import import_module
from types import SimpleNamespace
from typing import get_origin

import pytest
from pyspark.sql.types import StringType, StructField, StructType

import spark_kafka_sink
import spark_kafka_sink.testing

DOORS = (spark_kafka_sink, spark_kafka_sink.testing)
#: The address in the examples, which readers replace by their own.
ADDRESS = "localhost:9092"
#: The topics of the broker that the examples write to.
TOPICS = {"orders": 1, "payments": 1}
#: The DataFrame of the examples, which use only its schema.
DF = SimpleNamespace(schema=StructType([StructField("value", StringType())]))
#: Classes that only the package instantiates, and methods that only the package calls.
NOT_FOR_USERS = {
    *("FaultHook", "FutureTableMetadata", "KafkaMetric", "ProducerConfig"),
    *("FaultHook.ask", "FutureRecordMetadata.fail", "KafkaProducer.write_staged"),
}
#: A comment that documents the field below it.
FIELD_COMMENT = re.compile(r"#:.*\n(?:\s*#:?.*\n)*\s*(\w+):")


def is_documented_by_itself(value: object) -> bool:
    """Return whether a value can have a docstring, which type aliases and strings cannot."""
    return isinstance(value, type) or inspect.isfunction(value)


PUBLIC = {
    f"{door.__name__}.{name}": value
    for door in DOORS
    for name in door.__all__
    if is_documented_by_itself(value := getattr(door, name)) and get_origin(value) is None
}


def parameters_of(function: object) -> list[str]:
    """Return the parameters that callers pass; none for an object without a signature."""
    try:
        found = inspect.signature(function).parameters
    except ValueError:
        return []
    return [name for name in found if name not in {"self", "cls", "args", "kwargs"}]


def public_methods(cls: type) -> dict[str, object]:
    """Return the public methods that a class defines or inherits from a class of this package."""
    return {
        name: getattr(cls, name)
        for owner in reversed(cls.__mro__)
        if owner.__module__.startswith("spark_kafka_sink")
        for name, value in vars(owner).items()
        if not name.startswith("_") and isinstance(value, (*FUNCTIONS,))
    }


FUNCTIONS = (type(lambda: None), classmethod, staticmethod)


def named_in(text: str, parameters: list[str]) -> set[str]:
    """Return the parameters that a docstring names, with or without quotes."""
    return {name for name in parameters if re.search(rf"\b{re.escape(name)}\b", text)}


def commented_fields(cls: type) -> set[str]:
    """Return the fields of a class that have a `#: ...` comment."""
    return set(FIELD_COMMENT.findall(inspect.getsource(cls)))


def undocumented(cls: type) -> list[str]:
    """Return the parameters of a class and of its methods that no docstring names."""
    about_class = f"{cls.__doc__} {cls.__init__.__doc__ or ''}"
    missing = []
    can_be_made = not issubclass(cls, Enum) and not getattr(cls, "_is_protocol", False)
    if can_be_made and cls.__name__ not in NOT_FOR_USERS:
        parameters = parameters_of(cls)
        known = named_in(about_class, parameters) | commented_fields(cls)
        missing += [f"{cls.__name__}({name})" for name in parameters if name not in known]
    for method_name, method in public_methods(cls).items():
        if f"{cls.__name__}.{method_name}" in NOT_FOR_USERS:
            continue
        parameters = parameters_of(method)
        known = named_in(f"{about_class} {inspect.getdoc(method)}", parameters)
        missing += [f"{method_name}({name})" for name in parameters if name not in known]
    return missing


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_says_what_its_parameters_mean(name):
    """Every parameter of a public class and of its methods is named in a docstring."""
    value = PUBLIC[name]

    assert value.__doc__
    assert [] == undocumented(value)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example_that_runs(name, start_devbroker):
    """The docstring of a public name has an example, which prints the output that it shows."""
    value = PUBLIC[name]
    text = inspect.getdoc(value)
    if ADDRESS in text:
        text = text.replace(ADDRESS, start_devbroker(topics=TOPICS).bootstrap_servers)
    names = {name: getattr(door, name) for door in DOORS for name in door.__all__}
    module = import_module(value.__module__)
    test = doctest.DocTestParser().get_doctest(
        text, names | {"time": time, "df": DF}, name, module.__file__, None
    )
    said: list[str] = []
    runner = doctest.DocTestRunner(
        verbose=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )

    runner.run(test, out=said.append)

    assert test.examples, "there is no example"
    assert 0 == runner.failures, "".join(said)
