"""The storage of a broker, formatted by copying."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from tests.support.kafka import prepared_release

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_storage_has_the_checkpoint_of_its_release_and_ids_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes of a cluster share its id and the checkpoint, and differ in their directory ids."""
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    (prepared / "storage").mkdir()
    (prepared / "storage" / "bootstrap.checkpoint").write_bytes(b"features")
    monkeypatch.setattr(prepared_release, "prepared_release", lambda version: prepared)
    cluster_id = uuid.UUID(int=1)

    metas = []
    for node_id in (1, 2):
        storage = tmp_path / f"data-{node_id}"
        prepared_release.format_storage("4.3.1", storage, node_id=node_id, cluster_id=cluster_id)
        assert b"features" == (storage / "bootstrap.checkpoint").read_bytes()
        metas.append(dict(_lines(storage / "meta.properties")))

    directory_ids = {meta.pop("directory.id") for meta in metas}
    assert 2 == len(directory_ids)
    common = {"version": "1", "cluster.id": "AAAAAAAAAAAAAAAAAAAAAQ"}
    assert [common | {"node.id": "1"}, common | {"node.id": "2"}] == metas


def _lines(path: Path) -> list[tuple[str, str]]:
    lines = (line.partition("=") for line in path.read_text().splitlines())
    return [(key, value) for key, _, value in lines]
