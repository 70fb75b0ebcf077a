"""The lock files list everything that is installed, with hashes and without locations."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ["requirements.lock", "scripts/audit.lock", "scripts/docs.lock", "scripts/kerberos.lock"]
with (ROOT / "pyproject.toml").open("rb") as file:
    PROJECT = tomllib.load(file)
EXTRAS = PROJECT["project"]["optional-dependencies"]


def locked(name):
    """Return the entries of a lock file: requirements and their hashes."""
    text = (ROOT / name).read_text().replace("\\\n", " ")
    entries = [line.split("--hash=") for line in text.splitlines()]
    return [(Requirement(first), [each.strip() for each in rest]) for first, *rest in entries]


@pytest.mark.parametrize("name", LOCKS)
def test_every_entry_has_one_version_and_its_hashes(name):
    """A lock file contains nothing else: no index, no URL and no option."""
    assert [] == [
        str(entry)
        for entry, hashes in locked(name)
        if not re.fullmatch(r"==[^*]+", str(entry.specifier))
        or entry.url is not None
        or not hashes
        or any(not re.fullmatch("sha256:[0-9a-f]{64}", each) for each in hashes)
    ]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (
            "requirements.lock",
            PROJECT["project"]["dependencies"]
            + EXTRAS["dev"]
            + PROJECT["build-system"]["requires"],
        ),
        ("scripts/docs.lock", EXTRAS["docs"]),
        ("scripts/kerberos.lock", EXTRAS["kerberos"] + PROJECT["build-system"]["requires"]),
    ],
)
def test_every_requirement_of_the_project_is_locked(name, wanted):
    """The lock has every requirement of pyproject.toml, in a version that it allows."""
    versions = {}
    for entry, _ in locked(name):
        pinned = str(entry.specifier).removeprefix("==")
        versions.setdefault(canonicalize_name(entry.name), []).append(pinned)
    assert [] == [
        text
        for text in wanted
        if not (
            (found := versions.get(canonicalize_name(Requirement(text).name)))
            and all(Requirement(text).specifier.contains(each) for each in found)
        )
    ]
