"""Saved variables: what comes back, what is reported, and that nothing comes back as something else."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from typing import Any, Iterator

import pytest
from host import Session, Template, send

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
    "dates": ("import datetime; x = datetime.datetime(2024, 1, 2, tzinfo=datetime.timezone.utc)", "x.isoformat() == '2024-01-02T00:00:00+00:00'"),
    "decimal": ("import decimal, fractions; x = [decimal.Decimal('1.10'), fractions.Fraction(1, 3)]", "str(x[0]) == '1.10' and x[1] * 3 == 1"),
    "path": ("import pathlib, uuid; x = pathlib.Path('/a/b'), uuid.UUID(int=5)", "x[0].name == 'b' and x[1].int == 5"),
    "pattern": ("import re; x = re.compile('a+', re.I)", "x.match('AA').group() == 'AA'"),
    "module": ("import json as x", "x.loads('[1]') == [1]"),
    "library function": ("from json import loads as x", "x('[1]') == [1]"),
    "builtin method": ("import math; x = [math.sqrt, 'a-b'.split, str.upper]", "x[0](4) == 2 and x[1]('-') == ['a', 'b'] and x[2]('a') == 'A'"),
    "function": ("k = 2\ndef x(a, b=3, *, c: int = 4) -> int:\n    'doc'\n    return a + b + c + k", "x(1) == 10 and x.__doc__ == 'doc'"),
    "function sees the session": ("k = 1\ndef x(): return k", "exec('k = 5') or x() == 5"),
    "recursive function": ("def x(n): return 1 if n < 2 else n * x(n - 1)", "x(5) == 120"),
    "lambda": ("x = lambda a: a + 1", "x(1) == 2"),
    "closure": (
        "def make():\n    n = 0\n    def up():\n        nonlocal n\n        n += 1\n        return n\n    return up, lambda: n\nx = make(); x[0]()",
        "x[0]() == 2 and x[1]() == 2",
    ),
    "recursive closure": ("def make():\n    def f(n): return 1 if n < 2 else n * f(n - 1)\n    return f\nx = make()", "x(5) == 120"),
    "attributes of a function": ("def x(): pass\nx.calls = [1]", "x.calls == [1]"),
    "wrapped function": (
        "import functools\ndef deco(f):\n    @functools.wraps(f)\n    def inner(*a): return f(*a) + 1\n    return inner\n@deco\ndef x(a): return a",
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
    "instance of a class since redefined": ("class C:\n    def f(self): return 1\nx = C()\nclass C:\n    pass", "x.f() == 1 and type(x) is not C"),
    "slots": ("class C:\n    __slots__ = ('a', '__b')\n    def __init__(self): self.a, self.__b = 1, 2\nx = C()", "(x.a, x._C__b) == (1, 2)"),
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
        "made = []\nclass M(type):\n    def __new__(m, name, bases, ns, **kw):\n        made.append(name)\n        return super().__new__(m, name, bases, ns)\n"
        "    def __init__(c, *a, **kw): pass\nclass C(metaclass=M, k=1): pass\nx = C()",
        "type(type(x)) is M and made == ['C']",
    ),
    "subclass hook": (
        "class B:\n    registry = []\n    def __init_subclass__(cls, tag): B.registry.append(cls)\nclass C(B, tag='t'): pass\nx = C()",
        "B.registry == [C] and type(x) is C",
    ),
    "abstract class": (
        "import abc\nclass A(abc.ABC):\n    @abc.abstractmethod\n    def f(self): ...\nclass C(A):\n    def f(self): return 1\nA.register(int)\nx = C()",
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
    "flag": ("import enum\nclass E(enum.IntFlag):\n    A = enum.auto()\n    B = enum.auto()\nx = E.A | E.B", "x == 3 and E.A in x and type(x) is E"),
    "dataclass": (
        "import dataclasses, typing\n@dataclasses.dataclass(order=True)\nclass D:\n    a: int\n    b: typing.List[int] = dataclasses.field(default_factory=list)\nx = D(1)",
        "x == D(1) and x < D(2) and D(1).b is not D(1).b and dataclasses.replace(x, a=3).a == 3 and len(dataclasses.fields(D)) == 2",
    ),
    "frozen dataclass": (
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass D:\n    a: int = 5\nx = {D(): 1}",
        "x[D(5)] == 1",
    ),
    "namedtuple": ("import collections\nP = collections.namedtuple('P', 'a b', defaults=[9])\nx = P(1)", "x == (1, 9) and x.b == 9 and P(3)._replace(a=4) == (4, 9)"),
    "NamedTuple": (
        "import typing\nclass P(typing.NamedTuple):\n    a: int\n    b: str = 'z'\n    def f(self): return self.a + 1\nx = P(1)",
        "x == (1, 'z') and x.f() == 2 and P._field_defaults == {'b': 'z'} and P.__annotations__['a'] is int",
    ),
    "bound method": ("class C:\n    def __init__(self): self.n = 3\n    def f(self): return self.n\nx = C().f", "x() == 3 and x.__self__.n == 3"),
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
    "task": ("import asyncio\nasync def f(): await asyncio.sleep(1000)\nx = asyncio.ensure_future(f()); await asyncio.sleep(0)", "it is a task"),
    "process": ("import subprocess; x = subprocess.Popen(['true']); x.wait()", "it is a child process"),
    "weak reference": ("import weakref\nclass C: pass\nc = C(); x = weakref.ref(c)", "it is a weak reference"),
    "traceback": ("try: 1 / 0\nexcept ZeroDivisionError as e: x = e.__traceback__", "it is a traceback"),
    "memoryview": ("x = memoryview(b'a')", "it is a memoryview"),
    "module made by hand": ("import types; x = types.ModuleType('nowhere')", "cannot be imported by its name"),
    "raises": ("class C:\n    def __reduce__(self): raise ValueError('no way')\nx = C()", "ValueError: no way"),
    "exits": ("class C:\n    def __reduce__(self): raise SystemExit(3)\nx = C()", "SystemExit: 3"),
    "something else": ("class C:\n    def __reduce__(self): return (int, ('5',))\nx = C()", "restored as something else: int instead of C"),
    "cannot be restored": ("class C:\n    def __setstate__(self, s): raise KeyError('k')\nx = C(); x.a = 1", "it cannot be restored: KeyError"),
    "crashes when restored": (
        "import ctypes\nclass C:\n    def __setstate__(self, s): ctypes.string_at(0)\nx = C(); x.a = 1",
        "restoring it crashes Python (signal 11)",
    ),
    "exits when restored": ("import os\nclass C:\n    def __setstate__(self, s): os._exit(4)\nx = C(); x.a = 1", "restoring it ends Python"),
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
