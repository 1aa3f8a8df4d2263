"""inspect and source between cells: what they tell, what they do not run, and what a throw-away costs."""

from __future__ import annotations

import os
import signal
import textwrap
from pathlib import Path

import pytest
from visitor import wait_for

THINGS = '''
import enum, functools
from dataclasses import dataclass
ran = []
class Point:
    """A place.

    It has two numbers."""
    __slots__ = ("x", "y", "unset")
    def __init__(self, x, y=2, *, z: int = 3):
        self.x, self.y = x, y
    @property
    def size(self):
        ran.append("size")
    @functools.cached_property
    def cached(self):
        ran.append("cached")
    @staticmethod
    def fixed(a): pass
    @classmethod
    def made(cls, b): pass
class Meta(type):
    def __eq__(cls, other): ran.append("meta eq"); return True
    def __hash__(cls): ran.append("meta hash"); return 1
    def __getattribute__(cls, name): ran.append("meta " + name); return type.__getattribute__(cls, name)
    def __instancecheck__(cls, other): ran.append("meta instance"); return True
    def __repr__(cls): ran.append("meta repr"); return ""
class Hostile(metaclass=Meta):
    def __getattribute__(self, name): ran.append(name); raise SystemExit
    def __len__(self): ran.append("len"); return 0
    def __iter__(self): ran.append("iter"); return iter(())
    def __dir__(self): ran.append("dir"); return []
    def __eq__(self, other): ran.append("eq"); return True
    def __hash__(self): ran.append("hash"); return 1
    __class__ = property(lambda self: ran.append("class"))
@dataclass
class Row:
    name: str
    tags: list
class Color(enum.Enum):
    RED = 1
point = Point(1)
hostile = Hostile()
ran.clear()
row = Row("a", [1])
color = Color.RED
tree = {"leaves": [1, 2, {"deep": (True, None)}], 3: "x" * 5000}
tree["self"] = tree
many = list(range(1000))
text = "äé" * 3000
def f(a, /, b=[1], *args, c, d: "int" = 4, **rest) -> str:
    """Does nothing.

    At length."""
'''


@pytest.fixture
def things(session):
    assert session.execute(THINGS)["outcome"] == "ok"
    return session


def names(nodes):
    return [node["name"] for node in nodes]


def test_a_list_shows_its_first_and_last_items(things):
    found = things.look("inspect", path="many", max_items=8)
    assert (found["type"], found["kind"], found["length"]) == ("list", "value", 1000)
    assert [item.get("key", item.get("gap")) for item in found["items"]] == [0, 1, 2, 3, 4, 5, 992, 998, 999]
    assert found["items"][6] == {"gap": 992}
    assert found["items"][-1] == {"key": 999, "type": "int", "preview": "999"}
    assert found["total_items"] == 1000 and found["more"]
    assert found["preview"] == "[0, 1, 2, 3, 4, 5, … 992 more, 998, 999]"


CONTAINERS = {
    "list(range(9))": ("[0, 1, … 6 more, 8]", ["0", "1", 6, "8"]),
    "tuple(range(9))": ("(0, 1, … 6 more, 8)", ["0", "1", 6, "8"]),
    "dict.fromkeys(range(9))": ("{0: None, 1: None, … 6 more, 8: None}", ["0", "1", 6, "8"]),
    "collections.OrderedDict.fromkeys('abcd')": ("OrderedDict({'a': None, 'b': None, … 1 more, 'd': None})", ["'a'", "'b'", 1, "'d'"]),
    "collections.defaultdict(int, a=1, b=2, c=3, d=4)": (
        "defaultdict(<class 'int'>, {'a': 1, 'b': 2, … 1 more, 'd': 4})",
        ["'a'", "'b'", 1, "'d'"],
    ),
    "collections.deque(range(9))": ("deque([0, 1, … 6 more, 8])", ["0", "1", 6, "8"]),
    "[list(range(9))]": ("[[0, 1, … 6 more, 8]]", ["0"]),
    "[1, 2, 3]": ("[1, 2, 3]", ["0", "1", "2"]),
    "set(range(9))": ("{0, 1, 2, … 6 more}", [None, None, None]),
    "range(9)": ("range(0, 9)", ["0", "1", 6, "8"]),
}


@pytest.mark.parametrize("code", CONTAINERS)
def test_previews_and_items_keep_to_max_items(session, code):
    preview, items = CONTAINERS[code]
    session.execute(f"import collections\nx = {code}")
    found = session.look("inspect", path="x", max_items=3)
    assert found["preview"] == preview
    assert [item["gap"] if "gap" in item else str(item["key"]) if "key" in item else None for item in found["items"]] == items
    assert ("more" in found) == (found["total_items"] > 3)


def test_few_items(things):
    assert things.look("inspect", path="many", max_items=0)["preview"] == "[… 1000 more]"
    found = things.look("inspect", path="many", max_items=1)
    assert (found["preview"], [item["key"] for item in found["items"]]) == ("[0, … 999 more]", [0])
    found = things.look("inspect", path="many", max_items=2)
    assert (found["preview"], [item.get("key") for item in found["items"]]) == ("[0, … 998 more, 999]", [0, None, 999])
    assert things.look("inspect", max_items=1)["variables"][0]["name"] == "ran"
    things.execute("class Good:\n    def __repr__(self): return 'good'\ngoods = [Good()] * 30")
    assert things.look("inspect", path="goods", max_items=3)["preview"] == "[good, good, … 27 more, good]"


def test_a_dict_is_nested_to_the_depth_and_knows_its_cycles(things):
    found = things.look("inspect", path="tree", depth=3)
    leaves, cut, cycle = found["items"]
    assert (leaves["key"], leaves["type"], leaves["length"]) == ("'leaves'", "list", 3)
    deep = leaves["items"][2]["items"][0]
    assert (deep["key"], deep["preview"]) == ("'deep'", "(True, None)") and "items" not in deep
    assert cut["length"] == 5000 and len(cut["preview"]) < 250
    assert cycle["cycle"] and "items" not in cycle
    assert "items" not in things.look("inspect", path="tree", depth=0)


def test_an_object_shows_attributes_and_does_not_run_properties(things):
    found = things.look("inspect", path="point")
    assert found["type"] == "Point"
    assert found["attributes"] == [{"name": "x", "type": "int", "preview": "1"}, {"name": "y", "type": "int", "preview": "2"}]
    assert found["properties"] == ["size", "cached"]
    assert found["doc"] == "A place."
    assert things.result("ran") == "[]"


def test_nothing_of_a_hostile_object_is_run(things):
    things.execute("box = [hostile, {'h': hostile}]; object.__setattr__(hostile, 'own', 1)")
    things.execute("ran.clear()")
    found = things.look("inspect", path="hostile", depth=2)
    assert things.look("inspect", path="Hostile", depth=2)["kind"] == "class"
    assert "class Hostile" in things.look("source", path="Hostile")["source"]
    for code in ("box[", "box[0].", "box['", "hostile(", "Hostile.", "hostile", "Hostile(a", "x = hostile\nx.", "x = Hostile()\nx."):
        assert "matches" in things.look("complete", code.encode(), cursor=len(code))
    assert (found["type"], found["preview"]) == ("Hostile", "<Hostile object>")
    assert names(found["attributes"]) == ["own"]
    assert things.look("inspect", path="box", depth=3)["length"] == 2
    assert "refused" not in things.look("inspect")
    assert things.look("complete", b"hostile.o", cursor=9)["matches"] == [{"text": "own", "kind": "attribute"}]
    assert things.result("ran") == "[]"


def test_reprs_that_are_known_need_no_code(things):
    assert things.look("inspect", path="row")["preview"] == "Row(name='a', tags=[1])"
    assert things.look("inspect", path="color")["preview"] == "<Color.RED: 1>"
    things.execute("import collections, datetime, pathlib; N = collections.namedtuple('N', 'a b'); n = N(1, 'x')")
    things.execute("d = collections.Counter('aab'); when = datetime.datetime(2024, 1, 2); here = pathlib.PurePosixPath('/a')")
    things.execute("import os; os.fork = None; broken = ValueError('no', 3); s = {1}; e = set(); b = bytearray(b'x'); inf = float('inf')")
    for name in ("n", "when", "here", "broken", "s", "e", "b", "inf"):
        assert things.look("inspect", path=name)["preview"] == things.result(name)


def test_a_class_shows_its_members(things):
    found = things.look("inspect", path="Point", max_items=50)
    assert found["kind"] == "class" and found["bases"] == ["object"]
    assert found["signature"] == "(x, y=2, *, z: int = 3)" or found["signature"] == "(x, y=2, *, z=3)"
    assert {"size", "fixed", "made", "__init__"} <= set(names(found["attributes"]))
    assert "__dict__" not in names(found["attributes"])


def test_a_function_shows_signature_doc_and_place(things, version):
    found = things.look("inspect", path="f")
    assert found["kind"] == "function"
    annotated = "(a, /, b=[1], *args, c, d: int = 4, **rest) -> str"
    assert found["signature"] == (annotated if version < (3, 14) else "(a, /, b=[1], *args, c, d=4, **rest)")
    assert (found["doc"], found["file"]) == ("Does nothing.", "<cell 1>")
    assert "At length." in things.look("inspect", path="f", full=True)["doc"]
    assert things.look("inspect", path="len")["signature"] == "(obj, /)"
    assert things.look("inspect", path="point.made")["signature"] == "(b)"


def test_a_module_shows_its_public_names(things):
    things.execute("import textwrap")
    found = things.look("inspect", path="textwrap")
    assert found["kind"] == "module" and "dedent" in names(found["attributes"]) and found["file"].endswith("textwrap.py")


def test_the_variables(things):
    things.execute("import math; _hidden = 1; value = 5; sized = b'abc'")
    found = things.look("inspect")
    listed = {node["name"]: node for node in found["variables"]}
    assert listed["value"] == {"name": "value", "type": "int", "kind": "value", "preview": "5"}
    assert listed["sized"]["bytes"] == 3
    assert listed["math"]["preview"] == "<module 'math'>"
    assert not any(name.startswith("__") for name in listed)
    assert found["total"] == len(listed) and "more" not in found
    assert names(found["variables"])[-1] in ("enum", "functools", "math")
    few = things.look("inspect", max_items=3)
    assert len(few["variables"]) == 3 and few["total"] == found["total"] and few["more"]


def test_a_full_value_comes_in_pages(things):
    pages, offset = [], 0
    while offset is not None:
        page = things.look("inspect", path="text", full=True, offset=offset, max_chars=2500)
        assert page["total_chars"] == 6000 and page["offset"] == offset
        pages.append(page["value"])
        offset = page.get("next_offset")
    assert "".join(pages) == "äé" * 3000 and len(pages) == 3
    whole = things.look("inspect", path="many", full=True, max_chars=100_000)
    assert whole["value"] == str(list(range(1000))) and "next_offset" not in whole
    things.execute("class Long:\n    def __repr__(self): return 'ab' * 10_000\nlong = [Long()]")
    page = things.look("inspect", path="long", full=True, offset=20_000, max_chars=100)
    assert (page["value"], page["total_chars"]) == ("b]", 20_002)


def test_a_page_past_the_end_is_refused(things):
    for offset in (6000, 10_000_000):
        refused = things.look("inspect", path="text", full=True, offset=offset)
        assert refused["kind"] == "bad_request"
        assert refused["refused"] == f"offset {offset} is past the end: the text has 6000 characters"
    assert things.look("inspect", path="text", full=True, offset=5999)["value"] == "é"
    things.execute("empty = ''; long = 'x' * 5_000_000; row = [long]")
    assert things.look("inspect", path="empty", full=True)["value"] == ""
    refused = things.look("inspect", path="long", full=True, offset=4_500_000)
    assert refused["refused"].endswith("only the first 4194304 characters of the text are shown")
    page = things.look("inspect", path="long", full=True)
    assert (page["total_chars"], page["value_cut"]) == (5_000_000, True)
    page = things.look("inspect", path="row", full=True)
    assert page["value_cut"] and "total_chars" not in page


REPRS = {
    "hangs": ("while True: pass", "did not end in time"),
    "waits": ("import threading; threading.Event().wait()", "did not end in time"),
    "raises": ("raise ValueError('no')", "ValueError: no"),
    "exits": ("import sys; sys.exit(1)", "SystemExit"),
    "ends": ("import os; os._exit(3)", "exit status 3"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "kills": ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
    "recurses": ("return repr(self)", "RecursionError"),
    "lies": ("return 5", "TypeError"),
    "hoards": ("return len([0] * (1 << 40))", "MemoryError"),
}
EFFECTS = {
    "prints": "print('seen'); import os; os.write(1, b'seen'); os.write(2, b'seen')",
    "forks": "import os; os.fork()",
    "changes": "state.append(1)",
    "writes": "try_to_write()",
    "reads": "reader.read()",
    "sends": "try_to_send()",
    "closes": "one.close()",
    "locks": "lock.acquire()",
}


@pytest.mark.parametrize("name", REPRS)
def test_a_repr_that_fails_costs_nothing(session, name):
    body, said = REPRS[name]
    session.execute(f"class Bad:\n    def __repr__(self):\n        {body}\nbad = Bad(); x = 41")
    found = session.look("inspect", path="bad")
    assert found["preview"] == "<Bad object>"
    assert said in found["preview_error"]
    found = session.look("inspect", path="bad", full=True)
    assert found["value"] == "<Bad object>"
    assert said in found["preview_error"]
    assert session.result("x + 1") == "42"
    assert session.output == []


@pytest.mark.parametrize("name", EFFECTS)
def test_what_a_repr_does_is_undone(session, tmp_path, name):
    session.execute(
        textwrap.dedent(f"""
        import os, signal, socket, threading
        state, lock, children = [], threading.Lock(), []
        signal.signal(signal.SIGCHLD, lambda *_: children.append(1))
        handle = open({str(tmp_path / "file")!r}, "w+")
        handle.write("before"); handle.flush()
        reader = open({str(tmp_path / "file")!r})
        one, other = socket.socketpair()
        other.setblocking(False)
        def try_to_send():
            try: one.send(b"seen")
            except OSError: pass
        def try_to_write():
            try: handle.write("seen"); handle.flush()
            except OSError: pass
        class Busy:
            def __repr__(self):
                {EFFECTS[name]}
                return "done"
        busy = Busy()
        """)
    )
    assert session.look("inspect", path="busy")["preview"] == "done"
    assert session.look("inspect", path="busy")["preview"] == "done"
    assert session.output == []
    assert session.result("state, lock.locked(), children") == "([], False, [])"
    assert session.result("reader.read()") == "'before'"
    assert (tmp_path / "file").read_text() == "before"
    assert "BlockingIOError" in session.execute("other.recv(10)")["error"]["type"]
    assert "ChildProcessError" in session.execute("os.wait()")["error"]["type"]


def test_one_bad_repr_does_not_cost_the_others(session):
    session.execute("import os\nclass Good:\n    def __repr__(self): return 'good'\n")
    session.execute("class Bad:\n    def __repr__(self): os._exit(1)\nmixed = [Good(), Bad(), Good()]")
    found = session.look("inspect", path="mixed")
    assert [item["preview"] for item in found["items"]] == ["good", "<Bad object>", "good"]
    assert [("preview_error" in item) for item in found["items"]] == [False, True, False]
    assert "exit status 1" in found["preview_error"] and found["preview"] == "[<Good object>, <Bad object>, <Good object>]"


def test_a_repr_is_asked_while_threads_run(session):
    session.execute("import threading; e = threading.Event(); t = threading.Thread(target=e.wait); t.start()")
    session.execute("class Good:\n    def __repr__(self): return 'good'\ngood = Good()")
    assert session.look("inspect", path="good")["preview"] == "good"
    assert session.look("ping") == {"threads": 2}
    assert session.execute("e.set(); t.join()")["outcome"] == "ok"
    assert session.look("ping") == {"threads": 1}


def test_a_checkpoint_can_be_made_after_a_throw_away(session):
    session.execute("class Good:\n    def __repr__(self): return 'good'\ngood = Good(); x = 1")
    assert session.look("inspect", path="good")["preview"] == "good"
    frozen = session.checkpoint()
    session.execute("x = 2")
    assert session.look("inspect", path="good")["preview"] == "good"
    session.rollback(frozen)
    assert session.result("x") == "1"
    assert session.look("inspect", path="good")["preview"] == "good"


def test_a_look_that_takes_too_long_can_be_interrupted(session):
    session.execute("import os, sys, time\nclass Slow:\n    def __repr__(self): time.sleep(100)\nslow = Slow()")
    # So that the interrupt is in time on a busy machine too.
    patient = "next(m for n, m in sys.modules.items() if n.endswith('.throwaway')).run.__defaults__ = (60.0,)"
    assert session.execute(patient)["outcome"] == "ok"
    session.request("inspect", path="slow")
    wait_for(lambda: Path(f"/proc/{session.pid}/task/{session.pid}/children").read_text(), "the copy")
    session.signal(signal.SIGINT)
    assert session.reply()["kind"] == "interrupted"
    assert session.result("1 + 1") == "2"
    assert "ChildProcessError" in session.execute("os.wait()")["error"]["type"]


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        ({"path": "nothing"}, "no_such_name"),
        ({"path": "f()"}, "bad_path"),
        ({"path": "point.size"}, "needs_code"),
        ({"path": "point.sise"}, "no_such_attribute"),
        ({"path": "tree['leafs']"}, "no_such_item"),
        ({"path": 5}, "bad_request"),
        ({"path": "many", "depth": "x"}, "bad_request"),
    ],
)
def test_refusals_have_a_kind(things, request_, kind):
    refused = things.look("inspect", **request_)
    assert refused["kind"] == kind and refused["refused"]
    assert things.result("ran") == "[]"


def test_close_names_are_hinted(things):
    assert things.look("inspect", path="pont")["hint"] == "did you mean 'point' or 'Point'?"
    assert "'leaves'" in things.look("inspect", path="tree['leavs']")["hint"]


# Source.

DEFINITIONS = {
    "g": "def g(x):\n    return x + 1\n",
    "wrapped": "@decorate\ndef wrapped():\n    return 2\n",
    "Shape": "class Shape:\n    kind = 1\n\n    def area(self):\n        return 0\n",
    "Empty": "@tag\nclass Empty:\n    pass\n",
    "square": "square = lambda x: x * x\n",
}


@pytest.fixture
def defined(session):
    session.execute("import functools\ndef tag(cls): return cls\n")
    session.execute("def decorate(f):\n    @functools.wraps(f)\n    def inner(): return f()\n    return inner\n")
    session.execute("class Shape:\n    def old(self): pass\n")
    for source in DEFINITIONS.values():
        assert session.execute("# a comment\n" + source + "\nend = 1\n")["outcome"] == "ok"
    return session


@pytest.mark.parametrize("name", DEFINITIONS)
def test_source_of_what_cells_defined(defined, name):
    found = defined.look("source", path=name)
    assert found["source"] == DEFINITIONS[name]
    assert found["file"].startswith("<cell ") and found["line"] == 2


def test_source_of_members(defined):
    defined.execute(
        "class Parts:\n    @property\n    def size(self):\n        return 1\n    @classmethod\n    def make(cls): return cls()\n"
        "    class Inner:\n        def deep(self): pass\n"
    )
    assert defined.look("source", path="Parts.size")["source"] == "    @property\n    def size(self):\n        return 1\n"
    assert defined.look("source", path="Parts.make")["source"] == "    @classmethod\n    def make(cls): return cls()\n"
    assert defined.look("source", path="Parts.Inner")["source"] == "    class Inner:\n        def deep(self): pass\n"
    defined.execute("part = Parts()")
    assert "def size" in defined.look("source", path="part.size")["source"]


def test_source_is_of_the_definition_that_is_alive(defined):
    defined.execute("kept = Shape\nclass Shape:\n    def newer(self): pass\n")
    assert "area" in defined.look("source", path="kept")["source"]
    assert "newer" in defined.look("source", path="Shape")["source"]


def test_source_of_files(defined, tmp_path):
    text = "# début\nclass Other:\n    x = 1\n\n\nclass Wanted(Other):\n    '''Two\n    lines.'''\n\n\ndef last(): pass\n"
    (tmp_path / "somefile.py").write_text(text, encoding="utf-8")
    defined.execute(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import somefile")
    found = defined.look("source", path="somefile.Wanted")
    assert (found["line"], found["source"]) == (6, "class Wanted(Other):\n    '''Two\n    lines.'''\n")
    assert os.path.basename(found["file"]) == "somefile.py"
    assert defined.look("source", path="somefile")["source"] == text
    assert defined.look("source", path="somefile.last")["source"] == "def last(): pass\n"


@pytest.mark.parametrize("path", ["len", "dict", "'a'.join", "math", "math.sin", "end", "int.real"])
def test_what_has_no_source_is_refused(defined, path):
    defined.execute("import math")
    assert defined.look("source", path=path)["kind"] == "no_source"


def test_a_long_source_is_cut_and_says_so(defined, tmp_path):
    (tmp_path / "longfile.py").write_text("x = 1\n" * 100_000)
    defined.execute(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import longfile")
    found = defined.look("source", path="longfile")
    assert len(found["source"]) == 512 << 10 and found["truncated"] and found["total_chars"] == 600_000
