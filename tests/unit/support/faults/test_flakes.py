"""The plan of the pauses of `make flakes`, and a run of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.flakes import UNIT_TESTS, command
from tests.support.faults.pauses import (
    BETWEEN,
    BETWEEN_ALL,
    PAUSE,
    Relation,
    Switch,
    family,
    plan,
    processes,
)

REPOSITORY = Path(__file__).parents[4]
#: The command; tests elsewhere have the settings of the tests here.
FLAKES = [
    *(sys.executable, "-m", "tests.flakes", "--seed", "5"),
    *("-c", str(REPOSITORY / "pyproject.toml"), "-p", "tests.conftest"),
]
#: Tests that end when they, and a process in a session of its own, have stood still for a second.
PAUSED = """
import subprocess, sys, time

WATCH = '''
import time
last = time.monotonic()
while (now := time.monotonic()) < last + 0.9:
    last = now
    time.sleep(0.01)
'''

def test_this_process_is_paused():
    exec(WATCH)

def test_another_process_is_paused():
    subprocess.run([sys.executable, "-c", WATCH], start_new_session=True, check=True)

def test_that_fails():
    assert False
"""
#: A test that writes its process id, and then never ends by itself.
ENDLESS = """
import os, pathlib, time

def test_that_waits():
    pathlib.Path(__file__).with_name("pid").write_text(str(os.getpid()) + "\\n")
    print("waiting", flush=True)
    time.sleep(1000)
"""


def switches(seed: int, name: str) -> list[Switch]:
    """Return the first switches of a plan."""
    return list(islice(plan(seed, name), 100))


def test_a_plan_follows_from_the_seed():
    """Equal seeds have equal plans, and each process has a plan of its own."""
    assert switches(1, "0") == switches(1, "0")
    assert 4 == len({tuple(switches(seed, name)) for seed in (1, 2) for name in ("0", "all")})


@pytest.mark.parametrize(
    ("name", "between"), [("0", BETWEEN), ("17", BETWEEN), ("all", BETWEEN_ALL)]
)
def test_a_process_continues_after_each_pause(name, between):
    """Pauses and the times between them alternate, within their limits."""
    last = 0.0
    for number, switch in enumerate(switches(1, name)):
        assert (number % 2 == 0) == switch.stop
        least, most = between if switch.stop else PAUSE
        assert least <= switch.at - last <= most
        last = switch.at


def test_a_family_has_the_group_and_all_descendants():
    """A descendant belongs to the family in any group; others do not."""
    found = {
        1: Relation(parent=0, group=1),
        10: Relation(parent=1, group=10),
        11: Relation(parent=10, group=10),
        12: Relation(parent=11, group=12),
        13: Relation(parent=12, group=12),
        14: Relation(parent=1, group=10),
        15: Relation(parent=1, group=1),
    }
    assert {10, 11, 12, 13, 14} == family(10, found)


def test_running_processes_are_found():
    """This process is found, with its parent and its group."""
    assert Relation(os.getppid(), os.getpgrp()) == processes()[os.getpid()]


@pytest.mark.parametrize(
    ("arguments", "added"),
    [
        ([], [UNIT_TESTS]),
        (["-k", "wakeup"], [UNIT_TESTS]),
        ([__file__], []),
        ([f"{__file__}::test_running_processes_are_found", "-n", "0"], []),
    ],
)
def test_without_a_file_all_unit_tests_run(arguments, added):
    """The arguments for pytest come last, so they take precedence; they may choose the tests."""
    words = command(7, "cache", arguments)
    assert [*arguments, *added] == words[words.index("cache_dir=cache") + 1 :]
    assert "--randomly-seed=7" in words


@pytest.mark.slow
def test_processes_pause_while_pytest_runs(tmp_path):
    """Tests and processes that they start stand still at times; failed tests are listed."""
    tests = tmp_path / "test_paused.py"
    tests.write_text(PAUSED)
    ran = subprocess.run(  # noqa: S603  our own command
        [*FLAKES, str(tests)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    *_, summary, failed = ran.stdout.splitlines()
    assert re.fullmatch(r"seed 5: [1-9]\d* pauses, exit code 1", summary)
    assert failed.startswith("  failed: ")
    assert failed.endswith("::test_that_fails")
    assert 1 == ran.returncode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process(tmp_path, number):
    """After Ctrl-C or a request to end, no process of the run is left, stopped or not."""
    tests = tmp_path / "test_endless.py"
    tests.write_text(ENDLESS)
    with subprocess.Popen(  # noqa: S603  our own command
        [*FLAKES, "-n", "0", "-s", str(tests)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as run:
        assert run.stdout is not None
        while "waiting" not in run.stdout.readline():
            assert run.poll() is None
        run.send_signal(number)
        run.communicate(timeout=600)
    assert 0 != run.returncode
    assert int((tmp_path / "pid").read_text()) not in processes()
