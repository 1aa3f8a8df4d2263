"""Functions of the standard library as they were when a test run began. Imported by what reports a run, before its tests are.

Tests replace functions of modules, and some libraries those of every module that is loaded: what is an attribute of an object stays.
"""

from __future__ import annotations

import _socket
import fcntl
import json
import os
import select
import sys
import time
from types import SimpleNamespace

real = SimpleNamespace(
    chmod=os.chmod,
    close=os.close,
    dup2=os.dup2,
    exit=os._exit,
    fcntl=fcntl.fcntl,
    flock=fcntl.flock,
    fork=os.fork,
    fstat=os.fstat,
    ftruncate=os.ftruncate,
    geteuid=os.geteuid,
    getpgrp=os.getpgrp,
    getpid=os.getpid,
    gmtime=time.gmtime,
    ioctl=fcntl.ioctl,
    kill=os.kill,
    killpg=os.killpg,
    listdir=os.listdir,
    loads=json.JSONDecoder().decode,
    lseek=os.lseek,
    lstat=os.lstat,
    major=os.major,
    makedirs=os.makedirs,
    minor=os.minor,
    memfd_create=getattr(os, "memfd_create", None),
    mkdir=os.mkdir,
    monotonic=time.monotonic,
    open=os.open,
    pipe=os.pipe,
    poll=select.poll,
    process_time=time.process_time,
    read=os.read,
    readlink=os.readlink,
    rmdir=os.rmdir,
    scandir=os.scandir,
    sendfile=os.sendfile,
    setpgid=os.setpgid,
    setprofile=sys.setprofile,
    setsid=os.setsid,
    settrace=sys.settrace,
    socket=_socket.socket,
    stat=os.stat,
    time=time.time,
    unlink=os.unlink,
    urandom=os.urandom,
    waitid=os.waitid,
    waitpid=os.waitpid,
    write=os.write,
)
