"""What makes a release: its version, the workflow that publishes it, its bill of materials."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

import spark_kafka_sink
from tests.support.documentation import ROOT
from tests.support.scripts import load_script

sbom = load_script("sbom")

VERSION = spark_kafka_sink.__version__
WORKFLOW = (ROOT / ".github" / "workflows" / "release.yml").read_text()
JOBS = yaml.safe_load(WORKFLOW)["jobs"]
WHEEL = "a_sink-1.0-py3-none-any.whl"
LOCK = f"""\
numba==0.68.1 ; python_version < '4' \\
    --hash=sha256:{"1" * 64} \\
    --hash=sha256:{"2" * 64}
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:{"3" * 64}
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:{"4" * 64}
"""


def test_the_changelog_begins_with_this_version():
    """The newest dated section is this version's, and changes after it are called unreleased."""
    found = re.findall(r"^## \[(.+?)\](.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    (version, date), *_ = [section for section in found if section[0] != "Unreleased"]

    assert VERSION == version
    assert re.fullmatch(r" - \d{4}-\d\d-\d\d", date)


def test_the_metadata_says_how_far_the_version_is():
    """A pre-release is called beta, and a release stable."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    status = "4 - Beta" if re.search(r"[a-z]", VERSION) else "5 - Production/Stable"

    assert [f"Development Status :: {status}"] == [
        text for text in project["classifiers"] if text.startswith("Development Status")
    ]


def test_the_page_about_installing_names_the_files_of_this_version():
    """The names of wheel, sdist and bill of materials are those that `make dist` gives them."""
    page = (ROOT / "docs" / "guides" / "installing.md").read_text()

    assert {VERSION} == set(re.findall(r"spark_kafka_sink-(.+?)(?:-py3|\.tar|\.cdx)", page))
    assert {VERSION} == set(re.findall(r"spark-kafka-sink(?:\[spark\])?==([^\"\s]+)", page))


def steps(job: str) -> list[dict[str, Any]]:
    """Return the steps of a job of the workflow."""
    return JOBS[job]["steps"]


def test_a_tag_of_a_version_starts_the_workflow():
    """Nothing else does: no branch, no pull request, and no button."""
    # In YAML 1.1, the key `on` is the word for true.
    assert {"push": {"tags": ["v*"]}} == yaml.safe_load(WORKFLOW)[True]


def test_the_workflow_runs_targets_of_the_makefile():
    """It checks, tests and builds as everyone does: by `make`, and by nothing of its own."""
    commands = [step["run"] for step in steps("build") if "run" in step]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert ["make check", "make audit", "make test-fast", "make dist"] == commands
    assert set() == {command.split()[1] for command in commands} - targets


def test_only_the_job_that_publishes_may_ask_for_a_token():
    """It runs no code of the repository, and no job has a secret."""
    assert {} == yaml.safe_load(WORKFLOW)["permissions"]
    assert {"build": {"contents": "read"}, "publish": {"id-token": "write"}} == {
        name: job["permissions"] for name, job in JOBS.items()
    }
    assert [] == [step for step in steps("publish") if "run" in step]
    assert "secrets." not in WORKFLOW
    assert ("build", "pypi") == (JOBS["publish"]["needs"], JOBS["publish"]["environment"])


def test_actions_are_named_by_the_hashes_of_commits():
    """Each has the version beside its hash, and one action has one hash."""
    used = re.findall(r"uses: (\S+)@(\S+) # (v[\d.]+)$", WORKFLOW, re.MULTILINE)

    assert WORKFLOW.count("uses:") == len(used)
    assert [] == [commit for _, commit, _ in used if not re.fullmatch("[0-9a-f]{40}", commit)]
    assert len({action for action, _, _ in used}) == len(set(used))


def test_the_index_receives_wheel_and_sdist_alone():
    """The bill of materials is kept apart: an index refuses a file that is not a package."""
    uploads = [step["with"] for step in steps("build") if "upload-artifact" in step.get("uses", "")]
    (download,) = [step["with"] for step in steps("publish") if "with" in step]

    assert {"packages": ["dist/*.whl", "dist/*.tar.gz"], "sbom": ["dist/*.cdx.json"]} == {
        upload["name"]: upload["path"].split() for upload in uploads
    }
    assert {"name": "packages", "path": "dist"} == download


def installed(file: str, digit: str, metadata: dict[str, Any]) -> dict[str, Any]:
    """Return what pip's report says of an installed file."""
    return {
        "metadata": metadata,
        "download_info": {
            "url": f"https://packages.example.org/{file}",
            "archive_info": {"hashes": {"sha256": digit * 64}},
        },
    }


NUMBA = installed(
    "numba-0.68.1-cp311-cp311-manylinux_2_28_x86_64.whl",
    "2",
    {
        "name": "numba",
        "version": "0.68.1",
        "requires_dist": ["llvmlite<0.51,>=0.50", "numpy>=1.22"],
    },
)
NUMPY = installed("numpy-2.5.5%2Blocal.whl", "4", {"name": "NumPy", "version": "2.5.5"})
SINK = installed(
    WHEEL,
    "9",
    {
        "name": "a_sink",
        "version": "1.0",
        "requires_dist": [
            "numba>=0.61",
            'numpy ; extra == "spark"',
            'numpy ; python_version < "3"',
        ],
    },
)


def test_the_bill_of_materials_lists_what_was_installed():
    """Each package has version, licence, file and hash, and the installed packages it requires."""
    expected = [
        ("a-sink", "1.0", "Apache-2.0", WHEEL, "9" * 64, ("numba",)),
        (
            *("numba", "0.68.1", "", "numba-0.68.1-cp311-cp311-manylinux_2_28_x86_64.whl"),
            *("2" * 64, ("numpy",)),
        ),
        ("numpy", "2.5.5", "BSD-3-Clause", "numpy-2.5.5+local.whl", "4" * 64, ()),
    ]
    licences = {"a-sink": "Apache-2.0", "numpy": "BSD-3-Clause"}

    assert expected == sbom.packages({"install": [SINK, NUMPY, NUMBA]}, LOCK, WHEEL, licences)


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License-Expression: MIT OR Apache-2.0\nLicense: other\n", "MIT OR Apache-2.0"),
        ("License: BSD\nClassifier: License :: OSI Approved :: MIT License\n", "BSD"),
        (
            f"License: {'x' * 40}\nClassifier: License :: OSI Approved :: MIT License\n",
            "MIT License",
        ),
        ("", ""),
    ],
)
def test_the_licence_of_a_package_is_the_shortest_that_it_names(tmp_path, metadata, licence):
    """An expression is preferred to a text, and a short text to the classifiers."""
    info = tmp_path / "Some.Package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: Some.Package\nVersion: 1.0\n{metadata}"
    )

    assert {"some-package": licence} == sbom.licences(tmp_path)


@pytest.mark.parametrize(
    ("digit", "version"),
    [("5", "2.5.5"), ("3", "2.5.5"), ("4", "2.5.6")],
    ids=["another file", "the file of another version", "another version"],
)
def test_a_package_that_is_not_locked_is_refused(digit, version):
    """A package with another hash or version was not tested, so it is not listed as if it were."""
    other = installed("numpy.whl", digit, {"name": "numpy", "version": version})

    with pytest.raises(
        sbom.NotLockedError,
        match=rf"^numpy.whl \(sha256 {digit * 64}\) is installed, but it is not locked$",
    ):
        sbom.packages({"install": [SINK, other]}, LOCK, WHEEL, {})
