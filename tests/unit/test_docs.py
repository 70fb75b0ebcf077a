"""The code and commands shown in docs/testing.md work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

from spark_kafka_sink.devbroker.__main__ import parser
from spark_kafka_sink.devbroker.net import faults
from spark_kafka_sink.devbroker.net.fault_options import ACTIONS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
EXAMPLES = [path.read_text() for path in (ROOT / "examples" / "spark_job").glob("*.py")]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippets_run_as_they_stand_or_are_in_the_example_that_runs(snippet):
    """Every snippet is either executed here or part of an example that is tested."""
    if snippet.startswith("from "):
        exec(snippet, {})  # noqa: S102 - our own text
    else:
        assert any(snippet in example for example in EXAMPLES)


def test_every_action_is_in_the_table():
    """The table of faults has each action of the command line and of the API."""
    words = re.findall(r"^\| `.*?\| `([^`]+)` \|", PAGE, re.MULTILINE)
    assert sorted(ACTIONS) == sorted(words)
    named = set(re.findall(r"`([A-Z]\w+)\(", PAGE))
    assert {action.__name__ for action in get_args(faults.Action)} <= named


def test_the_command_line_is_understood():
    """The options of the command shown are valid."""
    (command,) = re.findall(r"```console\n(python -m .*?)\n```", PAGE)
    arguments = parser().parse_args(shlex.split(command)[3:])
    assert (["produce:drop-answer:3"], True) == (arguments.fault, arguments.log_requests)
