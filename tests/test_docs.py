"""The pages of the repository: links lead somewhere, and the files that they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("README.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FILE = re.compile(r"`((?:src|tests|docs|bench|examples|scripts|native|\.ci)/[\w./-]+)`")
PLACEHOLDER = re.compile(r"NAME|CODEC")


def prose(page: Path) -> str:
    """Return the text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_pages_are_found() -> None:
    assert {"README.md", "architecture.md", "glossary.md"} <= {page.name for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_to_files_and_headings(page: Path) -> None:
    dead = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+://", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    names = [name for name in FILE.findall(prose(page)) if not PLACEHOLDER.search(name)]
    assert [name for name in names if not any((base / name).exists() for base in (ROOT, page.parent))] == []


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_modules_that_a_page_names_are_in_the_package(name: str) -> None:
    """Also without a folder, as ``auto.py`` or ``bitstream/nal.py``."""
    package = [f"/{path.relative_to(ROOT)}" for path in (ROOT / "src").rglob("*.py")]
    named = re.findall(r"`((?!tests|docs|bench)[\w/]+\.py)`", (ROOT / name).read_text())
    named = [module for module in named if not PLACEHOLDER.search(module)]
    assert named and [module for module in named if not any(path.endswith(f"/{module}") for path in package)] == []


def test_the_architecture_page_names_every_folder_and_module_of_the_package() -> None:
    package = ROOT / "src" / "telecine"
    folders = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")} | {"native/"}
    modules = {path.name for path in package.glob("[!_]*.py")}
    named = set(re.findall(r"`([\w/.]+)`", (ROOT / "docs" / "architecture.md").read_text()))
    assert (folders | modules) - named == set()


def test_the_architecture_page_shows_the_import_order_that_is_tested() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| \d+ \| (.*) \|$", text, re.MULTILINE)
    shown = [set(re.findall(r"`(\w+)`", row)) or {"__init__"} for row in rows]
    source = (ROOT / "tests" / "test_import.py").read_text()
    layers = re.search(r"^LAYERS = \[(.*?)^\]", source, re.DOTALL | re.MULTILINE)
    assert layers is not None
    tested = [set(layer.split()) for layer in re.findall(r'"(.*)"', layers[1])]
    assert shown == [layer for layer in tested if layer != {"__main__"}]
