"""What docs/testing.md shows is what runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

from spark_kafka_sink.devbroker import faults
from spark_kafka_sink.devbroker.__main__ import parser
from spark_kafka_sink.devbroker.fault_options import ACTIONS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
EXAMPLES = [path.read_text() for path in (ROOT / "examples" / "spark_job").glob("*.py")]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippets_run_as_they_stand_or_are_in_the_example_that_runs(snippet):
    """Nothing is shown that nobody has tried."""
    if snippet.startswith("from "):
        exec(snippet, {})  # noqa: S102 - our own text
    else:
        assert any(snippet in example for example in EXAMPLES)


def test_every_action_is_in_the_table():
    """The table of faults has each word of the command line, and each action."""
    words = re.findall(r"^\| `.*?\| `([^`]+)` \|", PAGE, re.MULTILINE)
    assert sorted(ACTIONS) == sorted(words)
    named = set(re.findall(r"`([A-Z]\w+)\(", PAGE))
    assert {action.__name__ for action in get_args(faults.Action)} <= named


def test_the_command_line_is_understood():
    """The command that is shown has options that there are."""
    (command,) = re.findall(r"```console\n(python -m .*?)\n```", PAGE)
    arguments = parser().parse_args(shlex.split(command)[3:])
    assert (["produce:drop-answer:3"], True) == (arguments.fault, arguments.log_requests)
