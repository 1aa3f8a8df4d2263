"""The installable package: what is in it, and that it needs nothing."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import textwrap

import pytest
from host import PROBE

import pylair

PROJECT = PROBE.parent


def setting(name):
    return re.search(rf"^{name} = (.*)$", (PROJECT / "pyproject.toml").read_text(), re.M).group(1)


def test_one_version_and_no_dependency():
    assert json.loads(setting("version")) == pylair.__version__
    assert json.loads(setting("dependencies")) == []
    cargo = (PROJECT.parent / "Cargo.toml").read_text()
    assert re.search(r'^version = "(.*)"$', cargo, re.M).group(1) == pylair.__version__


def test_a_build_holds_exactly_the_package(tmp_path):
    # The Python that runs these tests has been given setuptools; the one under test need not have it.
    python = sys.executable
    code = "import setuptools; print(int(setuptools.__version__.split('.')[0]) >= 61)"
    asked = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if asked.stdout.strip() != "True":
        assert json.loads(setting("packages")) == ["pylair"]
        pytest.skip("this Python cannot build packages")
    project = tmp_path / "probe"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    command = [python, "-c", "import setuptools; setuptools.setup()", "-q", "build", "--build-lib", str(tmp_path / "built")]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    built = {str(path.relative_to(tmp_path / "built")) for path in (tmp_path / "built").rglob("*") if path.is_file()}
    assert built == {f"pylair/{path.name}" for path in PROBE.glob("*.py")}
    code = "import pylair; pylair.register('a', 1); print(pylair.__version__, pylair.running)"
    out = subprocess.run([python, "-c", code], cwd=tmp_path / "built", capture_output=True, text=True, check=True).stdout
    assert out == f"{pylair.__version__} False\n"


def test_no_module_takes_the_name_of_something_that_programs_use():
    """`pylair.running` would be the module `running` as soon as that is imported."""
    used = {name for name in dir(pylair) if not name.startswith("_") and not isinstance(getattr(pylair, name), type(sys))}
    assert {"start", "register", "running", "n_clients"} <= used
    assert not used & {path.stem for path in PROBE.glob("*.py")}


@pytest.mark.skipif(sys.version_info < (3, 10), reason="needs the list of the standard library")
def test_only_the_standard_library_is_needed_to_start():
    """Follows the imports at the top of the modules that an app loads."""
    for path in PROBE.glob("*.py"):
        # Only pytest itself loads these.
        known = sys.stdlib_module_names | ({"pytest"} if path.stem in ("pytest_plugin", "reporting", "witnessing") else set())
        tree = ast.parse(path.read_text())
        for node in tree.body:
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            else:
                continue
            foreign = [name for name in names if name.partition(".")[0] not in known]
            assert not foreign, f"{path.name}: {foreign}"


def test_importing_and_starting_are_quick(python, tmp_path):
    """Not a benchmark: nothing heavy may creep in. What the interpreter has anyway is not counted, nor what `logging` needs."""
    code = """
    import logging, sys
    before = set(sys.modules)
    import pylair
    pylair.start(app_id="quick")
    heavy = {"asyncio", "inspect", "ssl", "http", "email", "multiprocessing", "concurrent", "tempfile", "subprocess", "argparse", "ctypes"}
    print(sorted(heavy & (set(sys.modules) - before)))
    """
    env = {"PYTHONPATH": str(PROJECT), "PYLAIR_HOME": str(tmp_path)}
    out = subprocess.run([python, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True, check=True).stdout
    assert out == "[]\n"
