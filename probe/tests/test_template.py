"""The bootstrap and the template: nothing on disk, nothing of the working directory, forks, preloads, reaping."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap

import pytest
from host import TIMEOUT_SECONDS, Datagram, Session, Template, bootstrap, last_line, sources


def test_the_stages_are_single_lines():
    for name in ("stage0.py", "stage1.py"):
        compile(last_line(name).replace("@SIZE@", "1").replace("@MARK@", "0"), name, "exec")
    assert b"\n" not in bootstrap("template", {}).split(b"\n", 1)[0]


def run_bootstrap(python, data, cwd="/"):
    return subprocess.run(
        [python, "-S", "-c", last_line("stage0.py")],
        input=data,
        capture_output=True,
        cwd=cwd,
        env={"PYTHONDONTWRITEBYTECODE": "1"},
        timeout=TIMEOUT_SECONDS,
    )


@pytest.fixture
def payload(monkeypatch):
    """A probe whose entry prints what it was given."""
    texts = {**sources(), "entry": "from . import wire\ndef main(config):\n    print(config, __name__, wire.__spec__.origin)\n"}
    monkeypatch.setattr("host.sources", lambda: texts)
    return lambda **options: bootstrap("entry", {"a": 1}, **options)


def test_the_bootstrap_calls_the_entry(python, payload):
    finished = run_bootstrap(python, payload())
    assert finished.stdout == b"{'a': 1} _pylair.entry <pylair/wire.py>\n", finished.stderr


def test_the_marker_is_written_first(python, payload):
    assert run_bootstrap(python, payload(mark=True)).stdout.startswith(b"\0\0pylair>{'a'")


def test_exactly_the_payload_is_read(python, payload, monkeypatch):
    monkeypatch.setitem(__import__("host").sources(), "entry", "import os\ndef main(config):\n    print(os.read(0, 10))\n")
    assert run_bootstrap(python, payload() + b"rest").stdout == b"b'rest'\n"


@pytest.mark.parametrize("cut", [0, 10, 500])
def test_a_bootstrap_that_is_cut_off_ends(python, payload, cut):
    assert run_bootstrap(python, payload()[:cut]).returncode == 1


def test_the_working_directory_is_not_imported(python, payload, tmp_path):
    for name in ("os", "json", "posix", "importlib", "encodings", "sitecustomize", "ast"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    assert run_bootstrap(python, payload(), tmp_path).stdout.startswith(b"{'a'")


def test_a_template_says_who_it_is(template, version):
    assert template.hello["wire"] == 1
    assert template.hello["python"].startswith(f"{version[0]}.{version[1]}.")


def test_a_bare_template_has_run_no_site(session, template):
    # What the worker has is its own doing: the template's path is still bare.
    maps = os.readlink(f"/proc/{template.process.pid}/cwd")
    assert maps == template.directory.name
    assert "sysconfig" not in session.result("import sys; [name for name in sys.modules if name == 'sysconfig']")


def test_workers_of_one_template_are_strangers(template):
    one, other = Session(template), Session(template)
    one.start()
    other.start()
    one.execute("x = 1")
    assert other.execute("x")["error"]["type"] == "NameError"
    numbers = "import random; [random.random() for _ in range(3)]"
    assert one.result(numbers) != other.result(numbers)
    sid = "import os; (os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid())"
    assert one.result(sid) == "(True, True)"
    one.close()
    assert other.result("1") == "1"
    other.close()


def test_a_worker_has_only_its_own_descriptors(session):
    code = """
    import os
    links = {}
    for name in os.listdir('/proc/self/fd'):
        try: links[int(name)] = os.readlink('/proc/self/fd/' + name)
        except FileNotFoundError: pass  # the listing itself
    # Newer versions of libffi hold themselves open.
    sorted(number for number, link in links.items() if 'libffi' not in link)
    """
    listed = eval(session.result(textwrap.dedent(code)))
    assert listed[:3] == [0, 1, 2]
    assert len(listed) == 3 + 6
    assert min(listed[4:]) >= 900


def test_a_worker_knows_its_main_thread(session):
    assert session.result("import os, threading; threading.main_thread().native_id == os.getpid()") == "True"


def test_forks_of_a_worker_run_the_hooks(session):
    """The template keeps those of the standard library asleep."""
    session.execute("import os, random, threading, time, warnings\nwarnings.simplefilter('ignore')")
    session.execute("waiting = threading.Thread(target=time.sleep, args=(60,), daemon=True); waiting.start(); random.seed(1)")
    code = (
        "ends = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.write(ends[1], repr((threading.active_count(), random.random() == random.Random(1).random())).encode())\n"
        "    os._exit(0)\n"
        "os.wait() and os.read(ends[0], 100).decode()"
    )
    assert session.result(code) == repr("(1, False)")
    assert session.result("threading.active_count()") == "2"


def test_a_template_shrugs_at_an_interrupt(python):
    template = Template(python)
    template.process.send_signal(signal.SIGINT)
    session = Session(template)
    assert session.start()["ok"] is True
    session.close()
    template.close()


def test_a_worker_ends_with_its_link(template):
    session = Session(template)
    session.start()
    os.close(session.requests)
    session.wait_for_end()
    session.requests = os.open(os.devnull, os.O_WRONLY)
    session.close()


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x05hello"])
def test_garbage_ends_the_link(template, garbage):
    session = Session(template)
    session.start()
    os.write(session.requests, garbage)
    session.wait_for_end()
    session.close()


def test_children_that_end_are_reported(python):
    template = Template(python)
    session = Session(template)
    session.start()
    session.keeper.close()
    session.close()
    ended = Datagram(template.control).message
    assert ended["status"] == 0
    assert ended["exit"] > 0
    template.close()


def test_a_killed_template_leaves_its_workers(python):
    template = Template(python)
    session = Session(template)
    session.start()
    template.process.send_signal(signal.SIGKILL)
    template.close()
    assert session.result("1 + 1") == "2"
    session.close()


def test_a_fork_that_cannot_be_is_reported(template):
    control = os.open(os.devnull, os.O_RDONLY)
    answer = template.fork((control,))
    assert "failed" in answer
    assert answer["error"]
    os.close(control)


def test_a_start_that_cannot_be_is_refused(template, tmp_path):
    session = Session(template)
    answer = session.start(cwd=str(tmp_path / "missing"))
    assert "missing" in answer["refused"]
    assert session.start()["ok"] is True
    session.close()


def test_preloads_are_shared(python, tmp_path):
    (tmp_path / "heavy.py").write_text("import os\nowner = os.getpid()\nprint('imported')\n")
    template = Template(python, preload=["heavy", "json"], python_path=[str(tmp_path)])
    assert "error" not in template.hello
    session = Session(template)
    session.start(site=False)
    assert session.result("import heavy, os; heavy.owner != os.getpid()") == "True"
    assert session.result("import sys; (sys.path[0], sys.path[1])") == repr(("", str(tmp_path)))
    assert session.result("exit.__class__.__name__") == "'Quitter'"
    assert "imported" in template.read_log()
    session.close()
    template.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 / 0", "preloading broken failed: ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(3)", "preloading broken failed: SystemExit: 3"),
        (
            "import threading\nthreading.Thread(target=threading.Event().wait, name='left', daemon=True).start()",
            "preloading left threads running, which cannot be forked: left",
        ),
    ],
)
def test_a_preload_that_fails_is_said(python, tmp_path, text, expected):
    (tmp_path / "broken.py").write_text(text)
    template = Template(python, preload=["broken"], python_path=[str(tmp_path)])
    assert template.hello == {"error": expected}
    template.close()


def test_numpy_random_differs_between_workers(python, tmp_path):
    package = tmp_path / "numpy"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "random.py").write_text("seeds = 0\ndef seed():\n    global seeds\n    seeds += 1\n")
    template = Template(python, preload=["numpy.random"], python_path=[str(tmp_path)])
    session = Session(template)
    session.start(site=False)
    assert session.result("import numpy.random; numpy.random.seeds") == "1"
    session.close()
    template.close()
