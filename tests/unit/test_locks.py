"""The lock files list everything that is installed, with hashes and without locations.

`scripts/install_locked.sh` installs just that.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = [
    "requirements.lock",
    "scripts/audit.lock",
    "scripts/dist.lock",
    "scripts/docs.lock",
    "scripts/kerberos.lock",
    "scripts/notebooks.lock",
]
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
        ("scripts/dist.lock", PROJECT["build-system"]["requires"]),
        ("scripts/docs.lock", EXTRAS["docs"]),
        ("scripts/notebooks.lock", EXTRAS["notebooks"]),
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


def wheel(folder, name, version, metadata=""):
    """Write a wheel without modules to `folder`; return its line of a lock file."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}",
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{name}=={version} \\\n    --hash=sha256:{digest}\n"


@pytest.fixture
def install(tmp_path):
    """Return a function that installs a lock file from the wheels of a folder, without an index."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)

    def run(lines):
        lock = tmp_path / "requirements.lock"
        lock.write_text("".join(lines))
        result = subprocess.run(  # noqa: S603  our own script
            [ROOT / "scripts" / "install_locked.sh", environment, lock],
            env=os.environ
            | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        # Standard output has the progress.
        return result.returncode, result.stderr

    return run


@pytest.mark.slow
def test_only_locked_versions_are_installed(install, tmp_path):
    """A newer dependency is ignored; a missing one, and another hash anywhere, are errors."""
    measured = wheel(tmp_path, "measured", "1.0", "Provides-Extra: toml\n")
    wheel(tmp_path, "measured", "1.1", "Provides-Extra: toml\n")
    plugin = wheel(tmp_path, "plugin", "1.0", "Requires-Dist: measured[toml]>=1.0\n")

    assert install([plugin]) == (1, "plugin 1.0 requires measured, which is not installed.\n")
    assert install([measured, plugin]) == (0, "")
    installed = tmp_path.glob("environment/lib/python3*/site-packages/measured-*.dist-info")
    assert [path.name for path in installed] == ["measured-1.0.dist-info"]

    altered = wheel(tmp_path, "altered", "1.0").replace("sha256:", "sha256:0")[:-2] + "\n"
    for lock in ([altered, measured], [measured, altered]):
        code, said = install(lock)
        assert code == 1
        assert "DO NOT MATCH THE HASHES" in said
