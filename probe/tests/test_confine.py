"""A worker locked into namespaces. Needs root and `unshare`; the real keeper and its file system view are tested with the daemon."""

from __future__ import annotations

import base64
import os
import shutil
import struct
import subprocess

import pytest
from host import Datagram, Session, Template, control_pair

ALLOW_EVERYTHING = base64.b64encode(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)).decode()

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None or not hasattr(os, "pidfd_open"), reason="needs root, unshare and pidfds"
)


@pytest.fixture
def keeper():
    """A process that is pid 1 of its own namespaces, as the nursery would make it."""
    script = "mount -t proc proc /proc; echo ready; exec cat"
    process = subprocess.Popen(
        [
            "unshare",
            "--user",
            "--map-root-user",
            "--pid",
            "--mount",
            "--net",
            "--ipc",
            "--uts",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            script,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    if process.stdout.readline() != b"ready\n":
        process.kill()
        process.wait()
        pytest.skip("namespaces are not to be had here")
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
        pid = int(children.read().split()[0])
    pidfd = os.pidfd_open(pid)
    yield pidfd
    os.close(pidfd)
    process.kill()
    process.wait()


class Confined(Session):
    """A session whose worker is forked into the keeper's namespaces."""

    def __init__(self, template, keeper, **confine):
        self._keeper_pidfd = keeper
        self._confine = confine
        super().__init__(template)

    def _fork(self, passed):
        self.keeper = control_pair()[0]
        return self.template.fork((*passed, self._keeper_pidfd), self._confine)


@pytest.fixture
def own_template(python):
    template = Template(python)
    yield template
    template.close()


def test_a_confined_worker(own_template, keeper):
    session = Confined(
        own_template, keeper, rlimits={"RLIMIT_NOFILE": 512}, uid=None, gid=None, cwd="/tmp", seccomp=ALLOW_EVERYTHING, landlock=False
    )
    assert session.start(cwd="/tmp")["ok"] is True
    assert session.result("import os; os.getpid() < 20") == "True"
    status = dict(line.split(":\t", 1) for line in eval(session.result("open('/proc/self/status').read().splitlines()")) if ":\t" in line)
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert session.result("import socket; [name for _, name in socket.if_nameindex()]") == "['lo']"
    assert session.result("import resource; resource.getrlimit(resource.RLIMIT_NOFILE)") == "(512, 512)"
    session.execute("x = 1")
    frozen = session.checkpoint()
    session.execute("x = 2")
    session.rollback(frozen)
    assert session.result("x") == "1"
    session.close()


def test_a_step_that_fails_is_named(own_template, keeper):
    with pytest.raises(AssertionError, match="setting RLIMIT_NONSENSE"):
        Confined(own_template, keeper, rlimits={"RLIMIT_NONSENSE": 1})
    with pytest.raises(AssertionError, match="filtering system calls"):
        Confined(own_template, keeper, seccomp=base64.b64encode(b"\0" * 8).decode())


def test_a_dead_keeper_is_an_error(own_template):
    process = subprocess.Popen(["true"])
    pidfd = os.pidfd_open(process.pid)
    process.wait()
    with pytest.raises(AssertionError, match="entering the pid namespace"):
        Confined(own_template, pidfd)
    os.close(pidfd)


def test_a_template_comes_back_from_a_namespace(own_template, keeper):
    Confined(own_template, keeper).close()
    session = Session(own_template)
    session.start()
    assert session.result("import os; os.getpid() > 20") == "True"
    session.close()


def test_the_end_of_a_confined_worker_is_reported(own_template, keeper):
    session = Confined(own_template, keeper)
    session.close()
    message = Datagram(own_template.control).message
    assert (message["exit"] > 0, message["status"]) == (True, 9)
