"""The way to a directory is checked from the root on, through every link."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from spark_kafka_sink.record.private_directory import (
    UnsafeDirectoryError,
    make_private_directory,
)


@pytest.fixture
def safe(tmp_path):
    """Make a directory of ours alone."""
    directory = tmp_path / "safe"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def unsafe(tmp_path):
    """Make a directory in which everybody can replace everything."""
    directory = tmp_path / "unsafe"
    directory.mkdir()
    directory.chmod(0o777)
    return directory


def test_missing_ancestors_are_created_for_this_user_alone(tmp_path):
    """Nothing that is made on the way is open to others, whatever the umask."""
    directory = tmp_path / "a" / "b" / "c"
    make_private_directory(directory)
    made = [directory, directory.parent, directory.parent.parent]
    assert [0o700] * 3 == [stat.S_IMODE(path.stat().st_mode) for path in made]


def test_nothing_is_created_below_an_unsafe_ancestor(unsafe):
    """The way is refused before anything is made at its end."""
    with pytest.raises(UnsafeDirectoryError, match=r"other users can write to .*unsafe"):
        make_private_directory(unsafe / "a" / "b")
    assert [] == list(unsafe.iterdir())


@pytest.mark.parametrize("target", ["{0}/safe", "safe", "../{1}/safe", "./safe/../safe"])
def test_a_link_on_the_way_is_followed(tmp_path, safe, target):
    """Homes are often links; one that leads to a safe place does no harm."""
    (tmp_path / "link").symlink_to(target.format(tmp_path, tmp_path.name))
    make_private_directory(tmp_path / "link" / "directory")
    assert (safe / "directory").is_dir()


@pytest.mark.parametrize("target", ["unsafe/inside", "{0}/unsafe/inside", "unsafe/to_safe"])
def test_a_link_through_an_unsafe_directory_is_not_followed(tmp_path, safe, unsafe, target):
    """Others could replace the link's target, also where that is a link to a safe place."""
    (unsafe / "inside").mkdir(mode=0o700)
    (unsafe / "to_safe").symlink_to(safe)
    (tmp_path / "link").symlink_to(target.format(tmp_path))
    with pytest.raises(UnsafeDirectoryError, match=r"other users can write to .*unsafe$"):
        make_private_directory(tmp_path / "link" / "directory")


def test_links_in_a_circle_are_an_error_of_the_system(tmp_path):
    """It is the error that the system itself has for them."""
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        make_private_directory(tmp_path / "one" / "directory")


def test_a_file_in_the_way_is_an_error_of_the_system(tmp_path):
    """It is no question of safety."""
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_private_directory(tmp_path / "file" / "directory")


def test_a_file_is_no_directory(tmp_path):
    """Also one of ours alone."""
    (tmp_path / "file").touch(mode=0o600)
    with pytest.raises(UnsafeDirectoryError, match="file is not a directory"):
        make_private_directory(tmp_path / "file")


def test_a_relative_path_is_checked_from_the_root_on(safe, unsafe, monkeypatch):
    """Where the process stands may be unsafe itself."""
    monkeypatch.chdir(safe)
    make_private_directory(Path("directory"))
    assert (safe / "directory").is_dir()
    monkeypatch.chdir(unsafe)
    with pytest.raises(UnsafeDirectoryError, match="unsafe"):
        make_private_directory(Path("directory"))
