"""What importing the package does not do, and which module may import which."""

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
    "validation",
    "timeline limits deadline system contact_sheet bitstream",
    "pixels sampling",
    "source",
    "container",
    "index",
    "frames",
    "plan",
    "backends",
    "settings",
    "pipeline",
    "metrics",
    "pool",
    "__init__",
    "integrations testing",
    "cli",
    "__main__",
]
"""Every module or folder of the package, from the bottom up; each imports only from layers below its own."""
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer.split()}
LAZY = {("frames", "contact_sheet")}
HEAVY = set("av torch cuda httpx httpcore PIL cv2 torchcodec transformers vllm prometheus_client".split())


def modules():
    return sorted(".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.py"))


def source(module):
    return ast.parse((PACKAGE / Path(*module.split(".")).with_suffix(".py")).read_text())


def is_for_types(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def imported(tree):
    """Full names that a module imports, at its top or in functions, but for those that only type checkers see."""
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not is_for_types(node):
            pending += ast.iter_child_nodes(node)


def own_name(module):
    """The layer's name for a module: "backends.pyav" is in "backends"."""
    return module.split(".")[0]


def own_imports(module):
    """The layers' names of the telecine modules that a module imports."""
    for name in imported(source(module)):
        first, _, rest = name.partition(".")
        if first != "telecine":
            continue
        part = own_name(rest)
        if part in HEIGHT and part != "__init__":
            yield part
        elif not rest:
            yield "__init__"


@pytest.fixture(scope="module")
def fresh():
    """What a new interpreter has after ``import telecine``."""
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


def test_every_module_has_its_place():
    assert {own_name(module) for module in modules()} <= set(HEIGHT)


@pytest.mark.parametrize("module", modules())
def test_imports_point_down(module):
    me = own_name(module)
    upward = {other for other in own_imports(module) if other != me and HEIGHT[other] >= HEIGHT[me]}
    assert {(me, other) for other in upward} <= LAZY


def test_modules_do_not_import_each_other_in_a_circle():
    graph = {}
    for module in modules():
        graph.setdefault(own_name(module), set()).update(
            other for other in own_imports(module) if other != own_name(module)
        )
    TopologicalSorter(graph).prepare()


def public_name(module):
    return f"telecine.{module}".removesuffix(".__init__")


@pytest.mark.parametrize("module", modules())
def test_all_names_only_what_is_there(module):
    loaded = importlib.import_module(public_name(module))
    assert sorted(set(loaded.__all__)) == sorted(loaded.__all__)
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []


@pytest.mark.parametrize("module", modules())
def test_modules_use_of_each_other_only_what_all_names(module):
    used = [
        (node.module, alias.name)
        for node in ast.walk(source(module))
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "telecine"
        for alias in node.names
    ]
    private = [(name, item) for name, item in used if item not in importlib.import_module(name).__all__]
    assert private == []


def test_the_public_names_are_those_of_the_design():
    expected = {"load", "probe", "backends", "Frames", "Frame", "VideoInfo", "Report", "BackendStatus", "Limits", "Fit"}
    errors = set(importlib.import_module("telecine.errors").__all__)
    assert set(telecine.__all__) >= expected | errors
    assert {name for name in vars(telecine) if not name.startswith("_")} - set(telecine.__all__) <= set(HEIGHT)
