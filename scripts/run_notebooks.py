"""Run the notebooks of `examples/notebooks`, and keep their outputs.

    python scripts/run_notebooks.py [--check] [--jobs 2] [NAME ...]

Each notebook is a Python file in jupytext's percent format. It is run from beginning to end in a
kernel of its own. The result is stored beside it as `.ipynb` and rendered to `build/notebooks` as
HTML. With `--check` it is run and rendered, but the stored notebook stays as it is.

A cell that raises, or that prints to standard error, fails the run. What the processes that a cell
starts print there, such as Spark's JVM, goes to the terminal, as with the option
`IPKernelApp.capture_fd_output=False` of Jupyter. What differs from run to run
without any meaning (ids of cells, times, the ports of the embedded broker) is made the same in the
stored notebook.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbconvert import HTMLExporter

if TYPE_CHECKING:
    from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "examples" / "notebooks"
RENDERED = ROOT / "build" / "notebooks"
#: The longest that a cell may take, in seconds.
CELL_TIMEOUT = 600
#: nbconvert's own page hides the ends of long lines of code, and breaks those of output anywhere.
_TEMPLATE = """
{%- extends "lab/index.html.j2" -%}
{%- block html_head_css -%}
{{ super() }}
<style>
.jp-InputArea-editor { overflow-x: auto !important; }
.jp-RenderedText pre { white-space: pre !important; word-break: normal !important; }
</style>
{%- endblock -%}
"""
_ADDRESS = re.compile(r"\b127\.0\.0\.1:\d{4,5}\b")


def run(path: Path) -> NotebookNode:
    """Run a notebook in the folder of the notebooks, and return it with its outputs."""
    notebook = jupytext.read(path)
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        extra_arguments=["--IPKernelApp.capture_fd_output=False"],
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {}
        for output in cell.get("outputs", ()):
            _settle(output)
    return notebook


def _settle(output: NotebookNode) -> None:
    """Replace what differs from run to run in one output of a cell."""
    if "text" in output:
        output.text = _ADDRESS.sub("127.0.0.1:9092", output.text)
    for kind, value in output.get("data", {}).items():
        if kind.startswith("text/"):
            output.data[kind] = _ADDRESS.sub("127.0.0.1:9092", value)


def on_stderr(notebook: NotebookNode) -> list[str]:
    """Return what the cells of a notebook have printed to standard error."""
    return [
        output.text
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.get("name") == "stderr"
    ]


def process(path: Path, *, stores: bool) -> tuple[str, bool]:
    """Run and render a notebook; return what to say about it, and whether it succeeded."""
    started = time.monotonic()
    try:
        notebook = run(path)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        return f"{path.stem} failed:\n{error}", False
    html, _ = HTMLExporter(raw_template=_TEMPLATE).from_notebook_node(
        notebook, resources={"metadata": {"name": path.stem}}
    )
    (RENDERED / f"{path.stem}.html").write_text(html)
    printed = on_stderr(notebook)
    if printed:
        return "\n".join([f"{path.stem} printed to standard error:", *printed]), False
    if stores:
        nbformat.write(notebook, path.with_suffix(".ipynb"))
    return f"{path.stem}: {time.monotonic() - started:.0f} s", True


def main() -> int:
    """Run all notebooks, or those that are named; return the exit code."""
    parser = argparse.ArgumentParser(description="Run the notebooks and keep their outputs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a notebook, such as first_topic")
    parser.add_argument("--check", action="store_true", help="change no stored notebook")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="run N notebooks at the same time"
    )
    arguments = parser.parse_args()
    paths = sorted(NOTEBOOKS.glob("*.py"))
    unknown = sorted(set(arguments.names) - {path.stem for path in paths})
    if unknown:
        parser.error(f"there is no notebook {', '.join(unknown)}")
    RENDERED.mkdir(parents=True, exist_ok=True)
    chosen = [path for path in paths if not arguments.names or path.stem in arguments.names]
    if not chosen:
        parser.error(f"there are no notebooks in {NOTEBOOKS}")
    succeeded = True
    # A process for each, and spawned: a client of a kernel has an event loop and threads.
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        for text, ended_well in pool.map(partial(process, stores=not arguments.check), chosen):
            print(text, file=sys.stdout if ended_well else sys.stderr, flush=True)
            succeeded = succeeded and ended_well
    return int(not succeeded)


if __name__ == "__main__":
    sys.exit(main())
