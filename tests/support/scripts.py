"""The scripts of the repository, as modules."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from tests.support.documentation import ROOT

if TYPE_CHECKING:
    from types import ModuleType


def load_script(name: str) -> ModuleType:
    """Import a Python script of `scripts/` by its name."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
