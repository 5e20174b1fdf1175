"""Imports point one way. Function-level and TYPE_CHECKING imports count like all others.

A module may import from its own layer and from the layers above it in `LAYERS`, unless `ONLY` permits less. A module
that is in no layer fails. No module inside imports the package's root, which imports everything.
"""

import ast
from pathlib import Path

import pytest

import holdfast

SOURCE = Path(holdfast.__file__).parent

LAYERS = (
    ("errors", "events", "validation", "platform"),
    ("rules", "observe"),
    ("commands",),
    ("stores",),
    ("runtime",),
    ("locks", "state"),
    ("fencing",),
    ("workflow",),
    ("client",),
    ("cli", "dashboard", "drill", "testing", "__main__"),
)
ONLY = {
    "rules": {"errors"},
    "observe": {"events"},
    "fencing": {"errors", "commands", "validation", "platform"},
}
TOP = set(LAYERS[-1])
FORBIDDEN = {"pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal"}
"""Modules that execute code when they read data."""


def allowed(package):
    """The packages that a package may import from, itself included."""
    for place, layer in enumerate(LAYERS):
        if package in layer:
            below = {name for earlier in LAYERS[: place + 1] for name in earlier}
            return ONLY.get(package, below) | {package}
    return None


def imports(tree, package):
    """Every imported dotted name with its line; relative ones are made absolute. `a.b` may be a name within a."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                yield node.lineno, ".".join([*base, alias.name])


def faults(source):
    """All violations in the tree, one line each."""
    packages = {
        path.stem for path in source.iterdir() if path.suffix == ".py" or (path.is_dir() and any(path.glob("*.py")))
    }
    found = []
    for path in sorted(source.rglob("*.py")):
        inner = path.relative_to(source)
        package = inner.parts[0].removesuffix(".py")
        tree = ast.parse(path.read_text())
        if not ast.get_docstring(tree):
            found.append(f"{inner}: does not open with a docstring")
        may = packages if package == "__init__" else allowed(package)
        if may is None:
            found.append(f"{inner}: is in no layer of LAYERS")
            continue
        for line, name in imports(tree, [source.name, *inner.parts[:-1]]):
            first, *rest = name.split(".")
            if first in FORBIDDEN:
                found.append(f"{inner}:{line}: imports {first}")
            if first != source.name:
                continue
            target = rest[0] if rest and rest[0] in packages else "__init__"
            if target == "__init__":
                if package != "__init__" and package not in TOP:
                    found.append(f"{inner}:{line}: imports {name} from the package's root")
            elif target not in may:
                found.append(f"{inner}:{line}: {package} may not import {target}")
    return found


def test_imports_point_one_way_and_every_module_has_a_docstring():
    assert not (wrong := faults(SOURCE)), "\n".join(["", *wrong])


def foreign_stores(source):
    """Every import of one store's package by another's."""
    stores = {path.name for path in (source / "stores").iterdir() if path.is_dir() and any(path.glob("*.py"))}
    found = []
    for path in sorted((source / "stores").rglob("*.py")):
        inner = path.relative_to(source)
        for line, name in imports(ast.parse(path.read_text()), [source.name, *inner.parts[:-1]]):
            parts = name.split(".")
            if parts[:2] == [source.name, "stores"] and parts[2:3] and parts[2] in stores - {inner.parts[1]}:
                found.append(f"{inner}:{line}: imports {name}")
    return found


def test_no_store_imports_another():
    assert foreign_stores(SOURCE) == []


def test_an_import_of_another_store_is_found(build_tree):
    root = build_tree(
        stores__in__sqlite__in__store="from ..redis import keys",
        stores__in__redis__in__keys="",
        stores__in__common="",
    )
    assert foreign_stores(root) == ["stores/sqlite/store.py:2: imports holdfast.stores.redis.keys"]


def test_no_package_is_in_two_layers():
    names = [name for layer in LAYERS for name in layer]
    assert len(names) == len(set(names))


@pytest.fixture
def build_tree(tmp_path):
    """A function that builds a small correct tree, with faults on request."""
    root = tmp_path / "holdfast"

    def build(**extra):
        texts = {
            "__init__": "from .client import Client\nfrom .errors import HoldfastError",
            "errors": "",
            "validation": "from .errors import HoldfastError",
            "rules/__init__": "",
            "rules/lock": "from . import record\nfrom ..errors import HoldfastError",
            "rules/record": "import msgspec",
            "commands": "from .rules import lock\nfrom . import validation",
            "stores/__init__": "from ..commands import Command",
            "fencing/__init__": "from ..errors import StaleToken\nfrom .files import x",
            "fencing/files": "from ..validation import seconds",
            "client": "from .fencing import guard",
            "cli/__init__": "from holdfast import Client",
            **{name.replace("__in__", "/"): text for name, text in extra.items()},
        }
        for name, text in texts.items():
            file = root / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f'"""Docstring."""\n{text}\n')
        return root

    return build


def test_a_correct_tree_passes(build_tree):
    assert faults(build_tree()) == []


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("errors", "from .rules import lock", "errors.py:2: errors may not import rules"),
        ("errors", "def f():\n    from . import commands", "errors.py:3: errors may not import commands"),
        ("commands", "import holdfast.stores.memory", "commands.py:2: commands may not import stores"),
        ("rules__in__lock", "from ..validation import seconds", "rules/lock.py:2: rules may not import validation"),
        ("rules__in__lock", "from holdfast.commands import x", "rules/lock.py:2: rules may not import commands"),
        ("fencing__in__files", "from .. import stores", "fencing/files.py:2: fencing may not import stores"),
        ("observe", "from .errors import HoldfastError", "observe.py:2: observe may not import errors"),
        (
            "stores__in__deep__in__x",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ...client import Client",
            "stores/deep/x.py:4: stores may not import client",
        ),
        ("validation", "from . import Client", "validation.py:2: imports holdfast.Client from the package's root"),
        ("validation", "import holdfast", "validation.py:2: imports holdfast from the package's root"),
        ("unplaced", "", "unplaced.py: is in no layer of LAYERS"),
        ("validation", "import pickle", "validation.py:2: imports pickle"),
        ("validation", "def f():\n    from pickle import loads", "validation.py:3: imports pickle"),
    ],
)
def test_a_wrong_import_is_found(build_tree, file, text, fault):
    assert faults(build_tree(**{file: text})) == [fault]


def test_a_module_without_a_docstring_is_found(build_tree):
    root = build_tree()
    (root / "validation.py").write_text("from .errors import HoldfastError\n")
    assert faults(root) == ["validation.py: does not open with a docstring"]


def test_native_code_is_short_and_so_are_its_lines():
    """Server-side code exists for speed only; everything else is decided by the rules in Python."""
    most = {".lua": 1_800, ".sql": 1_200}
    for kind, limit in most.items():
        files = {path: path.read_text().splitlines() for path in SOURCE.rglob(f"*{kind}")}
        assert files
        assert sum(map(len, files.values())) <= limit
        assert [path.name for path, lines in files.items() if any(len(line) > 120 for line in lines)] == []


def classes_defined_twice(source):
    """Every class name that two modules define, with the modules: a name means one thing in the whole tree."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(path.relative_to(source).as_posix())
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def test_a_class_name_is_defined_once():
    assert classes_defined_twice(SOURCE) == {}


def test_a_class_name_that_is_defined_twice_is_found(build_tree):
    root = build_tree(rules__in__lock="class Place:\n    pass", stores__in__common="class Place:\n    pass")
    assert classes_defined_twice(root) == {"Place": ["rules/lock.py", "stores/common.py"]}
