"""Prepare the pages of the site: those of docs/, and what they link in the repository beside it.

    python scripts/site_pages.py [FOLDER]

The pages link examples, notebooks and other files of the repository by relative paths, which work
in an editor and wherever the repository is shown. The builder of the site sees one folder only, so
each of these files gets a page there: a notebook with its outputs, Markdown as it is, source text
as a block of code, a folder as a list. If `Source` stands among the addresses of the project in
pyproject.toml, these pages link to it.

FOLDER (by default build/pages) is replaced. Raises FileNotFoundError for a link without a target.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = ROOT / "build" / "pages"
#: The folder of the pages that are made, below that of the site.
BESIDE = "repository"

_LINK = re.compile(r"(?<=\]\()([^)\s#]+)((?:#[^)\s]*)?)(?=\))")
_FENCED = re.compile(r"^( *)(```+).*?^\1\2$", re.MULTILINE | re.DOTALL)
_LANGUAGES = {".py": "python", ".json": "json", ".yml": "yaml", ".toml": "toml", ".sh": "bash"}
_NOT_SHOWN = re.compile(r"<style.*?</style>|\n\s*", re.DOTALL)
#: As many characters as a line of code has on the site.
_WIDTH = 110
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class SitePages:
    """The pages of the site by their paths in it, made from files of the repository."""

    def __init__(self, root: Path = ROOT) -> None:
        """Take the pages of `root`/docs and all that they link."""
        self._root = root
        self._docs = root / "docs"
        self._source = source_address(root)
        #: Texts and pictures.
        self.files: dict[Path, str | bytes] = {}
        self._to_do = [path for path in sorted(self._docs.rglob("*")) if path.is_file()]
        done: set[Path] = set()
        while self._to_do:
            path = self._to_do.pop()
            if path not in done:
                done.add(path)
                self._add(path)

    def place(self, path: Path) -> Path:
        """Return the path in the site of the page of a file or folder of the repository."""
        if path.is_relative_to(self._docs):
            return path.relative_to(self._docs)
        relative = Path(BESIDE) / path.relative_to(self._root)
        if path.is_dir():
            return relative / "index.md"
        return relative if path.suffix == ".md" else relative.with_name(relative.name + ".md")

    def _add(self, path: Path) -> None:
        place = self.place(path)
        if path.is_dir():
            files = sorted(p for p in path.iterdir() if _is_shown(p))
            text = "\n".join(f"- [{_label(p)}]({_label(p)})" for p in files)
            text = f"# {self._name(path)}\n\n{text}\n"
        elif path.suffix == ".md":
            text = path.read_text()
        elif path.suffix == ".ipynb":
            text = self._notebook(path, json.loads(path.read_text()))
        elif path.is_relative_to(self._docs):
            self.files[place] = path.read_bytes()
            return
        else:
            language = _LANGUAGES.get(path.suffix, "text")
            text = f"# {self._name(path)}\n\n````{language}\n{path.read_text().rstrip()}\n````\n"
        if self._source and not path.is_relative_to(self._docs):
            text += f"\n[In the repository]({self._source}/blob/main/{self._name(path)})\n"
        self.files[place] = self._linked(text, path)

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _linked(self, text: str, path: Path) -> str:
        """Make the links of a page lead to pages of the site; note which pages they need."""
        place = self.place(path)
        base = path if path.is_dir() else path.parent

        def replaced(found: re.Match[str]) -> str:
            target = found[1]
            if re.match(r"[a-z]+:", target) or target.startswith("data/"):
                return found[0]
            file = (base / target).resolve()
            if not file.exists():
                raise FileNotFoundError(f"{self._name(path)} links {target}, which does not exist")
            self._to_do.append(file)
            page = os.path.relpath(self.place(file), place.parent)
            return Path(page).as_posix() + found[2]

        parts, end = [], 0
        for block in _FENCED.finditer(text):
            parts += [_LINK.sub(replaced, text[end : block.start()]), block[0]]
            end = block.end()
        return "".join([*parts, _LINK.sub(replaced, text[end:])])

    def _notebook(self, path: Path, notebook: dict[str, Any]) -> str:
        """Return the cells of a notebook and their outputs as Markdown; keep its pictures."""
        parts = []
        for number, cell in enumerate(notebook["cells"]):
            source = "".join(cell["source"]).strip()
            if cell["cell_type"] == "markdown":
                parts.append(source)
                continue
            parts.append(f"````python\n{source}\n````")
            for index, output in enumerate(cell.get("outputs", ())):
                parts.append(self._output(path, output, f"{number}-{index}"))
        return "\n\n".join(parts) + "\n"

    def _output(self, path: Path, output: dict[str, Any], name: str) -> str:
        data = output.get("data", {})
        if "image/png" in data:
            picture = Path("data") / f"{path.stem}-{name}.png"
            self.files[self.place(path).parent / picture] = base64.b64decode(data["image/png"])
            return f"![An output of the cell]({picture.as_posix()})"
        if "text/markdown" in data:
            return "".join(data["text/markdown"]).strip()
        if "text/html" in data:
            # On one line: a blank one would end the block of HTML.
            html = _NOT_SHOWN.sub(" ", "".join(data["text/html"])).strip()
            return f'<div class="notebook-output">{html}</div>'
        text = "".join(output.get("text") or data.get("text/plain", ""))
        shown = _ANSI.sub("", text).rstrip()
        is_wide = any(len(line) > _WIDTH for line in shown.splitlines())
        language = "{.text .wrapped}" if is_wide else "text"
        return f"````{language}\n{shown}\n````"


def source_address(root: Path = ROOT) -> str:
    """Return the address of the repository, empty as long as pyproject.toml has none."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return str(project.get("urls", {}).get("Source", "")).rstrip("/")


def write(folder: Path, files: dict[Path, str | bytes]) -> None:
    """Replace a folder by these files."""
    shutil.rmtree(folder, ignore_errors=True)
    for place, content in files.items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)


def _is_shown(path: Path) -> bool:
    if path.is_dir():
        return path.name != "__pycache__" and any(_is_shown(p) for p in path.iterdir())
    # A notebook is shown with its outputs, and not as the Python text that it is made from.
    return not path.with_suffix(".ipynb").exists() or path.suffix == ".ipynb"


def _label(path: Path) -> str:
    return path.name + "/" * path.is_dir()


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else PAGES, SitePages().files)
