"""The pages of the site that are made from files of the repository."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.support.documentation import ROOT
from tests.support.scripts import load_script

site_pages = load_script("site_pages")

PICTURE = b"a picture"
NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": ["# A notebook\n", "See [the job](../job.py)."]},
        {
            "cell_type": "code",
            "source": ["print(1)\n"],
            "outputs": [
                {"name": "stdout", "output_type": "stream", "text": ["\x1b[31m1\x1b[0m\n"]},
                {"data": {"image/png": base64.b64encode(PICTURE).decode()}},
                {"data": {"text/html": "<style>x</style><table>\n  <tr></tr></table>"}},
                {"data": {"text/markdown": ["**two**\n"], "text/plain": ["<Markdown object>"]}},
                {"data": {"text/plain": [f"{'a long line ' * 10}\n", "2"]}},
            ],
        },
    ]
}


@pytest.fixture
def project(tmp_path):
    """Create a small repository: a page that links a file, a folder, a notebook and a text."""
    (tmp_path / "docs" / "guides").mkdir(parents=True)
    (tmp_path / "examples" / "notebooks").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "docs" / "guides" / "a.md").write_text(
        "[all](../../examples), [b](b.md#part), [text](../../TEXT.md), [web](https://example.org)\n"
    )
    (tmp_path / "docs" / "guides" / "b.md").write_text("# B\n\n```text\n[no](link)\n```\n")
    (tmp_path / "TEXT.md").write_text("[b](docs/guides/b.md)\n")
    (tmp_path / "examples" / "job.py").write_text('"""A job."""\n')
    (tmp_path / "examples" / "notebooks" / "n.ipynb").write_text(json.dumps(NOTEBOOK))
    (tmp_path / "examples" / "notebooks" / "n.py").write_text("# the notebook's source\n")
    return tmp_path


def test_links_beside_the_pages_lead_to_pages_of_the_site(project):
    """A link to a file, a folder or a text outside of docs/ leads to a page made from it."""
    files = site_pages.SitePages(project).files

    assert (
        "[all](../repository/examples/index.md), [b](b.md#part), [text](../repository/TEXT.md), "
        "[web](https://example.org)\n"
    ) == files[Path("guides/a.md")]
    assert "[b](../guides/b.md)\n" == files[Path("repository/TEXT.md")]
    assert (
        "# examples\n\n- [job.py](job.py.md)\n- [notebooks/](notebooks/index.md)\n"
        == (files[Path("repository/examples/index.md")])
    )
    assert (
        '# examples/job.py\n\n````python\n"""A job."""\n````\n'
        == (files[Path("repository/examples/job.py.md")])
    )


def test_a_block_of_code_stays_as_it_is(project):
    """What looks like a link in a block of code is none."""
    assert (
        "# B\n\n```text\n[no](link)\n```\n"
        == (site_pages.SitePages(project).files[Path("guides/b.md")])
    )


def test_a_notebook_is_shown_with_its_outputs(project):
    """A notebook has its texts, its code, what it printed, its pictures and its tables."""
    files = site_pages.SitePages(project).files

    folder = Path("repository/examples/notebooks")
    assert (
        "# A notebook\nSee [the job](../job.py.md).\n\n````python\nprint(1)\n````\n\n"
        "````text\n1\n````\n\n![An output of the cell](data/n-1-1.png)\n\n"
        '<div class="notebook-output"><table> <tr></tr></table></div>\n\n**two**\n\n'
        f"````{{.text .wrapped}}\n{'a long line ' * 10}\n2\n````\n"
    ) == files[folder / "n.ipynb.md"]
    assert PICTURE == files[folder / "data" / "n-1-1.png"]
    assert folder / "n.py.md" not in files


def test_a_link_without_a_target_is_named(project):
    """The page and the link of a file that does not exist are in the error."""
    (project / "docs" / "guides" / "c.md").write_text("[gone](gone.md)\n")

    with pytest.raises(FileNotFoundError, match=r"docs/guides/c\.md links gone\.md, which does"):
        site_pages.SitePages(project)


def test_files_link_the_repository_once_it_has_an_address(project):
    """With an address in pyproject.toml, a page that shows a file links it there."""
    (project / "pyproject.toml").write_text(
        '[project]\n[project.urls]\nSource = "https://example.org/project/"\n'
    )

    assert (
        site_pages.SitePages(project)
        .files[Path("repository/examples/job.py.md")]
        .endswith("\n[In the repository](https://example.org/project/blob/main/examples/job.py)\n")
    )


def test_the_folder_of_the_pages_is_replaced(tmp_path):
    """Pages of an earlier build do not stay."""
    (tmp_path / "old.md").write_text("old")

    site_pages.write(tmp_path, {Path("a/b.md"): "text", Path("c.png"): PICTURE})

    assert ["a/b.md", "c.png"] == sorted(
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
    )


def test_all_pages_of_the_project_can_be_made():
    """Each page of docs/ is one of the site, and each of its links has a page."""
    files = site_pages.SitePages().files

    assert set() == {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")} - (
        set(files)
    )
