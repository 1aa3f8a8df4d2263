"""Saved variables: what comes back, what is reported, and that nothing comes back as something else."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from typing import Any, Iterator

import pytest
from conftest import PYTHONS
from host import FORCE_SIGNAL, Session, Template, send

from pylair.compare import Comparison
from pylair.pickling import Reducer

# Code that makes `x`, and an expression that is true of it in the session that it is restored in.
KINDS: dict[str, tuple[str, str]] = {
    "int": ("x = 10 ** 40", "x == 10 ** 40"),
    "float": ("x = [float('nan'), -0.0, 1.5]", "x[0] != x[0] and str(x[1:]) == '[-0.0, 1.5]'"),
    "text": ("x = 'a\\udc80é'", "x == 'a\\udc80é'"),
    "bytes": ("x = (b'a', bytearray(b'b'))", "x == (b'a', bytearray(b'b')) and type(x[1]) is bytearray"),
    "nested": ("x = {'a': [1, (2, {3})], None: frozenset({(1, 2)})}", "x == {'a': [1, (2, {3})], None: frozenset({(1, 2)})}"),
    "cycle": ("x = [1]; x.append(x)", "x[1] is x"),
    "collections": (
        "import collections; x = [collections.OrderedDict(a=1), collections.deque([1], 3), collections.Counter('aab'), "
        "collections.defaultdict(list, a=[1])]",
        "x[1].maxlen == 3 and x[2]['a'] == 2 and x[3]['new'] == []",
    ),
    "dates": (
        "import datetime; x = datetime.datetime(2024, 1, 2, tzinfo=datetime.timezone.utc)",
        "x.isoformat() == '2024-01-02T00:00:00+00:00'",
    ),
    "decimal": (
        "import decimal, fractions; x = [decimal.Decimal('1.10'), fractions.Fraction(1, 3)]",
        "str(x[0]) == '1.10' and x[1] * 3 == 1",
    ),
    "path": ("import pathlib, uuid; x = pathlib.Path('/a/b'), uuid.UUID(int=5)", "x[0].name == 'b' and x[1].int == 5"),
    "pattern": ("import re; x = re.compile('a+', re.I)", "x.match('AA').group() == 'AA'"),
    "module": ("import json as x", "x.loads('[1]') == [1]"),
    "library function": ("from json import loads as x", "x('[1]') == [1]"),
    "builtin method": (
        "import math; x = [math.sqrt, 'a-b'.split, str.upper]",
        "x[0](4) == 2 and x[1]('-') == ['a', 'b'] and x[2]('a') == 'A'",
    ),
    "function": ("k = 2\ndef x(a, b=3, *, c: int = 4) -> int:\n    'doc'\n    return a + b + c + k", "x(1) == 10 and x.__doc__ == 'doc'"),
    "function sees the session": ("k = 1\ndef x(): return k", "exec('k = 5') or x() == 5"),
    "recursive function": ("def x(n): return 1 if n < 2 else n * x(n - 1)", "x(5) == 120"),
    "lambda": ("x = lambda a: a + 1", "x(1) == 2"),
    "closure": (
        "def make():\n    n = 0\n    def up():\n        nonlocal n\n        n += 1\n        return n\n"
        "    return up, lambda: n\nx = make(); x[0]()",
        "x[0]() == 2 and x[1]() == 2",
    ),
    "recursive closure": ("def make():\n    def f(n): return 1 if n < 2 else n * f(n - 1)\n    return f\nx = make()", "x(5) == 120"),
    "attributes of a function": ("def x(): pass\nx.calls = [1]", "x.calls == [1]"),
    "wrapped function": (
        "import functools\ndef deco(f):\n    @functools.wraps(f)\n    def inner(*a): return f(*a) + 1\n"
        "    return inner\n@deco\ndef x(a): return a",
        "x(1) == 2 and x.__wrapped__(1) == 1 and x.__name__ == 'x'",
    ),
    "partial": ("import functools; x = functools.partial(lambda a, b: a - b, 5)", "x(2) == 3"),
    "lru_cache": ("import functools\n@functools.lru_cache(maxsize=7)\ndef x(n): return n * 2", "x(2) == 4 and x.cache_info().maxsize == 7"),
    "context manager": (
        "import contextlib\n@contextlib.contextmanager\ndef x():\n    yield 5",
        "exec('with x() as got: pass') or got == 5",
    ),
    "class": ("class x:\n    n = 1\n    def f(self): return self.n", "x().f() == 1 and x.__module__ == '__main__'"),
    "patched class": ("class x:\n    def f(self): return 1\nx.f = lambda self: 2\nx.extra = [3]", "x().f() == 2 and x.extra == [3]"),
    "instance": ("class C:\n    def __init__(self): self.a = 1\nx = C(); x.me = x", "x.a == 1 and x.me is x and type(x) is C"),
    "instance of a class since redefined": (
        "class C:\n    def f(self): return 1\nx = C()\nclass C:\n    pass",
        "x.f() == 1 and type(x) is not C",
    ),
    "slots": (
        "class C:\n    __slots__ = ('a', '__b')\n    def __init__(self): self.a, self.__b = 1, 2\nx = C()",
        "(x.a, x._C__b) == (1, 2)",
    ),
    "inheritance": (
        "class A:\n    def __init__(self): self.v = 1\n    def f(self): return 'A'\n"
        "class B(A, dict):\n    def __init__(self): super().__init__()\n    def f(self): return 'B' + super().f()\nx = B(); x['k'] = 1",
        "x.f() == 'BA' and x.v == 1 and x == {'k': 1} and isinstance(x, A)",
    ),
    "descriptors": (
        "import functools\nclass C:\n    @property\n    def p(self): return 1\n    @staticmethod\n    def s(): return 2\n"
        "    @classmethod\n    def c(cls): return cls\n    @functools.cached_property\n    def q(self): return 4\nx = C()",
        "(x.p, C.s(), C.c() is C, x.q, x.__dict__) == (1, 2, True, 4, {'q': 4})",
    ),
    "metaclass": (
        "made = []\nclass M(type):\n    def __new__(m, name, bases, ns, **kw):\n        made.append(name)\n"
        "        return super().__new__(m, name, bases, ns)\n"
        "    def __init__(c, *a, **kw): pass\nclass C(metaclass=M, k=1): pass\nx = C()",
        "type(type(x)) is M and made == ['C']",
    ),
    "subclass hook": (
        "class B:\n    registry = []\n    def __init_subclass__(cls, tag): B.registry.append(cls)\nclass C(B, tag='t'): pass\nx = C()",
        "B.registry == [C] and type(x) is C",
    ),
    "abstract class": (
        "import abc\nclass A(abc.ABC):\n    @abc.abstractmethod\n    def f(self): ...\nclass C(A):\n"
        "    def f(self): return 1\nA.register(int)\nx = C()",
        "x.f() == 1 and isinstance(x, A) and isinstance(5, A) and A.__abstractmethods__ == {'f'}",
    ),
    "generic class": (
        "import typing\nT = typing.TypeVar('T')\nclass C(typing.Generic[T]):\n    def __init__(self, v): self.v = v\nx = C[int](5)",
        "x.v == 5 and C.__parameters__ == (T,)",
    ),
    "enum": (
        "import enum\nclass E(enum.Enum):\n    A = 1\n    B = 'b'\n    ALIAS = 1\n    def f(self): return self.name + '!'\nx = {E.A: E.B}",
        "x == {E.A: E.B} and E.ALIAS is E.A and E('b') is E.B and E.B.f() == 'B!'",
    ),
    "flag": (
        "import enum\nclass E(enum.IntFlag):\n    A = enum.auto()\n    B = enum.auto()\nx = E.A | E.B",
        "x == 3 and E.A in x and type(x) is E",
    ),
    "dataclass": (
        "import dataclasses, typing\n@dataclasses.dataclass(order=True)\nclass D:\n    a: int\n"
        "    b: typing.List[int] = dataclasses.field(default_factory=list)\nx = D(1)",
        "x == D(1) and x < D(2) and D(1).b is not D(1).b and dataclasses.replace(x, a=3).a == 3 and len(dataclasses.fields(D)) == 2",
    ),
    "frozen dataclass": (
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass D:\n    a: int = 5\nx = {D(): 1}",
        "x[D(5)] == 1",
    ),
    "namedtuple": (
        "import collections\nP = collections.namedtuple('P', 'a b', defaults=[9])\nx = P(1)",
        "x == (1, 9) and x.b == 9 and P(3)._replace(a=4) == (4, 9)",
    ),
    "NamedTuple": (
        "import typing\nclass P(typing.NamedTuple):\n    a: int\n    b: str = 'z'\n    def f(self): return self.a + 1\nx = P(1)",
        "x == (1, 'z') and x.f() == 2 and P._field_defaults == {'b': 'z'} and P.__annotations__['a'] is int",
    ),
    "bound method": (
        "class C:\n    def __init__(self): self.n = 3\n    def f(self): return self.n\nx = C().f",
        "x() == 3 and x.__self__.n == 3",
    ),
    "own exception": ("class E(Exception):\n    pass\nx = E('a', 1)", "x.args == ('a', 1) and type(x) is E"),
    "own state": (
        "class C:\n    def __getstate__(self): return 7\n    def __setstate__(self, s): self.s = s\nx = C(); x.s = 7",
        "x.s == 7",
    ),
    "iterator": ("x = iter([1, 2, 3]); next(x)", "list(x) == [2, 3]"),
    "random generator": ("import random; x = random.Random(5); y = random.Random(5).random()", "x.random() == y"),
    "string buffer": ("import io; x = io.StringIO('abc'); x.read(1)", "x.read() == 'bc'"),
    "the namespace": ("x = globals()", "x is globals()"),
    "code": ("x = compile('1 + 1', 'f', 'eval')", "eval(x) == 2"),
    "twins in a set": ("class C: pass\nx = {C(), C()}; inside = list(x)", "x == set(inside)"),
    "types": ("import types; x = [type(None), types.FunctionType, type(...)]", "x == [type(None), types.FunctionType, type(...)]"),
    "liar": ("class C:\n    def __eq__(self, other): raise ValueError\n    __hash__ = None\nx = [C()]", "type(x[0]) is C"),
}

# Code that makes `x`, which cannot be saved, and a part of the reason.
REPORTED = {
    "generator": ("x = (i for i in [1])", "it is a generator"),
    "coroutine": ("async def f(): pass\nx = f()", "it is a coroutine"),
    "lock": ("import threading; x = threading.Lock()", "it is a lock"),
    "object with a lock": ("import threading\nclass C: pass\nx = C(); x.lock = threading.RLock()", "it holds a lock"),
    "thread": ("import threading; x = threading.Thread()", "it is a thread"),
    "socket": ("import socket; x = socket.socket()", "it is a network connection"),
    "sqlite": ("import sqlite3; x = sqlite3.connect(':memory:')", "it is a database connection"),
    "file": ("x = open('/etc/hostname')", "it is an open file (/etc/hostname)"),
    "task": (
        "import asyncio\nasync def f(): await asyncio.sleep(1000)\nx = asyncio.ensure_future(f()); await asyncio.sleep(0)",
        "it is a task",
    ),
    "process": ("import subprocess; x = subprocess.Popen(['true']); x.wait()", "it is a child process"),
    "weak reference": ("import weakref\nclass C: pass\nc = C(); x = weakref.ref(c)", "it is a weak reference"),
    "traceback": ("try: 1 / 0\nexcept ZeroDivisionError as e: x = e.__traceback__", "it is a traceback"),
    "memoryview": ("x = memoryview(b'a')", "it is a memoryview"),
    "module made by hand": ("import types; x = types.ModuleType('nowhere')", "cannot be imported by its name"),
    "raises": ("class C:\n    def __reduce__(self): raise ValueError('no way')\nx = C()", "ValueError: no way"),
    "exits": ("class C:\n    def __reduce__(self): raise SystemExit(3)\nx = C()", "SystemExit: 3"),
    "something else": ("class C:\n    def __reduce__(self): return (int, ('5',))\nx = C()", "restored as something else: int instead of C"),
    "cannot be restored": (
        "class C:\n    def __setstate__(self, s): raise KeyError('k')\nx = C(); x.a = 1",
        "it cannot be restored: KeyError",
    ),
    "crashes when restored": (
        "import ctypes\nclass C:\n    def __setstate__(self, s): ctypes.string_at(0)\nx = C(); x.a = 1",
        "restoring it crashes Python (signal 11)",
    ),
    "exits when restored": (
        "import os\nclass C:\n    def __setstate__(self, s): os._exit(4)\nx = C(); x.a = 1",
        "restoring it ends Python",
    ),
    "exits when restored, as if all were well": (
        "import os\nclass C:\n    def __reduce__(self): return (os._exit, (0,))\nx = C()",
        "restoring it ends Python",
    ),
    "deep": ("x = []\nfor _ in range(100_000): x = [x]", "it is nested too deep"),
    "dict iterator": ("x = iter({1: 2})", "restored as something else: list_iterator instead of dict_keyiterator"),
}


class Snapshots:
    """A file, and sessions that save to it and restore from it."""

    def __init__(self, template: Template) -> None:
        self.template = template
        self.file = tempfile.NamedTemporaryFile()
        self.sessions: list[Session] = []

    def session(self) -> Session:
        session = Session(self.template)
        assert session.start()["ok"]
        self.sessions.append(session)
        return session

    def begin(self, session: Session, op: str, **fields: Any) -> None:
        session.output = []
        send(session.control, {"op": "file"}, (self.file.fileno(),))
        session.request(op, **fields)

    def ask(self, session: Session, op: str, **fields: Any) -> dict[str, Any]:
        self.begin(session, op, **fields)
        return self.answer(session)

    def answer(self, session: Session) -> dict[str, Any]:
        done = session.reply()
        assert "refused" not in done, done
        return json.loads(session.blob)

    def save(self, code: str, **fields: Any) -> dict[str, Any]:
        """Saves a session that has run this code."""
        session = self.session()
        done = session.execute(code)
        assert done["outcome"] == "ok", done
        return self.ask(session, "save", **fields)

    def restored(self) -> Session:
        session = self.session()
        self.answered = self.ask(session, "restore")
        return session

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        self.file.close()


@pytest.fixture
def snapshots(template: Template) -> Iterator[Snapshots]:
    snapshots = Snapshots(template)
    yield snapshots
    snapshots.close()


def names(rows: list[dict[str, Any]]) -> set[str]:
    return {row["name"] for row in rows}


def reason(answer: dict[str, Any], name: str) -> str:
    rows = answer.get("not_saved", answer.get("not_restored", []))
    found = [row["reason"] for row in rows if row["name"] == name]
    assert len(found) == 1, answer
    assert len(found[0]) <= 300
    return found[0]


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_that_come_back(snapshots, kind):
    code, check = KINDS[kind]
    answer = snapshots.save(code + "\nother = ['still here']")
    assert answer["not_saved"] == []
    assert all(row["verified"] and "note" not in row for row in answer["saved"]), answer
    session = snapshots.restored()
    assert snapshots.answered["not_restored"] == []
    assert set(snapshots.answered["restored"]) == names(answer["saved"])
    assert session.result(check) == "True"
    assert session.result("other") == "['still here']"


@pytest.mark.parametrize("kind", REPORTED)
def test_kinds_that_are_reported(snapshots, kind):
    code, expected = REPORTED[kind]
    answer = snapshots.save(code + "\nother = ['still here']")
    assert expected in reason(answer, "x")
    assert "other" in names(answer["saved"])
    assert all(row["verified"] for row in answer["saved"]), answer
    session = snapshots.restored()
    assert session.result("'x' in globals(), other") == "(False, ['still here'])"
    assert reason(snapshots.answered, "x").startswith("it was not saved: ")


def test_what_variables_share_is_shared_again(snapshots):
    snapshots.save("a = b = [1]\nc = {'a': a}\ndef f(d=a): return d\nclass K: pass\nk = K()")
    session = snapshots.restored()
    assert session.result("a is b and c['a'] is a and f() is a and type(k) is K") == "True"


def test_a_variable_that_fails_does_not_spoil_what_it_shares(snapshots):
    answer = snapshots.save(
        "import threading\nshared = [1]\na = [shared, [2], threading.Lock()]\nb = [shared, a[1]]\nshared2 = a[1]\ndel shared"
    )
    assert reason(answer, "a") == "it holds a lock, which belongs to the threads of this process"
    session = snapshots.restored()
    assert session.result("b, b[1] is shared2, 'a' in globals()") == "([[1], [2]], True, False)"


def test_all_names_are_saved_but_pythons_own(snapshots):
    code = "import warnings\n_private = 1; __version__ = '2'; __lock__ = open('/dev/null'); annotated: int = 3\nwarnings.warn('once')"
    answer = snapshots.save(code)
    assert names(answer["saved"]) == {"_private", "annotated", "warnings"}
    assert answer["not_saved"] == []
    session = snapshots.restored()
    assert set(snapshots.answered["restored"]) == {"_private", "annotated", "warnings"}
    assert snapshots.answered["not_restored"] == []
    assert session.result("__version__, '__lock__' in globals(), '__warningregistry__' in globals()") == "('2', False, False)"


def test_functions_that_stand_for_a_librarys_are_saved_by_name(snapshots):
    answer = snapshots.save("show = display; printing = print; asking = [input]\nhandle = display(1, display_id='a')")
    assert answer["not_saved"] == []
    session = snapshots.restored()
    assert session.result("show is display, printing is print, asking[0] is input, handle.display is display") == "(True, True, True, True)"


def test_names_that_exist_are_replaced_and_others_stay(snapshots):
    snapshots.save("x = 'saved'")
    session = snapshots.session()
    session.execute("x = 'old'; y = 'mine'")
    assert snapshots.ask(session, "restore") == {"restored": ["x"], "not_restored": []}
    done = session.execute("x, y")
    assert (done["result"], done["new"], done["changed"]) == ("('saved', 'mine')", [], [])


@pytest.mark.parametrize("damage", ["empty", "head", "record", "contents", "foot", "flipped", "longer", "other", "format"])
def test_a_damaged_file_is_refused_and_nothing_changes(snapshots, damage):
    snapshots.save("x = list(range(1000)); y = 2")
    path = snapshots.file.name
    data = open(path, "rb").read()
    damaged = {
        "empty": b"",
        "head": data[:10],
        "record": data[: len(data) // 2],
        "contents": data[:-60],
        "foot": data[:-1],
        "flipped": data[:300] + bytes([data[300] ^ 1]) + data[301:],
        "longer": data + b"x",
        "other": b"#!/bin/sh\n" * 100,
        "format": data[:17] + b"\x09" + data[18:],
    }[damage]
    with open(path, "wb") as file:
        file.write(damaged)
    session = snapshots.session()
    session.execute("x = 'mine'")
    snapshots.begin(session, "restore")
    refused = session.reply()["refused"]
    assert "file" in refused and "\n" not in refused
    assert session.result("x, 'y' in globals()") == "('mine', False)"


def test_the_biggest_variables_go_when_there_is_no_room(snapshots):
    answer = snapshots.save(
        "big = b'x' * 300_000; middle = b'y' * 50_000; alias = middle; small = [1]; huge = [b'z' * 200_000, big]", max_bytes=200_000
    )
    assert names(answer["saved"]) == {"middle", "alias", "small"}
    assert all("it does not fit" in reason(answer, name) for name in ("big", "huge"))
    assert answer["bytes"] == os.path.getsize(snapshots.file.name) <= 200_000
    session = snapshots.restored()
    assert session.result("len(middle), alias is middle, small") == "(50000, True, [1])"


def test_sources_are_left_out_where_there_is_no_room(snapshots):
    answer = snapshots.save("def f(): return 1\n" + "# a long comment\n" * 1000, max_bytes=10_000)
    assert names(answer["saved"]) == {"f"}
    assert os.path.getsize(snapshots.file.name) <= 10_000
    assert snapshots.restored().result("f()") == "1"


def test_no_room_at_all(snapshots):
    session = snapshots.session()
    session.execute("x = 1")
    snapshots.begin(session, "save", max_bytes=10)
    assert "leaves no room" in session.reply()["refused"]


@pytest.mark.parametrize(
    ("body", "signals"),
    [
        ("print('now'); time.sleep(1000)", [signal.SIGINT]),
        (
            "while True:\n            try: print('now'); time.sleep(1000)\n            except BaseException: print('again')",
            [signal.SIGINT, FORCE_SIGNAL],
        ),
    ],
)
def test_a_variable_that_takes_too_long_to_save(snapshots, body, signals):
    session = snapshots.session()
    code = f"import time\nclass C:\n    def __reduce__(self):\n        {body}\nbefore = 1\nx = [before, C()]\nafter = [2]"
    assert session.execute(code)["outcome"] == "ok"
    snapshots.begin(session, "save")
    for number, marker in zip(signals, (b"now", b"again")):
        session.wait_for_output(marker)
        session.signal(number)
    answer = snapshots.answer(session)
    assert reason(answer, "x") == "it took too long to save and was interrupted"
    assert {"before", "after", "C"} <= names(answer["saved"])
    assert all(row["verified"] for row in answer["saved"])
    session = snapshots.restored()
    assert session.result("before, after") == "(1, [2])"


def test_a_variable_that_would_hang_when_restored(snapshots):
    code = "import time\nclass C:\n    def __setstate__(self, s): time.sleep(1000)\nx = C(); x.a = 1\nother = [1]"
    answer = snapshots.save(code, verify_s=4)
    assert reason(answer, "x") == "restoring it takes too long"
    assert {row["name"]: row["verified"] for row in answer["saved"]} == {"time": True, "C": True, "other": True}


def test_what_could_not_be_verified_is_said(snapshots):
    answer = snapshots.save("x = [1]", verify_s=0)
    assert answer["saved"] == [
        {
            "name": "x",
            "type": "list",
            "bytes": answer["saved"][0]["bytes"],
            "verified": False,
            "note": "not verified: it was not done within 0 s",
        }
    ]
    assert snapshots.restored().result("x") == "[1]"


def test_a_session_that_ignores_the_ends_of_its_children(snapshots):
    ignoring = "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    answer = snapshots.save(ignoring + "x = [1]")
    assert {row["name"]: row["verified"] for row in answer["saved"]} == {"signal": True, "x": True}
    answer = snapshots.save(ignoring + "import os\nclass C:\n    def __setstate__(self, s): os._exit(0)\nx = C(); x.a = 1")
    assert reason(answer, "x") == "restoring it ends Python"


# Restores well where it was saved, and does this where there is a file of this name.
LATER = """
import os, time
class C:
    def __setstate__(self, s):
        self.__dict__.update(s)
        if os.path.exists({path!r}): {action}
"""


def test_restoring_can_be_interrupted(snapshots, tmp_path):
    flag = tmp_path / "flag"
    code = LATER.format(path=str(flag), action="print('now', flush=True); time.sleep(1000)")
    snapshots.save(code + "first = [1]\nx = C(); x.a = 1\nlast = [2]")
    flag.touch()
    session = snapshots.session()
    snapshots.begin(session, "restore")
    session.wait_for_output(b"now")
    session.signal(signal.SIGINT)
    answer = snapshots.answer(session)
    assert answer["restored"] == ["os", "time", "C", "first"]
    assert reason(answer, "x") == "restoring it took too long and was interrupted"
    assert reason(answer, "last") == "restoring was interrupted before its turn"
    assert session.result("first") == "[1]"


def test_one_that_cannot_be_restored_any_more_costs_only_what_shares_with_it(snapshots, tmp_path):
    flag = tmp_path / "flag"
    code = LATER.format(path=str(flag), action="raise RuntimeError('gone')")
    code += "first = [1]\nshared = [2]\nx = [first, C(), shared]; x[1].a = 1; x[1].own = own = [3]\n"
    snapshots.save(code + "last = [shared, {'a': 1}]\nwith_x = [own, x]")
    flag.touch()
    session = snapshots.restored()
    answer = snapshots.answered
    assert reason(answer, "x") == "RuntimeError: gone"
    assert "shares an object with x" in reason(answer, "with_x")
    assert session.result("first, last, last[0] is shared") == "([1], [[2], {'a': 1}], True)"


def test_a_module_that_is_gone_costs_only_what_needs_it(snapshots, tmp_path):
    (tmp_path / "gone_later.py").write_text("class K:\n    pass\ndef f(): return 1\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport gone_later\nkeep = [1]\n"
        f"k = gone_later.K(); k.keep = keep\nhidden = [2]\n"
        "x = [k, hidden]\nf = gone_later.f\ndef uses(): return gone_later\ny = [hidden, keep]\n"
        "class Sub(gone_later.K): pass\nz = Sub()\ndel hidden"
    )
    answer = snapshots.save(code)
    assert answer["not_saved"] == []
    (tmp_path / "gone_later.py").unlink()
    session = snapshots.restored()
    answer = snapshots.answered
    assert names(answer["not_restored"]) == {"gone_later", "k", "x", "f", "Sub", "z"}
    assert all(row["reason"] == "the module gone_later is not there" for row in answer["not_restored"])
    assert session.result("y, y[1] is keep, callable(uses)") == "([[2], [1]], True, True)"


def test_a_class_that_a_module_does_not_have_any_more(snapshots, tmp_path):
    module = tmp_path / "changed_later.py"
    module.write_text("class K: pass\nclass Other: pass\n")
    prepare = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
    snapshots.save(f"{prepare}\nimport changed_later\nk = changed_later.K(); o = changed_later.Other()\ndel changed_later")
    module.write_text("class Other: pass\nclass More: pass\n")
    session = snapshots.session()
    session.execute(f"{prepare}\nsys.dont_write_bytecode = True")
    answer = snapshots.ask(session, "restore")
    assert reason(answer, "k") == "changed_later has no K any more"
    assert session.result("type(o).__name__") == "'Other'"


def test_what_the_program_prints_is_output(snapshots):
    session = snapshots.session()
    session.execute(
        "class C:\n    def __getstate__(self): print('saving'); return 1\n    def __setstate__(self, s): print('restoring')\n"
        "    def __reduce_ex__(self, p): return (C, (), 1)\nx = C()"
    )
    snapshots.ask(session, "save")
    assert session.text() == ""
    session.execute("def reduce(self, p): print('saving'); return (C, (), 1)\nC.__reduce_ex__ = reduce")
    snapshots.ask(session, "save")
    # Not what is printed where it is verified.
    assert session.text() == "saving\n"
    session = snapshots.session()
    snapshots.ask(session, "restore")
    assert session.text() == "restoring\n"


def test_what_a_class_leaves_out_of_its_state_is_noted(snapshots):
    code = (
        "import threading\nclass C:\n    def __init__(self): self.lock = threading.Lock(); self.a = 1; self.cache = {}\n"
        "    def __getstate__(self): return {'a': self.a}\n"
        "    def __setstate__(self, s): self.__dict__.update(s); self.lock = threading.Lock()\nx = C()"
    )
    answer = snapshots.save(code)
    (row,) = (row for row in answer["saved"] if row["name"] == "x")
    assert row["verified"]
    assert row["note"] == "its class saves less than it holds; different after restoring: cache"


def test_what_an_exception_loses_is_noted(snapshots):
    answer = snapshots.save("try: 1 / 0\nexcept ZeroDivisionError as error: x = error")
    assert [(row["verified"], row["note"]) for row in answer["saved"]] == [
        (True, "an exception is saved without its traceback and the exceptions behind it")
    ]


def test_tracebacks_show_restored_sources_and_cells_keep_their_own(snapshots):
    session = snapshots.session()
    session.execute("1")
    session.execute("def f():\n    raise ValueError('in the restored cell')")
    snapshots.ask(session, "save")
    session = snapshots.restored()
    session.execute("a = 1")
    session.execute("def g():\n    pass  # another cell 2\n    f()")
    error = session.execute("g()")["error"]
    assert 'File "<cell 2, restored>", line 2, in f\n    raise ValueError' in error["traceback"]
    assert 'File "<cell 2>", line 3, in g\n    f()' in error["traceback"]


def test_a_restored_session_can_be_saved_again(snapshots):
    code = (
        "import dataclasses, enum\nk = 1\ndef f(): return k\n@dataclasses.dataclass\nclass D:\n    a: int\n"
        "class E(enum.Enum):\n    A = 1\nx = [D(1), E.A, f, f]"
    )
    session = snapshots.session()
    session.execute(code)
    for _ in range(3):
        answer = snapshots.ask(session, "save")
        assert answer["not_saved"] == []
        assert all(row["verified"] for row in answer["saved"])
        session = snapshots.restored()
    session.execute("k = 7")
    assert session.result("x[0], x[1] is E.A, x[2]()") == "(D(a=1), True, 7)"
    assert "restored" in session.result("f.__code__.co_filename")


def test_saving_leaves_no_trace(snapshots):
    session = snapshots.session()
    session.execute(
        "import os, random\nrandom.seed(1)\nclass C: pass\nx = C(); fds = sorted(os.listdir('/proc/self/fd'))\nd = dict(C.__dict__)"
    )
    snapshots.ask(session, "save")
    assert session.result("sorted(os.listdir('/proc/self/fd')) == fds") == "True"
    assert session.execute("os.wait()")["error"]["type"] == "ChildProcessError"
    assert session.execute("1")["new"] == []


def test_the_throw_away_child_does_no_harm(snapshots, tmp_path):
    log = tmp_path / "log"
    session = snapshots.session()
    session.execute(
        f"import builtins, socket, sys\nbuiltins.ours, builtins.theirs = socket.socketpair()\n"
        f"builtins.log = open({str(log)!r}, 'w')\nlog.write('once ')\n"
        "class C:\n    def __setstate__(self, s):\n"
        "        self.a = s['a']; print('child'); sys.stderr.write('child')\n        try: ours.send(b'child')\n"
        "        except OSError: pass\nx = C(); x.a = 1"
    )
    answer = snapshots.ask(session, "save")
    assert "x" in names(answer["saved"])
    assert session.output == []
    session.execute("ours.send(b'parent'); log.close()")
    assert session.result("theirs.recv(100)") == "b'parent'"
    assert log.read_text() == "once "


def test_long_lists_are_cut(snapshots):
    answer = snapshots.save(
        "import threading\nfor i in range(1100): globals()[f'v{i}'] = [i]; globals()[f'g{i}'] = threading.Lock()\ndel i"
    )
    assert (len(answer["saved"]), len(answer["not_saved"]), answer["more"]) == (1000, 1000, 201)
    session = snapshots.restored()
    assert len(snapshots.answered["restored"]) == 1000
    assert session.result("v1099") == "[1099]"


def test_without_a_file_nothing_is_done(snapshots):
    session = snapshots.session()
    for op in ("save", "restore"):
        assert session.ask(op)["refused"] == f"no file was passed for {op}"
        reading, writing = os.pipe()
        send(session.control, {"op": "file"}, (writing,))
        os.close(writing)
        assert session.ask(op)["refused"] == f"{op} needs a regular file"
        assert os.read(reading, 1) == b""
        os.close(reading)
    assert session.result("1") == "1"


def test_a_file_that_cannot_be_written(snapshots):
    session = snapshots.session()
    session.execute("x = 1")
    with open(snapshots.file.name) as file:
        send(session.control, {"op": "file"}, (file.fileno(),))
        assert session.ask("save")["refused"].startswith("the file cannot be written: ")


def test_a_file_that_is_open_for_writing_only(snapshots):
    session = snapshots.session()
    session.execute("x = 1")
    with open(snapshots.file.name, "wb") as file:
        send(session.control, {"op": "file"}, (file.fileno(),))
        session.ask("save", verify_s=20.0, max_bytes=2_000_000_000)
    assert [row["verified"] for row in json.loads(session.blob)["saved"]] == [True]


def test_another_version_of_python(snapshots):
    """Functions are compiled again from the source of their cells."""
    another = os.environ.get("PYLAIR_TEST_OTHER_PYTHON")
    others = [python for python in [*PYTHONS, another] if python and python != snapshots.template.python]
    if not others:
        pytest.skip("needs two versions of Python")
    code = (
        "import functools\nk = 2\ndef f(a, b=3, *, c=4):\n    def inner(): return a + b + c + k\n    return inner\nclosure = f(1)\n"
        "class C:\n    '''doc'''\n    n = [1]\n    def m(self): return self.n\n    @property\n"
        "    def p(self): return super().__hash__() and 5\n"
        "x = C(); x.a = {'b': [1]}\ndata = [x.a, 1.5]\npair = (lambda: 1), (lambda: 2)\n@functools.lru_cache(None)\n"
        "def g(n): return n * 2\nmade = eval('lambda: 1')\n"
        "import dataclasses\n@dataclasses.dataclass\nclass D:\n    a: int\n    b: list = dataclasses.field(default_factory=list)\n"
        "    seen = []\n    def double(self): return self.a * 2 + (super().__init__ is None)\nd = D(4); D.seen.append(1)\n"
        "import enum, typing\nclass E(enum.Enum):\n    A = 1\nclass P(typing.NamedTuple):\n    a: int\ne = [E.A, P(1)]"
    )
    answer = snapshots.save(code)
    assert answer["not_saved"] == []
    snapshots.template = other = Template(others[0])
    try:
        session = snapshots.restored()
        answer = snapshots.answered
        assert names(answer["not_restored"]) == {"pair", "made"}
        assert "it is not clear which part of the source" in reason(answer, "pair")
        assert "its source was not kept" in reason(answer, "made")
        session.execute("k = 10")
        check = "(f(1)(), closure(), x.m() is C.n, x.p, data[0] is x.a, g(4), C.__doc__)"
        assert session.result(check) == "(18, 18, True, 5, True, 8, 'doc')"
        check = "(d, d == D(4), d.double(), type(d) is D, D.seen, len(dataclasses.fields(D)), e[0] is E.A, e[1])"
        assert session.result(check) == "(D(a=4, b=[]), True, 8, True, [1], 2, True, P(a=1))"
    finally:
        session.close()
        snapshots.sessions.remove(session)
        other.close()


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1, 2], [1, 2], None),
        ([1], [True], "other items"),
        ([1.0], [1], "int instead of float"),
        ([0.0], [-0.0], "other items"),
        ([float("nan")], [float("nan")], None),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "another value"),
        ({1, "a", (2.5, None)}, {(2.5, None), "a", 1}, None),
        ({1}, {True}, "other items"),
        ({(1, (2,))}, {(1, (3,))}, "other items"),
        ((1, [2]), (1, [3]), "other items (at [1])"),
        ("a", b"a", "bytes instead of str"),
        (2, 3, "another value"),
        (len, len, None),
        (len, repr, "another object of that name"),
    ],
)
def test_comparing(one, other, expected):
    reducer = Reducer({})
    found = Comparison(reducer, reducer, []).difference(one, other)
    assert found == expected or (expected is not None and found is not None and found.startswith(expected))


def test_comparing_tells_one_object_from_two():
    reducer = Reducer({})
    item: list[Any] = [1]
    expected = "a copy where there was one object in two places (at [0])"
    assert Comparison(reducer, reducer, []).difference([item, item], [[1], [1]]) == expected
    cycle: list[Any] = []
    cycle.append(cycle)
    other: list[Any] = [[]]
    other[0].append(other)
    assert Comparison(reducer, reducer, []).difference(cycle, other) is not None


RICH = os.environ.get("PYLAIR_TEST_RICH_PYTHON")


@pytest.fixture(scope="module")
def rich() -> Iterator[Template]:
    assert RICH is not None
    template = Template(os.path.realpath(RICH))
    yield template
    template.close()


class RichSnapshots(Snapshots):
    def session(self) -> Session:
        session = Session(self.template)
        prefix = os.path.dirname(os.path.dirname(os.path.abspath(RICH)))
        assert session.start(executable=RICH, prefix=prefix)["ok"]
        self.sessions.append(session)
        return session


ARRAYS = """
import numpy as np, pandas as pd
plain = np.random.rand(1000, 3); alias = plain; view = plain[::2]; fortran = np.asfortranarray(np.ones((3, 4)))
objects = np.array([1, None, 'a'], object); records = np.zeros(3, [('a', int), ('b', object)])
nothing = np.zeros((0, 3)); scalar = np.float32(1.5)
masked = np.ma.masked_array([1, 2], [0, 1]); dates = np.array(['2020', 'NaT'], 'M8[D]'); fixed = np.arange(3); fixed.flags.writeable = False
generator = np.random.default_rng(3); special = np.array([np.nan, -0.0]); apart = np.arange(24).reshape(4, 6)[::2, ::3].copy('K')
frame = pd.DataFrame({'a': [1, 2.5], 'b': ['x', None]}, index=pd.date_range('2020', periods=2)); series = frame['a'].copy(); same = frame
index = pd.MultiIndex.from_product([[1, 2], ['a']]); stamp = pd.Timestamp('2020', tz='UTC'); missing = [pd.NaT, pd.NA]
category = pd.Categorical(['a', 'b']); nullable = pd.array([1, None], dtype='Int64')
part = frame[frame.a > 1]; grouped = frame.groupby('a')
"""


@pytest.mark.skipif(RICH is None, reason="PYLAIR_TEST_RICH_PYTHON does not name a Python with numpy and pandas")
def test_arrays_and_frames(rich):
    snapshots = RichSnapshots(rich)
    try:
        answer = snapshots.save(ARRAYS)
        assert answer["not_saved"] == []
        assert all(row["verified"] for row in answer["saved"]), answer
        notes = {row["name"]: row.get("note") for row in answer["saved"]}
        assert notes["view"] == "it shares memory with plain; after restoring each has a copy of its own"
        session = snapshots.restored()
        assert snapshots.answered["not_restored"] == []
        check = "alias is plain, bool((view == plain[::2]).all()), same is frame, fixed.flags.writeable, missing[1] is pd.NA"
        assert session.result(check) == "(True, True, True, False, True)"
        assert session.result("frame.shape, grouped.ngroups") == "((2, 2), 2)"
    finally:
        snapshots.close()
