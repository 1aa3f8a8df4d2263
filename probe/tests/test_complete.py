"""complete: what is offered where, and that nothing runs for it."""

from __future__ import annotations

import os

import pytest

NAMESPACE = """
import math, os, collections
ran = []
class Point:
    def __init__(self, left, top=0, *, colour=None): self.left = left; self._inner = 1
    def move(self, by): pass
    @property
    def size(self): ran.append("size")
    def __getattr__(self, name): ran.append(name); raise AttributeError(name)
    def __dir__(self): ran.append("dir"); return ["invented"]
class Slotted:
    __slots__ = ("one_slot",)
point, slotted = Point(1), Slotted()
data = {"alpha": {"nested key": [point]}, "beta": 2, 3: 4, "it's": 5}
def func(alpha, beta=1, *rest, gamma=2, **more): pass
naïve_größe = "ä"
Mixed = mixed = 1
"""


@pytest.fixture
def filled(session):
    assert session.execute(NAMESPACE)["outcome"] == "ok"
    yield session
    assert session.result("ran") == "[]"


def offered(session, code, cursor=None):
    """The matches for the code; `|` marks the cursor."""
    at = code.index("|") if "|" in code else len(code)
    code = code.replace("|", "", 1)
    found = session.look("complete", code.encode(), cursor=at)
    assert found["end"] == at
    typed = code[found["start"] : at]
    assert all(match["text"].lower().startswith(typed.lower()) for match in found["matches"])
    return [(match["text"], match["kind"]) for match in found["matches"]]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("point.mo", [("move", "attribute")]),
        ("point.si", [("size", "attribute")]),
        ("point._in", [("_inner", "attribute")]),
        ("slotted.on", [("one_slot", "attribute")]),
        ("x = math.fl|oor(1)", [("floor", "attribute")]),
        ("Point(3).mo", [("move", "attribute")]),
        ("'text'.upp", [("upper", "attribute")]),
        ("[1].app", [("append", "attribute")]),
        ("data['alpha']['nested key'][0].mo", [("move", "attribute")]),
        ("data['al", [("alpha", "key")]),
        ('data["be|"]', [("beta", "key")]),
        ("data.get('be", [("beta", "key")]),
        ("data['it", [("it\\'s", "key")]),
        ('data["it', [("it's", "key")]),
        ("data['alpha']['nes", [("nested key", "key")]),
        ("print(f'{data[\"al", [("alpha", "key")]),
        ("f'{point.mo", [("move", "attribute")]),
        ("func(al", [("alpha=", "keyword_argument")]),
        ("func(1, ga|)", [("gamma=", "keyword_argument")]),
        ("func(gamma=1, gam", []),
        ("func(x=func(1), ga", [("gamma=", "keyword_argument")]),
        ("Point(1, col", [("colour=", "keyword_argument")]),
        ("point.move(b", [("by=", "keyword_argument")]),
        ("func(1,\n     ga", [("gamma=", "keyword_argument")]),
        ("naïve_gr", [("naïve_größe", "name")]),
        ("été = naïve_größe.upp", [("upper", "attribute")]),
        ("import math as mm\nmm.flo", [("floor", "attribute")]),
        ("from collections import dequ", [("deque", "name")]),
        ("from collections import (OrderedDict,\n  dequ", [("deque", "name")]),
        ("import collections.ab", [("abc", "module")]),
        ("from xml.et", [("etree", "module")]),
        ("from fileinput import hook_enc", [("hook_encoded", "name")]),
        ("from math ", [("import", "keyword")]),
        ("newname = 1\nprint(newn", [("newname", "name")]),
        ("def later(some_arg):\n    return some_a", [("some_arg", "name")]),
        ("def later(some_arg): pass\nlater(some_", [("some_arg=", "keyword_argument"), ("some_arg", "name")]),
        ("s = 'x'\ns.isalp", [("isalpha", "attribute")]),
        ("q = Point(1)\nq.mo", [("move", "attribute")]),
        ("globa", [("globals", "name"), ("global", "keyword")]),
        ("mix", [("mixed", "name"), ("Mixed", "name")]),
        ("# data.", []),
        ("def da", []),
        ("1.", []),
        ("unknown.", []),
        ("func().", []),
        ("x = '''data['al", []),
    ],
)
def test_what_is_offered(filled, code, expected):
    found = offered(filled, code)
    assert found[: len(expected)] == expected
    assert bool(found) == bool(expected)


def test_modules_are_offered(filled):
    assert ("textwrap", "module") in offered(filled, "import textw")
    assert ("json", "module") in offered(filled, "import os, js")
    assert ("path", "module") in offered(filled, "import os.pa") or ("path", "name") in offered(filled, "from os import pa")


def test_keys_come_first_without_a_quote(filled):
    found = offered(filled, "data[")
    assert found[:4] == [("3", "key"), ("'alpha'", "key"), ("'beta'", "key"), ('"it\'s"', "key")]


def test_private_names_come_last(filled):
    texts = [text for text, _ in offered(filled, "point.")]
    assert texts[:3] == ["left", "move", "size"]
    assert texts[3] == "_inner" and texts[4].startswith("__")
    assert "invented" not in texts


def test_files_are_offered_in_strings(filled, tmp_path):
    (tmp_path / "data file.csv").write_text("")
    (tmp_path / "dir").mkdir()
    (tmp_path / ".hidden").write_text("")
    assert offered(filled, f"open('{tmp_path}/d") == [("data file.csv", "path"), ("dir/", "path")]
    assert offered(filled, f"open('{tmp_path}/.h") == [(".hidden", "path")]
    filled.execute(f"os.chdir({str(tmp_path)!r})")
    assert offered(filled, "open('di") == [("dir/", "path")]


def test_a_new_module_is_seen(filled, tmp_path):
    filled.execute(f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    assert offered(filled, "import brandn") == []
    (tmp_path / "brandnew.py").write_text("def fresh(): pass\nraise SystemExit('ran')\n")
    stamp = tmp_path.stat().st_mtime_ns + 10**9
    os.utime(tmp_path, ns=(stamp, stamp))
    assert offered(filled, "import brandn") == [("brandnew", "module")]
    assert offered(filled, "from brandnew import fr") == [("fresh", "name")]


def test_matches_are_bounded(filled):
    filled.execute("lots = {f'key{n:04}': n for n in range(1000)}")
    found = filled.look("complete", b"lots['", cursor=6)
    assert len(found["matches"]) == 200 and found["more"]


@pytest.mark.parametrize(
    "code", ["(((", "'", '"""', "f'{", "x[", "\\", "def", "\x00", "é" * 100, "a" * 200_000 + ".", "@", "import", "from", "from ."]
)
def test_unfinished_code_is_no_problem(filled, code):
    assert "matches" in filled.look("complete", code.encode(), cursor=len(code))


def test_a_cursor_outside_the_code_is_at_its_end(filled):
    assert filled.look("complete", b"mat", cursor=99)["end"] == 3
