"""Starts a Python in each of the usual ways, and ends when its input does."""

import multiprocessing
import os
import subprocess
import sys


def wait(pipe):
    pipe.send(None)
    pipe.recv()


if __name__ == "__main__":
    child = subprocess.Popen([sys.executable, "script.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"open\n"
    ends = multiprocessing.get_context("spawn").Pipe()
    spawned = multiprocessing.get_context("spawn").Process(target=wait, args=(ends[1],))
    spawned.start()
    ends[0].recv()
    forked = os.fork()
    if forked == 0:
        sys.stdin.read()
        os._exit(0)
    print("open", child.pid, spawned.pid, forked, flush=True)
    sys.stdin.read()
    os.waitpid(forked, 0)
    ends[0].send(None)
    spawned.join()
    child.communicate()
    print("closed", child.returncode, spawned.exitcode, flush=True)
