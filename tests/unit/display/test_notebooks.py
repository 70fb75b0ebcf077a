"""Each notebook is stored as a run of its present source, and without warnings or errors.

`make notebooks` runs them, and stores the outputs, whose numbers and times differ from run to run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[3] / "examples" / "notebooks"
SOURCES = sorted(NOTEBOOKS.glob("*.py"))


def cells_of(source: str) -> list[tuple[str, str]]:
    """Return the cells of a file in jupytext's percent format: kind and text."""
    cells = []
    for part in re.split(r"^# %%", source, flags=re.MULTILINE)[1:]:
        mark, _, text = part.partition("\n")
        if "[markdown]" in mark:
            text = "\n".join(re.sub(r"^# ?", "", line) for line in text.strip().split("\n"))
        cells.append(("markdown" if "[markdown]" in mark else "code", text.strip()))
    return cells


def stored(path: Path) -> list[dict]:
    """Return the cells of the stored notebook of a source."""
    return json.loads(path.with_suffix(".ipynb").read_text())["cells"]


def test_there_are_notebooks():
    """No notebook is stored without a source."""
    assert SOURCES
    assert [path.stem for path in SOURCES] == sorted(p.stem for p in NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_the_outputs_belong_to_the_source(path):
    """The stored notebook has the cells of its source, and each cell of code was run in order."""
    cells = stored(path)

    assert cells_of(path.read_text()) == [
        (cell["cell_type"], "".join(cell["source"]).strip()) for cell in cells
    ]
    counts = [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
    assert list(range(1, len(counts) + 1)) == counts


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_output_is_a_red_box(path):
    """No cell printed to standard error or raised, and a picture and a table are there."""
    outputs = [output for cell in stored(path) for output in cell.get("outputs", ())]

    assert [] == [
        output
        for output in outputs
        if output["output_type"] == "error" or output.get("name") == "stderr"
    ]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert {"image/png", "text/html"} <= kinds


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_output_is_the_address_of_an_object(path):
    """Everything that is shown has text of its own, which does not differ from run to run."""
    shown = [output for cell in stored(path) for output in cell.get("outputs", ())]

    assert [] == [
        output
        for output in shown
        for kind, text in {"text": output.get("text", ""), **output.get("data", {})}.items()
        if kind.startswith("text") and re.search(r"\bat 0x[0-9a-f]+", "".join(text))
    ]
