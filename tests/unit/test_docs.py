"""The pages of the documentation: their code blocks work, their links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tomllib
from functools import cache
from textwrap import indent
from typing import TYPE_CHECKING, get_args

import pytest

import spark_kafka_sink
import spark_kafka_sink.observability
import spark_kafka_sink.testing
from spark_kafka_sink import errors
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF
from spark_kafka_sink.devbroker.__main__ import control_parser, parser
from spark_kafka_sink.devbroker.net import faults
from spark_kafka_sink.devbroker.net.control import NODE_COMMANDS, STATUS
from spark_kafka_sink.devbroker.net.faults import ACTIONS
from spark_kafka_sink.groups import main as groups_main
from spark_kafka_sink.transactions import main as transactions_main
from tests.support.consumer.reading import fill
from tests.support.documentation import (
    ADDRESS,
    BLOCKS,
    DOCS,
    PAGES,
    PICTURES,
    ROOT,
    SITE,
    anchors_in,
    blocks_in,
    name_of,
)

if TYPE_CHECKING:
    from pathlib import Path

LINE_LENGTH = 120
#: The commands of operators, by their modules.
OPERATORS = {
    "spark_kafka_sink.groups": groups_main,
    "spark_kafka_sink.transactions": transactions_main,
}
#: How many characters of code a phone shows without scrolling.
DRAWING_WIDTH = 43
#: The topics that the blocks write to.
TOPICS = {"events": 3, "orders": 3}
PYTHON = [block for block in BLOCKS if block.language == "python"]
RUNNABLE = [block for block in PYTHON if not block.is_excerpt and not block.needs_spark]
COMMANDS = [
    (block.place, line)
    for block in BLOCKS
    if block.language == "console"
    for line in block.code.replace("\\\n", " ").splitlines()
] + [
    (block.place, line.removeprefix("RUN "))
    for block in BLOCKS
    if block.language == "dockerfile"
    for line in block.code.splitlines()
    if line.startswith("RUN ")
]


def navigation(entries: list[dict]) -> list[str]:
    """Return the pages in the navigation of the site, in its order."""
    found = []
    for entry in entries:
        for target in entry.values():
            found += [target] if isinstance(target, str) else navigation(target)
    return found


def test_every_page_is_in_the_navigation():
    """The navigation of the site has each page and notebook once, and nothing that is not there."""
    site = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    notebooks = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))

    assert sorted(
        [
            *(path.relative_to(DOCS).as_posix() for path in SITE),
            *(f"repository/{path.relative_to(ROOT).as_posix()}.md" for path in notebooks),
        ]
    ) == sorted(navigation(site["nav"]))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_have_existing_targets(page):
    """Links within the repository are relative paths, and each has an existing target."""
    missing = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        target, _, anchor = link.partition("#")
        if target.startswith("https://"):
            continue
        path = page.parent / target if target else page
        if not path.exists() or (anchor and anchor not in anchors_in(path)):
            missing.append(link)

    assert [] == missing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_are_short(page):
    """No line is longer than an editor's window, except for rows of tables, which cannot be cut."""
    assert [] == [
        line
        for line in page.read_text().splitlines()
        if len(line) > LINE_LENGTH and not line.startswith("|") and "](https://" not in line
    ]


def test_every_language_of_a_block_is_tested():
    """A block is Python, a command, a drawing, the commands of an image, or settings in YAML."""
    tested = {"python", "console", "dockerfile", "yaml"}
    assert set() == {block.language for block in BLOCKS} - PICTURES - tested


@pytest.mark.parametrize("block", RUNNABLE, ids=lambda block: block.place)
def test_a_block_without_spark_runs_unchanged(block, start_devbroker):
    """The block runs on its own, with the address of a real broker."""
    broker = start_devbroker(topics=TOPICS)
    code = block.code.replace(ADDRESS, broker.bootstrap_servers)
    if '"auto.offset.reset": "earliest"' in code and '.send("events"' not in code:
        # It would wait for a record until its timeout.
        fill(broker.bootstrap_servers, "events", [b'"value"'], key=b"key")

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, block.place, "exec"), {})  # noqa: S102 - our own text

    assert ("print(" in code) == bool(printed.getvalue())


@pytest.mark.parametrize(("place", "command"), COMMANDS)
def test_each_shown_command_is_valid(place, command):
    """Each command that a page shows names targets, files and options that exist."""
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set() == {word for word in words[1:] if "=" not in word} - set(targets)
    elif words[0] == "pytest":
        assert [] == [word for word in words[1:] if not (ROOT / word.partition("::")[0]).exists()]
    elif words[:3] == ["python", "-m", "pytest"]:
        assert (ROOT / "examples" / "quickstart" / words[3]).is_file()
    elif words[0] in {"python", "python3"} and words[1:2] == ["-m"]:
        _check_module(words[2], words[3:])
    elif words[0] == "python" and words[1:]:
        assert (ROOT / words[1]).is_file()
    else:
        known = (
            ["pip", "install"],
            ["pip", "download"],
            ["pip", "wheel"],
            ["install", "--directory"],
            ["tar", "--create"],
            ["python"],
            [".", ".venv/bin/activate"],
        )
        assert words[:2] in known, f"{place}: {command}"


@pytest.mark.parametrize(
    "block", [each for each in BLOCKS if each.language == "yaml"], ids=lambda block: block.place
)
def test_settings_are_those_of_an_example(block):
    """A block of YAML is an excerpt of a file in the examples."""
    files = (path.read_text() for path in (ROOT / "examples").rglob("*.yml"))
    assert any(
        indent(block.code, " " * depth) in text for text in files for depth in range(0, 8, 2)
    )


def _check_module(module: str, arguments: list[str]) -> None:
    if module == "spark_kafka_sink.devbroker":
        if arguments[:1] and arguments[0] in {*NODE_COMMANDS, STATUS}:
            control_parser().parse_args(arguments)
        else:
            parser().parse_args(arguments)
    elif module in OPERATORS:
        # Whether the words are understood is known before a broker is looked for.
        plain = [word.strip("[]") for word in arguments]
        with pytest.raises(SystemExit) as end, contextlib.redirect_stdout(io.StringIO()):
            OPERATORS[module]([*plain, "--help"])
        assert 0 == end.value.code
    else:
        assert module in {
            "spark_kafka_sink.config.options_table",
            "spark_kafka_sink.warm_cache",
            "venv",
        }


def test_the_api_page_has_every_public_name():
    """The page of the API documents each public name once, and nothing else."""
    page = (DOCS / "reference" / "api.md").read_text()
    public = {
        f"{door.__name__}.{name}"
        for door in (spark_kafka_sink, spark_kafka_sink.observability, spark_kafka_sink.testing)
        for name in door.__all__
    }

    assert sorted(public - {"spark_kafka_sink.__version__"}) == sorted(
        re.findall(r"^::: (\S+)$", page, re.MULTILINE)
    )


def test_every_action_is_in_the_table_of_faults():
    """The table has each action of the command line and of the API."""
    page = (DOCS / "guides" / "testing.md").read_text()
    words = re.findall(r"^\| `.*?\| `([^`]+)` \|", page, re.MULTILINE)

    assert sorted(ACTIONS) == sorted(words)
    named = set(re.findall(r"`([A-Z]\w+)\(", page))
    assert {action.__name__ for action in get_args(faults.Action)} <= named


def test_the_table_of_defaults_matches_the_code():
    """The defaults that differ from Java's are those of the settings."""
    page = (DOCS / "guides" / "producer.md").read_text()
    _, _, section = page.partition("## Defaults that differ from Java's")
    found = dict(
        re.findall(
            r"^\| `(batch\.size|client\.id|compression\.type)` \|[^|]+\| `?([\w-]+)",
            section,
            re.MULTILINE,
        )
    )

    assert {key.name: str(key.default) for key in PRODUCER_CONFIG_DEF if key.name in found} == found
    assert 3 == len(found)


def test_the_producer_guide_names_errors_that_exist():
    """Each error in its table is one of the package, or Python's for a wrong argument."""
    page = (DOCS / "guides" / "producer.md").read_text()
    _, _, table = page.partition("## Errors")
    named = {
        name
        for row in re.findall(r"^\| (`\w+Error.*?) \|", table, re.MULTILINE)
        for name in row.split("`")[1::2]
    }

    assert {"TypeError", "ValueError"} == {name for name in named if not hasattr(errors, name)}


@pytest.mark.parametrize("name", ["architecture", "map", "tour"])
def test_the_pages_about_modules_name_modules_that_exist(name):
    """Each file that they name is one of the package or of its tests."""
    page = (DOCS / "internals" / f"{name}.md").read_text()
    known = {
        path.name
        for folder in (ROOT / "spark_kafka_sink", ROOT / "tests")
        for path in folder.rglob("*.py")
    }

    assert (
        set() == {path.rpartition("/")[2] for path in re.findall(r"`([\w/]+\.py)`", page)} - known
    )


def test_the_drawings_fit_a_phone_and_name_modules_that_exist():
    """A drawing is as narrow as a phone, and the paths in it are modules of the package."""
    drawings = [block.code for block in BLOCKS if block.language == "text"]
    page = DOCS / "internals" / "architecture.md"
    paths = {
        path
        for block in blocks_in(page)
        if block.language == "text"
        for path in re.findall(r"\b\w+(?:/\w+)+", block.code)
    }
    known = {
        path.relative_to(ROOT).with_suffix("").as_posix()
        for path in (ROOT / "spark_kafka_sink").rglob("*")
    }

    assert paths
    assert [] == [path for path in paths if not any(each.endswith(f"/{path}") for each in known)]
    assert DRAWING_WIDTH >= max(len(line) for code in drawings for line in code.splitlines())


def test_the_recipes_name_files_that_exist():
    """Each file and folder that the guide for contributors names is there."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    names = re.findall(r"`((?:[\w.]+/)+(?:\w+\.\w+)?|[\w/]+\.(?:py|md|toml|yml))`", page)
    places = [ROOT, ROOT / "spark_kafka_sink", ROOT / "tests", ROOT / "docs" / "reference"]

    assert [] == [name for name in names if not any((place / name).exists() for place in places)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_tests_that_a_page_names_exist(page):
    """A page that gives a test as the proof of a claim names a test, or a module of tests."""
    assert set() == set(re.findall(r"\btest_\w+", _without_blocks(page))) - _names_of_tests()


@cache
def _names_of_tests() -> frozenset[str]:
    """Return the names of all tests and of their modules."""
    text = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    modules = {
        path.stem for folder in ("tests", "examples") for path in (ROOT / folder).rglob("test_*.py")
    }
    return frozenset(modules.union(re.findall(r"\bdef (test_\w+)", text)))


def _without_blocks(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
