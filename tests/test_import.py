"""Rules for imports: the cost of importing the package, its layers, no cycles, and its public names."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import telecine

PACKAGE = Path(telecine.__file__).parent
LAYERS = [
    "errors",
    "validation timeline notes",
    "deadline bitstream pixels sampling system contact_sheet",
    "limits",
    "source",
    "container",
    "index",
    "frames plan audio",
    "backends",
    "settings",
    "request metrics",
    "pipeline",
    "video pool",
    "live",
    "integrations testing",
    "api nvdec",
    "__init__",
    "server",
    "cli",
    "__main__",
]
"""Every module or folder of the package, from the bottom up; each imports only from layers below its own."""
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer.split()}
PUBLIC = set(
    "load probe list_backends Frames Frame VideoInfo Report Timeline Sampling Fit Limits Deadline BackendStatus "
    "Pool PoolFuture load_audio Audio open Video FrameChunks Note live LiveStream Segment".split()
)
"""The public names beside the errors."""
HEAVY = set("av torch cuda httpx httpcore PIL cv2 torchcodec transformers vllm prometheus_client".split()) | set(
    "openai fastapi uvicorn rich".split()
)


def modules():
    """Return the names of all modules, from the package's folder on: "pool.job", "pool.__init__"."""
    return sorted(".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.py"))


def syntax_tree(module):
    return ast.parse((PACKAGE / Path(*module.split(".")).with_suffix(".py")).read_text())


def imported_names(module):
    """Yield the full names that a module imports: at its top, in functions, and for type checkers alone."""
    for node in ast.walk(syntax_tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_modules(module):
    """Yield the modules of the package that a module imports, named as :func:`modules` names them."""
    known = set(modules())
    for name in imported_names(module):
        first, _, rest = name.partition(".")
        if first == "telecine":
            yield from {rest, f"{rest}.__init__".removeprefix(".")} & known


def layer(module):
    """Return the name of a module in LAYERS: "backends" for "backends.pyav.backend"."""
    return module.split(".")[0]


@pytest.fixture(scope="module")
def fresh():
    """Return the modules that ``import telecine`` loads in a new interpreter, and the number of its threads."""
    script = (
        "import json, sys, threading; before = set(sys.modules); import telecine;"
        "print(json.dumps([sorted(set(sys.modules) - before), threading.active_count()]))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, check=True, text=True)
    return json.loads(done.stdout)


def test_importing_the_package_imports_nothing_heavy(fresh):
    loaded, _ = fresh
    assert "telecine.pipeline" in loaded
    assert {name.split(".")[0] for name in loaded} & HEAVY == set()


def test_importing_the_package_starts_no_thread(fresh):
    _, threads = fresh
    assert threads == 1


def test_every_module_is_in_a_layer_and_every_layer_names_a_module():
    assert {layer(module) for module in modules()} == set(HEIGHT)


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_only_from_layers_below_its_own(module):
    others = {layer(other) for other in imported_modules(module)} - {layer(module)}
    assert {other for other in others if HEIGHT[other] >= HEIGHT[layer(module)]} == set()


def test_no_modules_import_each_other_in_a_cycle():
    """Folders inside and imports for type checkers included."""
    graph = {module: {other for other in imported_modules(module) if other != module} for module in modules()}
    TopologicalSorter(graph).prepare()


def public_name(module):
    return f"telecine.{module}".removesuffix(".__init__")


@pytest.mark.parametrize("module", modules())
def test_every_name_in_all_exists_and_stands_there_once(module):
    loaded = importlib.import_module(public_name(module))
    assert sorted(set(loaded.__all__)) == sorted(loaded.__all__)
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []


@pytest.mark.parametrize("module", modules())
def test_modules_import_from_each_other_only_names_in_all(module):
    used = [
        (node.module, alias.name)
        for node in ast.walk(syntax_tree(module))
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "telecine"
        for alias in node.names
    ]
    private = [(name, item) for name, item in used if item not in importlib.import_module(name).__all__]
    assert private == []


def test_the_public_names_are_those_of_the_design():
    errors = set(importlib.import_module("telecine.errors").__all__)
    assert set(telecine.__all__) == PUBLIC | errors
    visible = {name for name in vars(telecine) if not name.startswith("_")}
    assert visible - set(telecine.__all__) <= set(HEIGHT)


def test_no_public_name_is_that_of_a_module():
    """``import telecine.backends`` gives a package, and no function of that name hides it.

    ``telecine.live`` is the exception: all public names of its package are in ``telecine``.
    """
    assert {name for name in telecine.__all__ if name in HEIGHT} == {"live"}
