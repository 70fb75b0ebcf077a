"""The installed package: its version, links, types and commands."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import spark_kafka_sink

ROOT = Path(__file__).parents[2]
with (ROOT / "pyproject.toml").open("rb") as file:
    PYPROJECT = tomllib.load(file)
PROJECT = PYPROJECT["project"]
SCRIPTS = PROJECT["scripts"]
MODULES = [
    "spark_kafka_sink.devbroker",
    "spark_kafka_sink.groups",
    "spark_kafka_sink.transactions",
]
VERSION_LINE = f"spark-kafka-sink {spark_kafka_sink.__version__}\n"


def load(target: str) -> object:
    """Import the object that an entry point or a dynamic attribute names."""
    module, _, name = target.replace(":", ".").rpartition(".")
    return getattr(import_module(module), name)


def test_the_version_has_one_source():
    """pyproject.toml contains no version, but reads it from the package."""
    assert ["version"] == PROJECT["dynamic"]
    assert spark_kafka_sink.__version__ == load(
        PYPROJECT["tool"]["setuptools"]["dynamic"]["version"]["attr"]
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+(rc\d+)?", spark_kafka_sink.__version__)


def test_the_address_of_the_repository_stands_in_one_place():
    """As long as pyproject.toml has no address, nothing names one; later, only pyproject.toml."""
    files = [*ROOT.glob("*.md"), ROOT / "zensical.toml", *(ROOT / "docs").rglob("*.md")]
    files += (ROOT / "examples").rglob("*.ipynb")
    address = PROJECT["urls"].get("Source", "github.com/spark-kafka-sink")

    assert [] == [file.name for file in files if address in file.read_text()]


def test_the_types_are_installed():
    """The marker of a typed package exists and is among the installed files."""
    assert ["__init__.pyi", "py.typed"] == PYPROJECT["tool"]["setuptools"]["package-data"][
        "spark_kafka_sink"
    ]
    assert (ROOT / "spark_kafka_sink" / "py.typed").is_file()


def test_each_command_is_installed_under_its_name():
    """The broker, the operators' commands and that for images are console scripts."""
    assert {
        "pykafka-devbroker",
        "pykafka-groups",
        "pykafka-transactions",
        "pykafka-warm-cache",
    } == set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_console_script_prints_the_version(script, capsys):
    """A command prints the version of the package and ends with exit code 0."""
    with pytest.raises(SystemExit) as ended:
        load(SCRIPTS[script])(["--version"])

    assert (0, VERSION_LINE) == (ended.value.code, capsys.readouterr().out)


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_usage_of_a_console_script_has_its_name(script, capsys, monkeypatch):
    """The usage and the examples of a command called by its script contain the script's name."""
    monkeypatch.setattr(sys, "argv", [f"/usr/local/bin/{script}"])
    with pytest.raises(SystemExit):
        load(SCRIPTS[script])(["--help"])

    said = capsys.readouterr().out
    assert said.startswith(f"usage: {script} ")
    assert "python -m" not in said


@pytest.mark.parametrize("module", MODULES)
def test_a_module_prints_the_version(module):
    """`python -m` supports --version too."""
    done = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, "-m", module, "--version"], check=True, capture_output=True, text=True
    )

    assert VERSION_LINE == done.stdout


@pytest.mark.parametrize("module", MODULES)
def test_the_usage_of_a_module_has_its_name(module):
    """The usage of a command called by `python -m` says so."""
    done = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, "-m", module, "--help"], check=True, capture_output=True, text=True
    )

    assert done.stdout.startswith(f"usage: python -m {module} ")
