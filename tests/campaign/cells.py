"""Cells that are hostile to what runs them."""

from __future__ import annotations

import time

from arena import Arena
from fault import Effect, kind
from words import expect

DYING = {
    "_exit": ("import os\nos._exit({code})", "exited with code"),
    "segfault": ("import ctypes\nctypes.string_at(0)", "SIGSEGV"),
    "abort": ("import os\nos.abort()", "SIGABRT"),
    "kill": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    "term": ("import os, signal\nsignal.signal(15, signal.SIG_DFL)\nos.kill(os.getpid(), 15)", "SIGTERM"),
    "float": ("import os, signal\nos.kill(os.getpid(), signal.SIGFPE)", "SIGFPE"),
    "thread": (
        "import os, threading\nthreading.Thread(target=os._exit, args=[{code}]).start()\nthreading.Event().wait()",
        "exited with code",
    ),
    "exec": ("import os\nos.execv('/bin/true', ['true'])", "exited with code 0"),
}


@kind("cell dies")
def cell_dies(arena: Arena) -> Effect:
    """An operation that ends its own process somewhere in its middle."""
    book = arena.choose()
    if arena.chance.random() < 0.5:
        arena.change(book)
    if arena.chance.random() < 0.5:
        arena.checkpointed(book)
    code, how = DYING[arena.chance.choice(sorted(DYING))]
    operation = arena.cut(book, code.format(code=arena.chance.randrange(1, 100)))
    book.reach(operation)
    at = time.monotonic()
    report = arena.execute(book, operation.code, ("died",))
    # A confined worker whose template was killed has nobody who is told how it ended.
    told = (how, "nobody saw how") if arena.templates_killed and book.sandbox != "open" else (how,)
    message = report["error"]["message"]
    expect(any(words in message for words in told), "a death is told as", message, "instead of", how)
    return Effect(True, at, (book,))


# What the probe and the interpreter itself are made of, taken away. Operations need none of it.
BREAKING = [
    "import json\njson.dumps = json.loads = None",
    "import os\nos.read = os.write = os.close = os.dup = None",
    "import os\nos.fork = os.waitpid = os.getpid = os._exit = None",
    "import os\nos.environ = os.path = os.sep = None",
    "import time\ntime.time = time.monotonic = time.perf_counter = time.process_time = None",
    "import traceback\nfor _k in list(vars(traceback)):\n    if _k[0] != '_': setattr(traceback, _k, None)",
    "import linecache\nlinecache.getline = linecache.checkcache = linecache.getlines = linecache.cache = None",
    "import signal\nsignal.signal = signal.getsignal = signal.set_wakeup_fd = None",
    "import signal\nfor _k in (2, 10, 12, 15):\n    try: signal.signal(_k, signal.SIG_IGN)\n    except (OSError, ValueError): pass",
    "import socket\nsocket.socket = socket.fromfd = None",
    "import select\nselect.poll = select.select = select.epoll = None",
    "import io, sys\nsys.stdout = sys.stderr = None",
    "import sys\nsys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = object()",
    "import sys\nsys.excepthook = sys.displayhook = sys.unraisablehook = None",
    "import sys\nfor _k in ('json', 'os', 'traceback', 'io', 'time', 'signal', 'socket'): sys.modules[_k] = None",
    "import sys\nsys.path = sys.meta_path = sys.path_hooks = None",
    "import sys\nsys.settrace(lambda *a: 1 / 0)",
    "import sys\nsys.setrecursionlimit(60)",
    "import gc\ngc.freeze = gc.collect = gc.disable = gc.enable = None",
    "import threading\nthreading.Thread = threading.Lock = threading.current_thread = None",
    "import ast\nast.parse = ast.walk = ast.Expression = ast.fix_missing_locations = None",
    "import struct\nstruct.pack = struct.unpack = struct.Struct = None",
    "import builtins\nbuiltins.repr = builtins.len = builtins.isinstance = builtins.type = None",
    "import builtins\nbuiltins.print = builtins.input = builtins.compile = builtins.exec = None",
    "import builtins\nbuiltins.str = builtins.bytes = builtins.dict = builtins.list = builtins.int = None",
    "import builtins\nbuiltins.getattr = builtins.setattr = builtins.hasattr = builtins.vars = None",
    "import builtins\nbuiltins.Exception = builtins.BaseException = builtins.OSError = None",
    "import builtins\nbuiltins.__import__ = None",
    "import asyncio\nasyncio.new_event_loop = asyncio.run = asyncio.get_event_loop = None",
    "import atexit, os\natexit.register(os._exit, 9)",
    "import os\nos.register_at_fork(before=lambda: 1 / 0, after_in_child=lambda: 1 / 0, after_in_parent=lambda: 1 / 0)",
    "import faulthandler\nfaulthandler.disable(); faulthandler.enable = faulthandler.dump_traceback = None",
    "del __builtins__",
    "__builtins__ = {}",
    "__name__ = __file__ = __loader__ = __spec__ = None",
]
# Values that fight whoever looks at them. The first is how the value is made, the second whether the cell raises.
FIGHTING = [
    ("class _E:\n    def __repr__(self): raise ValueError('no')\n_E()", None),
    ("class _E:\n    def __repr__(self): return 1\n_E()", None),
    ("class _E(str):\n    def __len__(self): raise ValueError('no')\n    def __str__(self): raise ValueError('no')\n_E('x')", None),
    ("class _E(dict):\n    def __len__(self): raise ValueError('no')\n    def items(self): raise ValueError('no')\n_E(x=1)", None),
    ("class _E(list):\n    def __iter__(self): raise ValueError('no')\n    def __len__(self): return -1\n_E([1])", None),
    ("class _E(int):\n    def __hash__(self): raise ValueError('no')\n    def __eq__(self, o): raise ValueError('no')\n_E(1)", None),
    ("class _E:\n    def __getattribute__(self, name): raise SystemExit(name)\n_E()", None),
    ("class _E:\n    def __repr__(self): import os; os.write(1, b'x' * 100000); return 'x' * 10_000_000\n_E()", None),
    ("class _E(Exception):\n    def __str__(self): raise ValueError('no')\nraise _E()", "raised"),
    ("class _E(Exception):\n    def __repr__(self): raise ValueError('no')\n    __str__ = __repr__\nraise _E()", "raised"),
    ("class _E(Exception):\n    __module__ = property(lambda self: 1 / 0)\nraise _E('x')", "raised"),
    ("class _E(BaseException):\n    pass\n_e = _E('x')\n_e.__context__ = _e.__cause__ = ValueError('y')\nraise _e", "raised"),
    (
        "class _M(type):\n    def __repr__(cls): raise ValueError('no')\n    __name__ = property(lambda cls: 1 / 0)\n"
        "class _E(Exception, metaclass=_M): pass\nraise _E('x')",
        "raised",
    ),
    ("raise KeyboardInterrupt", "raised"),
    ("raise SystemExit", None),
    ("raise GeneratorExit", "raised"),
    ("def _f(): _f()\n_f()", "raised"),
]


@kind("cell breaks Python")
def cell_breaks_python(arena: Arena) -> Effect:
    """The session goes on: operations are done and told as ever. What was broken is put right by a restart."""
    book = arena.choose()
    breaking = arena.chance.choice(BREAKING)
    at = time.monotonic()
    arena.execute(book, breaking, ("ok", "raised"))
    for _ in range(arena.chance.randrange(1, 3)):
        # In the way of an operation may be what was broken; never in the way of an answer.
        arena.execute(book, "ops, n, d" if book.state else "1 + 1", ("ok", "raised"))
    if arena.chance.random() < 0.5:
        arena.execute(book, "import os\nos._exit(1)", ("died", "raised"))
    arena.start_over(book)
    return Effect(True, at, (book,))


@kind("cell fights looks")
def cell_fights_looks(arena: Arena) -> Effect:
    """Values and exceptions that raise in the hands of whoever shows them: the cell's own matter, told as such."""
    book = arena.choose()
    code, outcome = arena.chance.choice(FIGHTING)
    at = time.monotonic()
    arena.execute(book, code, (outcome,) if outcome else ("ok", "raised"))
    arena.change(book)
    if arena.chance.random() < 0.5:
        arena.ask(book, "inspect")
    return Effect(True, at, (book,))
