"""Every test states its behaviour in one sentence; functions begin with an agreed verb."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "spark_kafka_sink"
#: What can contain a function.
STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)[.!?]\s+(?=[A-Z])")


def fault_of(docstring: str | None) -> str | None:
    """Return why a docstring is not one sentence, or None if it is."""
    if not docstring:
        return "has no docstring"
    if "\n\n" in docstring or SENTENCE_END.search(docstring):
        return "has more than one sentence"
    if not docstring.endswith("."):
        return "does not end with a full stop"
    return None


def functions_in(source: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield all functions, without a look at expressions, which are most of a syntax tree."""
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        waiting += (each for each in ast.iter_child_nodes(node) if isinstance(each, STATEMENTS))


def faults_in(source: str) -> list[str]:
    """Return the tests in a module's source whose docstrings are not one sentence."""
    return [
        f"{node.name} {fault}"
        for node in functions_in(source)
        if node.name.startswith("test")
        if (fault := fault_of(ast.get_docstring(node)))
    ]


def test_each_test_has_one_sentence():
    """The docstring of every test is a single sentence."""
    modules = sorted(TESTS.rglob("test_*.py"))
    assert modules
    assert [] == [
        f"{path.relative_to(TESTS)}: {fault}"
        for path in modules
        for fault in faults_in(path.read_text())
    ]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def test_it(): pass", "has no docstring"),
        ("async def test_it(): pass", "has no docstring"),
        ("class TestIt:\n    def test_it(self): pass", "has no docstring"),
        ('def test_it():\n    """It works"""', "does not end with a full stop"),
        ('def test_it():\n    """It works. Really."""', "has more than one sentence"),
        ('def test_it():\n    """It works.\n\n    Really."""', "has more than one sentence"),
    ],
)
def test_a_fault_is_found(source, expected):
    """A docstring that is missing, incomplete or too long is reported with the test's name."""
    assert [f"test_it {expected}"] == faults_in(source)


#: Verbs with which the docstring of a function may begin. Add one only if the documentation of
#: Kafka or Python uses it in the same way, and not one that readers would have to translate, such
#: as "Give" for "Return" or "Tell" for "Report".
VERBS = """
Abort Accept Acquire Adapt Add Advance Allocate Alter Announce Append Apply Assign Audit
Authenticate Begin Bind Block Build Bump Call Cancel Change Check Choose Clean Clear Close Collect
Commit Compact Compare Compile Complete Compress Compute Configure Connect Continue Convert Copy
Count Crash Create Decide Declare Decode Delay Delegate Delete Derive Describe Disable Discard
Dispatch Divide Do Drop Elect Encode Encrypt End Escape Evaluate Exhaust Explore Extend Fail Fence
Fetch Filter Find Finish Flush Forget Format Freeze Fuzz Gather Group Handle Hash Hide Hold
Implement Import Increase Index Initialize Inject Inline Install Interrupt Iterate Join Keep Kill
Leave Limit List Listen Load Lock Log Look Make Manage Mark Measure Merge Move Notify Observe Open
Parse Partition Pass Perform Pickle Place Plan Poll Prefix Prepare Print Probe Process Protect Pull
Put Raise Read Rebuild Receive Record Rediscover Refresh Register Rejoin Relay Release Remove Rename
Replace Replay Report Request Require Resend Reserve Reset Resolve Respond Restart Restore Restrict
Resume Retrieve Retry Return Round Run Schedule Seek Send Serialize Set Show Sign Simulate Skip
Split Spread Stage Start Stop Store Subscribe Subtract Summarize Suspend Take Treat Truncate Try
Undo Uninstall Unregister Update Use Validate Verify Wait Wake Weight Wrap Write Yield
"""
AGREED = frozenset(VERBS.split())


def other_verbs_in(source: str) -> list[str]:
    """Return the functions, except tests, whose docstrings begin with another word."""
    return [
        f"{node.name}: {docstring.split()[0]}"
        for node in functions_in(source)
        if not node.name.startswith("test")
        if (docstring := ast.get_docstring(node))
        if docstring.split()[0].rstrip(".,:;") not in AGREED
        if not any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]


@pytest.mark.parametrize(
    "folder", ["spark_kafka_sink", "benchmarks", "examples", "scripts", "tests"]
)
def test_docstrings_of_functions_begin_with_an_agreed_verb(folder):
    """The first word of a function's docstring is one of the agreed verbs."""
    modules = sorted((TESTS.parent / folder).rglob("*.py"))
    assert modules
    assert [] == [
        f"{path.relative_to(TESTS.parent)}: {other}"
        for path in modules
        for other in other_verbs_in(path.read_text())
    ]


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("Give the next frame.", ["f: Give"]),
        ("Tell whether it is closed.", ["f: Tell"]),
        ("Whether it is closed.", ["f: Whether"]),
        ("Return whether it is closed.", []),
        ("Close.", []),
    ],
)
def test_a_verb_that_is_not_agreed_is_found(docstring, expected):
    """Any other first word of a function's docstring is reported with the function's name."""
    assert expected == other_verbs_in(f'def f():\n    """{docstring}"""')
    assert [] == other_verbs_in(
        f'class F:\n    @property\n    def f(self):\n        """{docstring}"""'
    )
    assert [] == other_verbs_in(f'def test_f():\n    """{docstring}"""')


#: Phrases that readers stumble over, and what says the same.
PHRASES = {
    "anew": "again, or re- before the verb",
    "for ever": "without end, or that every attempt fails",
    "all the same": "anyway, nevertheless",
    "nobody": "what is missing, in the passive",
    "none any more": "no longer",
}
PHRASE = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b".replace(" ", r"\s+"))


def plainer(found: re.Match[str]) -> str:
    """Return what says the same as a phrase that was found."""
    return PHRASES[" ".join(found.group().split())]


def prose_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and the comments of a module, each with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield getattr(node, "lineno", 1), docstring
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_prose_has_no_phrase_that_readers_stumble_over():
    """The docstrings and comments of the package say it in plainer words."""
    assert [] == [
        f"{path.relative_to(PACKAGE)}:{line}: {found.group()!r}: say {plainer(found)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, prose in prose_in(path.read_text())
        if (found := PHRASE.search(prose.lower())) is not None
    ]


def test_a_phrase_is_found():
    """Docstrings and comments are searched, also across lines, and texts are not."""
    source = '"""Join\n\nthe group anew."""\nx = "nobody"  # all the same'
    found = [PHRASE.search(prose) for _, prose in prose_in(source)]
    assert ["anew", "all the same"] == [each and each.group() for each in found]
    broken = PHRASE.search("goes on for\n    ever")
    assert broken is not None
    assert PHRASES["for ever"] == plainer(broken)
