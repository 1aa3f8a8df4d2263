"""Cells that take too much, hang, or turn on their own descriptors and signals."""

from __future__ import annotations

import time
from pathlib import Path

from arena import Arena, Pending
from fault import Effect, kind
from words import expect

LIMIT_S = 0.15

# Within the bounds of every profile, or of what a cell sets itself: the machine has others on it.
HOGGING = {
    "memory": "_b = []\ntry:\n    while len(_b) < 12: _b.append(bytearray(8 << 20))\nfinally: _b = None",
    "no memory": "import resource\n_l = resource.getrlimit(resource.RLIMIT_AS)\n"
    "resource.setrlimit(resource.RLIMIT_AS, (600 << 20, _l[1]))\ntry: _b = bytearray(1 << 30)\n"
    "except MemoryError: _b = None\nfinally: resource.setrlimit(resource.RLIMIT_AS, _l)",
    "forks": "import os\nfor _ in range(24):\n    if os.fork() == 0: os._exit(0)\n"
    "try:\n    while True: os.wait()\nexcept ChildProcessError: pass",
    "strays": "import os\nfor _ in range(8):\n    if os.fork() == 0:\n        os.setsid()\n        os.execvp('sleep', ['sleep', '30'])",
    "second ends": "import os\nfor _ in range(4): os.fork()",
    "threads": "import threading\n_t = [threading.Thread(target=sum, args=[range(1000)]) for _ in range(60)]\n"
    "for _x in _t: _x.start()\nfor _x in _t: _x.join()",
    "lasting threads": "import threading\nfor _ in range(20): threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "output": "import os\nfor _ in range(40): os.write(1, b'x' * 65536)\nfor _ in range(40): os.write(2, b'y' * 65536)",
    "lines": "for _ in range(20000): print(_)",
    "files": "_k = []\ntry:\n    while len(_k) < 3000: _k.append(open('/dev/null'))\nexcept OSError: pass\nfinally: _k = None",
    "pipes": "import os\n_k = []\ntry:\n    while len(_k) < 400: _k.append(os.pipe())\nexcept OSError: pass\n"
    "for _a, _z in _k: os.close(_a); os.close(_z)",
    "late": "import os, time\nif os.fork() == 0:\n    time.sleep(0.05)\n    os.write(1, b'late' * 1000)\n    os._exit(0)",
}


@kind("cell hogs")
def cell_hogs(arena: Arena) -> Effect:
    """An operation that takes much beside its own steps, and is done whole all the same."""
    book = arena.choose()
    code = HOGGING[arena.chance.choice(sorted(HOGGING))]
    at = time.monotonic()
    report = arena.run(book, arena.cut(book, code), ("ok",))
    expect(len(str(report)) < 200_000, "the answer is", len(str(report)), "characters long")
    if arena.chance.random() < 0.3:
        report = arena.execute(book, "'x' * 30_000_000")
        expect(len(str(report)) < 200_000, "the answer is", len(str(report)), "characters long")
    return Effect(True, at, (book,))


HANGING = {
    "spins": "while True: pass",
    "sleeps": "import time\ntime.sleep(1000)",
    "waits": "import threading\nthreading.Event().wait()",
    "reads": "import os\n_r, _w = os.pipe()\nos.read(_r, 1)",
    "child": "import subprocess\nsubprocess.run(['sleep', '1000'])",
    "except Exception": "while True:\n    try:\n        while True: pass\n    except Exception: pass",
    "lock": "import threading\n_l = threading.Lock()\n_l.acquire()\n_l.acquire()",
    "asyncio": "import asyncio\nawait asyncio.sleep(1000)",
}
# These have to be unwound by force, or killed, which takes its time.
STUBBORN = {
    "swallows": "import time\nwhile True:\n    try: time.sleep(0.01)\n    except BaseException: pass",
    "in C": "sum(range(10**13))",
    "no signals": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
}


@kind("cell hangs")
def cell_hangs(arena: Arena) -> Effect:
    """An operation that does not end, ended by its own limit or by somebody else."""
    book = arena.choose()
    hanging = STUBBORN if arena.chance.random() < 0.08 else HANGING
    arena.gates += 1
    gate = book.file.parent / f"gate-{arena.gates}"
    operation = arena.cut(book, f"open({gate.name!r}, 'w').close()\n" + hanging[arena.chance.choice(sorted(hanging))])
    at = time.monotonic()
    if arena.chance.random() < 0.5:
        arguments = {"timeout_s": LIMIT_S, "on_timeout": arena.chance.choice(["keep", "rollback"])}
        arena.run(book, operation, ("timed_out",), **arguments)
    else:
        be_interrupted(arena, Pending.of(arena, book, operation), gate)
    if not gate.exists():
        # On a busy machine its time can be over before it has come to its steps, and nobody knows after which.
        book.must.discard(operation.number)
        book.may.add(operation.number)
        arena.start_over(book)
    return Effect(True, at, (book,))


def be_interrupted(arena: Arena, pending: Pending, gate: Path) -> None:
    """By the same client, which need not wait for its answers one after the other."""
    arena.wait_for(gate.exists, "a cell did not begin")
    answer = arena.line.must("interrupt", target=pending.book.name)
    arena.say("interrupt", pending.book.name, answer)
    arena.finish(pending, ("interrupted",))


CLOSING = {
    "all": "import os\nos.closerange(0, 1 << 16)",
    "above 2": "import os\nos.closerange(3, 1 << 16)",
    "standard ones": "import os\nfor _k in (0, 1, 2): os.close(_k)",
    "garbage": "import os\nfor _k in range(3, 300):\n    try: os.write(_k, b'garbage' * 20)\n    except OSError: pass",
    "one byte": "import os\nfor _k in range(3, 300):\n    try: os.write(_k, b'\\0')\n    except OSError: pass",
    "reads": "import os\nfor _k in range(3, 300):\n    try: os.set_blocking(_k, False); os.read(_k, 100000)\n    except OSError: pass",
    "others in their place": "import os\n_n = os.open('/dev/null', os.O_RDWR)\nfor _k in range(3, 60):\n    if _k != _n: os.dup2(_n, _k)",
    "shutdown": "import os, socket\nfor _k in range(3, 300):\n"
    "    try: socket.socket(fileno=os.dup(_k)).shutdown(2)\n    except OSError: pass",
    "SIGINT": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)",
    "SIGTERM": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "SIGHUP": "import os, signal\nos.kill(os.getpid(), signal.SIGHUP)",
    "SIGPIPE": "import os, signal\nos.kill(os.getpid(), signal.SIGPIPE)",
    "SIGSTOP": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "own group": "import os, signal\nos.killpg(0, signal.SIGUSR1)",
    "keeper": "import os, signal\nos.kill(os.getppid(), signal.SIGTERM)",
    "every one": "import os, signal\nfor _k in (1, 2, 3, 10, 12, 13, 14, 15, 16, 17, 18, 21, 22, 23, 28, 29):\n"
    "    signal.signal(_k, signal.SIG_IGN)\n    os.kill(os.getpid(), _k)",
}


@kind("cell closes")
def cell_closes(arena: Arena) -> Effect:
    """An operation that turns on its own descriptors or sends itself signals. It is told how that ended, and what is left."""
    book = arena.choose()
    code = CLOSING[arena.chance.choice(sorted(CLOSING))]
    operation = arena.cut(book, code)
    at = time.monotonic()
    ends = ("ok", "raised", "died", "interrupted", "timed_out")
    arena.run(book, operation, ends, timeout_s=2)
    if arena.chance.random() < 0.5:
        # What was ruined may show only when it is used next.
        arena.check(book, may_die=True)
        arena.run(book, arena.cut(book, "pass"), ends)
    return Effect(True, at, (book,), may_die=True)
