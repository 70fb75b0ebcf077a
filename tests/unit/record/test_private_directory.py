"""The checks of each component on the path to a private directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_kafka_sink.record import private_directory
from spark_kafka_sink.record.private_directory import (
    UnsafeDirectoryError,
    check_private_files,
    make_private_directory,
)


@pytest.fixture
def safe(tmp_path):
    """Return a directory that only this user can write to."""
    directory = tmp_path / "safe"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture(autouse=True)
def own_group(monkeypatch):
    """Return this user's group, which has the user's name, no members, and can be changed."""
    user = SimpleNamespace(pw_name="alice", pw_gid=os.getegid())
    group = SimpleNamespace(gr_name="alice", gr_mem=[])
    users = SimpleNamespace(getpwuid=lambda user_id: user)
    groups = SimpleNamespace(getgrgid=lambda group_id: group)
    monkeypatch.setattr(private_directory, "pwd", users)
    monkeypatch.setattr(private_directory, "grp", groups)
    return group


@pytest.fixture
def unsafe(tmp_path):
    """Return a directory that everybody can write to."""
    directory = tmp_path / "unsafe"
    directory.mkdir()
    directory.chmod(0o777)
    return directory


def test_missing_ancestors_are_created_for_this_user_alone(tmp_path):
    """Missing ancestors are created for this user only, whatever the umask."""
    directory = tmp_path / "a" / "b" / "c"
    make_private_directory(directory)
    made = [directory, directory.parent, directory.parent.parent]
    assert [0o700] * 3 == [stat.S_IMODE(path.stat().st_mode) for path in made]


def test_processes_may_create_it_at_once(tmp_path, monkeypatch):
    """A directory that another process creates at the same moment is used, since it is checked."""
    create = Path.mkdir

    def too_late(path, mode):
        create(path, mode)
        raise FileExistsError

    monkeypatch.setattr(Path, "mkdir", too_late)
    make_private_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_nothing_is_created_below_an_unsafe_ancestor(unsafe):
    """An unsafe path is rejected before anything is created in it."""
    with pytest.raises(UnsafeDirectoryError, match=r"other users can write to .*unsafe"):
        make_private_directory(unsafe / "a" / "b")
    assert [] == list(unsafe.iterdir())


@pytest.mark.parametrize("target", ["{0}/safe", "safe", "../{1}/safe", "./safe/../safe"])
def test_a_link_in_the_path_is_followed(tmp_path, safe, target):
    """A link to a safe directory is followed, since home directories are often links."""
    (tmp_path / "link").symlink_to(target.format(tmp_path, tmp_path.name))
    make_private_directory(tmp_path / "link" / "directory")
    assert (safe / "directory").is_dir()


@pytest.mark.parametrize("name", ["-x", "...", ".."])
def test_only_two_dots_mean_the_parent(tmp_path, safe, name):
    """Any other name, whatever it begins with, is a directory on the way."""
    make_private_directory(safe / name / "directory")
    expected = tmp_path / "directory" if name == ".." else safe / name / "directory"
    assert expected.is_dir()


@pytest.mark.parametrize("target", ["unsafe/inside", "{0}/unsafe/inside", "unsafe/to_safe"])
def test_a_link_through_an_unsafe_directory_is_not_followed(tmp_path, safe, unsafe, target):
    """A link through an unsafe directory is rejected, since others could replace its target."""
    (unsafe / "inside").mkdir(mode=0o700)
    (unsafe / "to_safe").symlink_to(safe)
    (tmp_path / "link").symlink_to(target.format(tmp_path))
    with pytest.raises(UnsafeDirectoryError, match=r"other users can write to .*unsafe$"):
        make_private_directory(tmp_path / "link" / "directory")


def test_a_cycle_of_links_raises_the_systems_error(tmp_path):
    """A cycle of links raises the same error as the operating system."""
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        make_private_directory(tmp_path / "one" / "directory")


def test_a_file_in_the_path_raises_the_systems_error(tmp_path):
    """A file on the path raises NotADirectoryError, not UnsafeDirectoryError."""
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_private_directory(tmp_path / "file" / "directory")


def test_a_file_in_place_of_the_directory_is_unsafe(tmp_path):
    """A file in place of the directory is unsafe, even if it is private."""
    (tmp_path / "file").touch(mode=0o600)
    with pytest.raises(UnsafeDirectoryError, match="file is not a directory"):
        make_private_directory(tmp_path / "file")


def test_a_relative_path_is_checked_from_the_root_on(safe, unsafe, monkeypatch):
    """A relative path is checked from the root on, including the working directory."""
    monkeypatch.chdir(safe)
    make_private_directory(Path("directory"))
    assert (safe / "directory").is_dir()
    monkeypatch.chdir(unsafe)
    with pytest.raises(UnsafeDirectoryError, match="unsafe"):
        make_private_directory(Path("directory"))


def test_a_link_to_the_directory_is_followed_only_on_request(tmp_path, safe):
    """The caller decides whether the directory itself may be a link, and receives its target."""
    (tmp_path / "link").symlink_to(safe)
    assert safe == make_private_directory(tmp_path / "link", follow_link=True)
    with pytest.raises(UnsafeDirectoryError, match="link is not a directory"):
        make_private_directory(tmp_path / "link")


@pytest.mark.parametrize("umask", [0o022, 0o002])
def test_the_usual_umasks_make_private_directories(tmp_path, umask):
    """A directory that this user's own group can write to is private, as its other ancestors."""
    before = os.umask(umask)
    try:
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "a" / "b" / "file").touch()
    finally:
        os.umask(before)
    make_private_directory(tmp_path / "a" / "b")
    check_private_files(tmp_path / "a" / "b")


@pytest.mark.parametrize(
    "change", [{"gr_name": "staff"}, {"gr_mem": ["bob"]}, {"gr_mem": ["alice", "bob"]}]
)
def test_a_group_with_other_members_counts_as_others(safe, own_group, change):
    """A group is a user's own only by its name, and without another member."""
    safe.chmod(0o770)
    make_private_directory(safe)
    own_group.__dict__.update(change)
    with pytest.raises(UnsafeDirectoryError, match=r"other users can write to .*safe"):
        make_private_directory(safe)


@pytest.mark.parametrize("unknown", [("pwd", "getpwuid"), ("grp", "getgrgid")])
def test_a_group_that_the_system_does_not_know_counts_as_others(safe, monkeypatch, unknown):
    """In a container, a user or group may have a number only."""

    def not_found(number):
        raise KeyError(number)

    safe.chmod(0o770)
    module, function = unknown
    monkeypatch.setattr(private_directory, module, SimpleNamespace(**{function: not_found}))
    with pytest.raises(UnsafeDirectoryError, match=r"other users can write to .*safe"):
        make_private_directory(safe)


# --- the content of a directory


def test_subdirectories_are_checked_to_the_level_that_is_allowed(safe):
    """Files in subdirectories are checked too, and no subdirectory is allowed beyond the level."""
    (safe / "log").mkdir(mode=0o700)
    (safe / "log" / "file").touch()
    check_private_files(safe, levels=2)
    with pytest.raises(UnsafeDirectoryError, match="log is not a file"):
        check_private_files(safe)
    (safe / "log" / "link").symlink_to(safe)
    with pytest.raises(UnsafeDirectoryError, match="link is not a file"):
        check_private_files(safe, levels=2)


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_private_files_are_trusted(safe, mode):
    """Files that only this user can write to are trusted, even if others can read them."""
    (safe / "file").touch()
    (safe / "file").chmod(mode)
    safe.chmod(0o755)
    check_private_files(safe)


def test_a_file_of_another_user_is_not_trusted(safe, monkeypatch):
    """A file of another user is not trusted."""
    (safe / "file").touch()
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(UnsafeDirectoryError, match=f"file belongs to user {owner}$"):
        check_private_files(safe)


def test_a_link_is_not_trusted(safe):
    """A link is not trusted, since it may lead to another user's file."""
    (safe / "link").symlink_to(safe)
    with pytest.raises(UnsafeDirectoryError, match=r"link is not a file$"):
        check_private_files(safe)


@pytest.mark.parametrize("directory_mode", [0o710, 0o701, 0o711])
@pytest.mark.parametrize("file_mode", [0o620, 0o602])
def test_a_file_that_others_can_write_to_is_not_trusted(safe, own_group, directory_mode, file_mode):
    """A writable file is unsafe even if others can enter the directory but not list it."""
    own_group.gr_mem.append("bob")
    (safe / "file").touch()
    (safe / "file").chmod(file_mode)
    safe.chmod(directory_mode)
    with pytest.raises(UnsafeDirectoryError, match=r"other users can write to .*file$"):
        check_private_files(safe)


def test_a_file_in_a_private_directory_is_trusted_whatever_its_mode(safe):
    """A file is trusted whatever its mode if others cannot enter the directory."""
    (safe / "file").touch()
    (safe / "file").chmod(0o666)
    safe.chmod(0o744)
    check_private_files(safe)


def test_a_removed_file_does_not_hide_the_following_ones(safe, monkeypatch):
    """A file that disappears meanwhile is skipped, and the others are still checked."""
    (safe / "link").symlink_to(safe)
    monkeypatch.setattr(Path, "iterdir", lambda self: iter([self / "gone", self / "link"]))
    with pytest.raises(UnsafeDirectoryError, match=r"link is not a file$"):
        check_private_files(safe)
