"""Where the registry is, and what a program is called in it."""

from __future__ import annotations

import sys

import pytest

from pylair import registry


@pytest.mark.parametrize(
    ("env", "path"),
    [
        ({"PYLAIR_HOME": "/x/y", "XDG_RUNTIME_DIR": "/run"}, "/x/y/runtime"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, "/run/user/7/pylair"),
        ({"XDG_RUNTIME_DIR": "relative"}, "/tmp/pylair-1000"),
        ({"PYLAIR_HOME": ""}, "/tmp/pylair-1000"),
        # As in `crates/core/src/settings/places.rs`.
        ({"PYLAIR_HOME": "/" + 120 * "d"}, "/tmp/pylair-1000-a1353fe65750cee5"),
    ],
)
def test_the_directory_is_the_daemons(env, path):
    assert registry.runtime_directory(env, 1000) == path


@pytest.mark.parametrize(
    ("words", "name", "argv"),
    [
        (["python", "app.py", "-v"], "app", ["app.py", "-v"]),
        (["python", "-u", "-X", "dev", "-Wignore", "dir/app.py"], "app", ["dir/app.py"]),
        (["python", "-m", "pkg.mod", "x"], "pkg.mod", ["pkg.mod", "x"]),
        (["python", "-Bum", "http.server"], "http.server", ["http.server"]),
        (["python", "-mflask", "run"], "flask", ["flask", "run"]),
        (["python", "-c", "print()", "x"], "python", ["-c", "x"]),
        (["python", "--check-hash-based-pycs", "never", "a.py"], "a", ["a.py"]),
        (["/usr/bin/python3", "/venv/bin/gunicorn", "app:app"], "gunicorn", ["/venv/bin/gunicorn", "app:app"]),
        (["python", "/srv/thing/__main__.py"], "thing", ["/srv/thing/__main__.py"]),
        (["python", "/srv/thing/"], "thing", ["/srv/thing/"]),
        (["python", "a@b\n.py"], "a-b-", ["a@b\n.py"]),
        (["python", "-"], "python", ["-"]),
    ],
)
def test_programs_are_named_after_their_scripts(monkeypatch, words, name, argv):
    monkeypatch.setattr(sys, "orig_argv", words, raising=False)
    assert registry.default_id({}) == name
    assert registry.describe("x", "", 0, False, "start", None)["argv"] == argv


def test_the_environment_may_name_a_program():
    assert registry.default_id({"PYLAIR_APP_ID": "mine@home"}) == "mine-home"


def test_ids_of_children_stay_short():
    child = registry.made_id("12345", "p" * 64)
    assert len(child) == registry.MAX_ID_CHARS and child.endswith("p/12345")
    assert registry.made_id("", "web") == "web/python"
