"""The options with which the tests' Java processes start quickly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.java.quick_java import java_identity

if TYPE_CHECKING:
    from pathlib import Path


def test_two_installations_of_java_have_different_identities(tmp_path: Path) -> None:
    """An update of Java at the same path changes its identity, and so does another path."""
    java = _install(tmp_path / "a", "17.0.15")
    before = java_identity(str(java))
    java_identity.cache_clear()

    assert before == java_identity(str(java))
    assert before != java_identity(str(_install(tmp_path / "b", "17.0.15")))
    java_identity.cache_clear()
    (tmp_path / "a" / "release").write_text("17.0.16")
    assert before != java_identity(str(java))


def _install(home: Path, release: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch()
    (home / "release").write_text(release)
    return java
