"""Works in one of several ways until its input ends, and then says what it has done and what it has become. Python 3.8 and later."""

import os
import select
import sys
import threading
import time
import zlib


def echo(line):
    print("echo", line.strip(), flush=True)


def idle():
    """Blocked in a read."""
    for line in sys.stdin:
        echo(line)


def waiting():
    """Blocked in epoll."""
    with select.epoll() as poll:
        poll.register(0, select.EPOLLIN)
        rest = b""
        while True:
            poll.poll()
            data = os.read(0, 4096)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                echo(line.decode())


def listen(ended):
    for line in sys.stdin:
        echo(line)
    ended.append(True)


def busy(ended):
    """Never out of the interpreter. Every step depends on all before it."""
    digest = steps = 0
    while not ended:
        digest = zlib.crc32(b"%d" % steps, digest)
        steps += 1
    print("digest", steps, digest, flush=True)


def sleeping(ended):
    """Nearly always asleep, and never for less than it wanted to be."""
    naps = short = 0
    while not ended:
        before = time.monotonic()
        time.sleep(0.02)
        naps += 1
        short += time.monotonic() - before < 0.02
    print("naps", naps, short, flush=True)


def facts():
    return threading.active_count(), sorted(os.listdir("/proc/self/fd")), sorted(m for m in sys.modules if "pylair" in m)


shape = sys.argv[1]
ended = []
if shape in ("busy", "sleeping"):
    threading.Thread(target=listen, args=(ended,), daemon=True).start()
before = facts()
print("open", flush=True)
if shape in ("busy", "sleeping"):
    globals()[shape](ended)
else:
    globals()[shape]()
after = facts()
# The thread that listens has ended with its input.
print("closed", before[1:] == after[1:], after[0] <= before[0], before, after, flush=True)
