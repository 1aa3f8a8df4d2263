"""Imports found by parsing, and packages that appear while a session lives."""

from __future__ import annotations

import json
import subprocess

import pytest


def missing(session, source: str) -> list[str]:
    done = session.ask("imports", source.encode())
    assert "refused" not in done, done
    return json.loads(session.blob)["missing"]


def add_site(session, directory, bin=None) -> list[str]:
    done = session.ask("site", directory=str(directory), **({"bin": str(bin)} if bin else {}))
    assert "refused" not in done, done
    return json.loads(session.blob)["loaded"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import absent_a, json, absent_b.c as d", ["absent_a", "absent_b.c"]),
        ("from absent_a import x\nfrom . import y\nfrom .absent_b import z", ["absent_a"]),
        ("def f():\n    class C:\n        import absent_a\n", ["absent_a"]),
        ("import importlib\nimportlib.import_module('absent_a.b')\nimportlib.import_module(name)", ["absent_a.b"]),
        ("__import__('absent_a')\n__import__('not a name')", ["absent_a"]),
        ("import absent_a\nimport absent_a", ["absent_a"]),
        ("await f()\nasync with a: import absent_a", ["absent_a"]),
        ("import json.absent", []),
        ("import sys, builtins, collections.abc", []),
        ("try:\n    import absent_a\nexcept ImportError:\n    import absent_b\nelse:\n    import absent_c", ["absent_c"]),
        ("try:\n    import absent_a\nexcept (KeyError, ModuleNotFoundError): pass", []),
        ("try:\n    import absent_a\nexcept: pass", []),
        ("try:\n    import absent_a\nexcept ValueError: pass", ["absent_a"]),
        ("try:\n    import absent_a\nfinally: pass", ["absent_a"]),
        ("import contextlib\nwith contextlib.suppress(ImportError):\n    import absent_a", []),
        ("import typing\nif typing.TYPE_CHECKING:\n    import absent_a\nelse:\n    import absent_b", ["absent_b"]),
        ("import absent_a +", []),
        ("import absent_a\0", []),
        ("", []),
    ],
)
def test_imports_that_would_fail_are_found(session, source, expected):
    assert missing(session, source) == expected


def test_looking_for_imports_runs_and_prints_nothing(session, tmp_path):
    (tmp_path / "loud").mkdir()
    (tmp_path / "loud" / "__init__.py").write_text("print('imported')")
    session.execute(f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    session.output = []
    assert missing(session, "import loud.inside\nprint('\\d')\n") == []
    assert session.result("'loud' in sys.modules") == "False"
    assert session.text(1) + session.text(2) == ""


def test_namespaces_are_looked_into(session, tmp_path):
    (tmp_path / "space" / "inner").mkdir(parents=True)
    (tmp_path / "space" / "inner" / "there.py").write_text("")
    session.execute(f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    source = "import space.inner.there, space.inner.absent, space.absent"
    for _ in range(2):
        assert missing(session, source) == ["space.inner.absent", "space.absent"]
        session.execute("import space.inner.there")


def test_what_the_session_made_itself_is_there(session):
    session.execute("import sys, types\nsys.modules['made'] = types.ModuleType('made')")
    assert missing(session, "import made, made.more") == []


def test_a_finder_that_fails_does_not_disturb(session):
    session.execute("import sys\nclass Finder:\n    def find_spec(self, *a): raise SystemExit\nsys.meta_path.insert(0, Finder())")
    assert missing(session, "import absent_a") == []
    session.execute("del sys.meta_path[0]")
    assert missing(session, "import absent_a") == ["absent_a"]


def package(directory, name: str, value: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.py").write_text(f"VALUE = {value!r}\n")


def test_packages_that_appear_are_found_at_once_and_before_the_others(session, tmp_path):
    old, new = tmp_path / "old" / "site-packages", tmp_path / "new" / "site-packages"
    package(old, "thing", "old")
    session.execute(f"import sys, os; sys.path.append({str(old)!r}); path = list(sys.path)")
    assert session.execute("import fresh")["error"]["type"] == "ModuleNotFoundError"
    package(new, "thing", "new")
    package(new, "fresh", "fresh")
    (tmp_path / "linked").mkdir()
    package(tmp_path / "linked", "editable", "linked")
    (new / "linked.pth").write_text(f"{tmp_path / 'linked'}\n")
    assert add_site(session, new, tmp_path / "bin") == []
    assert session.result("import thing, fresh, editable; (thing.VALUE, fresh.VALUE, editable.VALUE)") == "('new', 'fresh', 'linked')"
    assert session.result("os.environ['PATH'].split(':')[0]") == repr(str(tmp_path / "bin"))
    # The standard library and the working directory stay in front.
    assert session.result("sys.path[0], sys.path.index(os.path.dirname(os.__file__)) < sys.path.index(thing.__file__[:-9])") == "('', True)"
    once = session.result("sys.path, os.environ['PATH']")
    assert add_site(session, new, tmp_path / "bin") == ["fresh", "thing"]
    assert session.result("sys.path, os.environ['PATH']") == once
    assert session.result("[entry for entry in sys.path if entry in path] == path") == "True"


def test_what_is_added_to_a_known_directory_is_found(session, tmp_path):
    packages = tmp_path / "site-packages"
    package(packages, "first", "1")
    session.execute(f"import sys; sys.path.append({str(packages)!r}); import first")
    before = session.result("sys.path")
    package(packages, "second", "2")
    assert add_site(session, packages) == ["first"]
    assert session.result("import second; second.VALUE") == "'2'"
    assert session.result("sys.path") == before


def test_a_path_file_that_exits_does_not_end_the_session(session, tmp_path):
    packages = tmp_path / "site-packages"
    package(packages, "thing", "1")
    (packages / "evil.pth").write_text("import sys; raise SystemExit\n")
    add_site(session, packages)
    assert session.result("import thing; thing.VALUE") == "'1'"


def test_the_site_of_a_real_venv(session, python, tmp_path):
    subprocess.run([python, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    packages = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    package(packages, "thing", "1")
    add_site(session, packages, tmp_path / "venv" / "bin")
    assert session.result("import shutil, thing; shutil.which('python')") == repr(str(tmp_path / "venv" / "bin" / "python"))
