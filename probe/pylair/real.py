"""Functions of the standard library as they were when a test run began. Imported by what reports a run, before its tests are.

Tests replace functions of modules, and some libraries those of every module that is loaded: what is an attribute of an object stays.
"""

from __future__ import annotations

import _socket
import json
import os
import select
import time
from types import SimpleNamespace

real = SimpleNamespace(
    close=os.close,
    exit=os._exit,
    fork=os.fork,
    getpid=os.getpid,
    gmtime=time.gmtime,
    kill=os.kill,
    killpg=os.killpg,
    loads=json.JSONDecoder().decode,
    makedirs=os.makedirs,
    monotonic=time.monotonic,
    open=os.open,
    pipe=os.pipe,
    poll=select.poll,
    process_time=time.process_time,
    read=os.read,
    scandir=os.scandir,
    setsid=os.setsid,
    socket=_socket.socket,
    time=time.time,
    urandom=os.urandom,
    waitpid=os.waitpid,
    write=os.write,
)
