"""An app that lets pylair in by itself: the module interface."""

from __future__ import annotations

import json
import os
import stat
import subprocess

from visitor import INSTALLED, Visit, wait_for

# Goes on until its input ends.
WAIT = "\nimport sys\nprint('ready', flush=True)\nsys.stdin.read()\n"


def output_of(python, home, code, **env):
    program = home.run(python, code, **env)
    status, out, err = program.end()
    assert status == 0, err
    assert err == ""
    return out


def test_three_lines_and_a_visit(python, home):
    program = home.run(python, "import pylair\npylair.register('box', {'n': 1})\npylair.start(app_id='my-app')" + WAIT)
    assert program.line() == "ready"
    visit = home.visit("my-app")
    app = visit.hello["app"]
    assert visit.hello["wire"] == 1 and visit.hello["implementation"] == "cpython"
    assert app["pid"] == program.pid and app["how"] == "start" and app["parent"] is None
    assert visit.run("box['n'] + 1")["result"] == "2"
    assert visit.ask("ping")[0]["ok"] is True
    status, _, err = program.end()
    assert (status, err) == (0, "")
    assert list(home.apps.iterdir()) == []


def test_the_entry_is_as_the_contract_says(python, home):
    home.run(python, "import pylair; pylair.start(app_id='web', readonly=True)" + WAIT)
    entry = home.entry("web")
    ticks = open(f"/proc/{entry['pid']}/stat").read().rpartition(")")[2].split()[19]
    assert entry["start"] == int(ticks)
    assert entry["readonly"] is True and "token" not in entry and "tcp" not in entry
    assert entry["argv"] == [str(home.path / "script.py")] and entry["cwd"] == str(home.path)
    assert set(entry) == {
        "app_id", "pid", "start", "endpoint", "readonly", "started_at", "how", "parent", "python", "argv", "cwd", "wire",
    }  # fmt: skip
    name = f"{entry['pid']}-{entry['start']}"
    assert entry["endpoint"] == str(home.apps / f"{name}.sock")
    assert sorted(path.name for path in home.apps.iterdir()) == [f"{name}.json", f"{name}.sock"]
    assert Visit(entry["endpoint"]).hello["app"] == entry


def test_files_are_private_whatever_the_umask(python, home):
    home.run(python, "import os; os.umask(0); import pylair; pylair.start(app_id='open')" + WAIT)
    home.entry("open")
    for path in (home.apps.parent, home.apps):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in home.apps.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_attributes_of_the_module_always_work(python, home):
    program = home.run(
        python,
        """
        import pylair, sys
        facts = lambda: print(pylair.running, pylair.readonly, pylair.app_id, pylair.n_clients, pylair.n_commands, flush=True)
        facts()
        pylair.start(readonly=True)
        facts()
        sys.stdin.readline()
        facts()
        print(pylair.last_command_time > 1e9)
        pylair.stop()
        facts()
        try:
            pylair.nonsense
        except AttributeError as error:
            print(error)
        """,
    )
    assert program.line() == "False False None 0 0"
    assert program.line() == "True True script 0 0"
    visit = home.visit("script")
    visit.run("1")
    visit.run("2")
    program.tell()
    assert program.line() == "True True script 1 2"
    assert program.line() == "True"
    assert program.line().startswith("False True script 0 2")
    assert program.line() == "module 'pylair' has no attribute 'nonsense'"


def test_a_second_start_is_a_warning_even_where_warnings_are_errors(python, home):
    code = """
    import pylair, warnings
    print(pylair.start(app_id="one"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        print(pylair.start(app_id="two"))
    print(caught[0].message, caught[0].filename == __file__)
    warnings.simplefilter("error")
    print(pylair.start(), pylair.app_id)
    """
    expected = "True\nFalse\npylair is already running in this process as 'one' True\nFalse one\n"
    assert output_of(python, home, code) == expected


def test_names_are_registered_replaced_and_forgotten(python, home):
    program = home.run(
        python,
        """
        import pylair, sys
        pylair.register("a", 1); pylair.register("b", 2); pylair.register("a", 3)
        pylair.unregister("b"); pylair.unregister("never")
        for bad in ("", "a b", "1x", 5):
            try:
                pylair.register(bad, 0)
            except ValueError:
                print("refused", flush=True)
        pylair.start(app_id="names")
        sys.stdin.read()
        """,
    )
    visit = home.visit("names")
    assert visit.status()["registered"] == ["a"]
    assert visit.run("a")["result"] == "3"
    assert program.end()[1] == "refused\n" * 4


def test_command_line_arguments(python, home):
    code = """
    import argparse, pylair, sys
    parser = argparse.ArgumentParser()
    pylair.add_arguments(parser)
    print(pylair.from_args(parser.parse_args([]), thing=1), pylair.running)
    given = ["--pylair", "--pylair-port", "0", "--pylair-app-id", "cli", "--pylair-readonly"]
    print(pylair.from_args(parser.parse_args(given), thing=1), pylair.running, pylair.app_id, pylair.readonly)
    """
    assert output_of(python, home, code) == "False False\nTrue True cli True\n"


def test_bad_settings_are_errors_of_the_call(python, home):
    code = """
    import pylair
    for bad in ({"app_id": "a@b"}, {"app_id": "x" * 65}, {"app_id": "a\\nb"}, {"app_id": " "}, {"app_id": 5},
                {"port": 0, "host": "0.0.0.0"}, {"port": 0, "host": "example.org"}, {"port": 70000}, {"port": "80"}):
        try:
            pylair.start(**bad)
            print("started with", bad)
        except ValueError:
            pass
    print(pylair.running)
    """
    assert output_of(python, home, code) == "False\n"


def test_a_port_comes_with_a_token(python, home):
    home.run(python, "import pylair; pylair.start(app_id='tcp', port=0)" + WAIT)
    entry = home.entry("tcp")
    host, port = entry["tcp"].split(":")
    assert host == "127.0.0.1"
    visit = Visit((host, int(port)), entry["token"])
    assert visit.run("6 * 7")["result"] == "42"
    assert "token" not in visit.hello["app"] and visit.hello["app"]["tcp"] == entry["tcp"]
    assert Visit(entry["endpoint"]).run("1")["result"] == "1"


def test_a_taken_port_is_one_clear_error_and_leaves_nothing(python, home):
    code = """
    import pylair, socket, threading
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    try:
        pylair.start(port=port)
    except OSError as error:
        print(error.strerror == f"pylair cannot listen on 127.0.0.1:{port}: Address already in use", threading.active_count())
    print(pylair.running, pylair.start(app_id="again"))
    """
    assert output_of(python, home, code) == "True 1\nFalse True\n"
    assert list(home.apps.iterdir()) == []


def test_a_directory_of_somebody_elses_is_refused(python, home):
    (home.path / "runtime").symlink_to("/tmp")
    code = """
    import pylair
    try:
        pylair.start()
    except OSError as error:
        print("belongs to" in str(error), pylair.running)
    """
    assert output_of(python, home, code) == "True False\n"


def test_a_hundred_starts_leave_no_thread_and_no_descriptor(python, home):
    code = """
    import os, pylair, threading, time
    def tally():
        return len(os.listdir("/proc/self/fd")), threading.active_count()
    pylair.start(); pylair.stop()
    before = tally()
    for _ in range(100):
        pylair.start(port=0)
        pylair.stop()
    print(tally() == before, before, tally())
    deadline = time.monotonic() + 10
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    print(len(os.listdir("/proc/self/task")), os.listdir(os.environ["PYLAIR_HOME"] + "/runtime/apps"))
    """
    out = output_of(python, home, code)
    assert out.startswith("True ") and out.endswith("\n1 []\n"), out


def test_importing_is_cheap_and_starts_nothing(python):
    code = """
import sys
before = set(sys.modules)
import pylair
pylair.running
print(sorted(name for name in set(sys.modules) - before if name not in ("__future__", "select", "time")))
"""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": INSTALLED}
    out = subprocess.run([python, "-c", code], env=env, capture_output=True, check=True, text=True).stdout
    assert out == "['pylair', 'pylair.app', 'pylair.plain_threads']\n"


def test_signals_reach_the_program(python, home):
    """A thread of ours that got a signal would leave the main thread asleep."""
    program = home.run(
        python,
        """
        import pylair, signal, sys, threading
        class Rung(Exception): pass
        def ring(*_): raise Rung
        signal.signal(signal.SIGUSR1, ring)
        pylair.start(app_id="rings")
        try:
            print("ready", flush=True)
            threading.Event().wait(20)
            print("slept")
        except Rung:
            print("rang")
        """,
    )
    assert program.line() == "ready"
    for path in os.listdir(f"/proc/{program.pid}/task"):
        status = open(f"/proc/{program.pid}/task/{path}/status").read()
        blocked = int(status.split("SigBlk:")[1].split()[0], 16)
        assert bool(blocked >> 9 & 1) is (int(path) != program.pid)
    os.kill(program.pid, 10)
    assert program.line() == "rang"


def test_calls_see_the_signals_that_the_program_sees(python, home):
    home.run(python, "import pylair; pylair.start(app_id='masks')" + WAIT)
    visit = home.visit("masks")
    assert visit.run("__import__('signal').pthread_sigmask(0, [])")["result"] == "set()"


def test_an_app_that_does_nothing_costs_nothing(python, home):
    program = home.run(
        python,
        """
        import pylair, sys, time
        pylair.start(app_id="idle", port=0)
        sys.stdin.readline()
        before = time.process_time()
        time.sleep(1)
        print(time.process_time() - before)
        """,
    )
    visit = home.visit("idle")
    visit.ask("ping")
    program.tell()
    assert float(program.line()) < 0.005


def test_output_and_logging_are_left_alone(python, home):
    code = """
    import logging, pylair
    handlers = list(logging.root.handlers)
    pylair.start(app_id="quiet")
    print(logging.root.handlers == handlers, logging.root.level)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=__import__("sys").stdout)
    logging.info("heard")
    """
    assert output_of(python, home, code) == "True 30\nheard\n"


def test_status_lists_what_runs(python, home):
    home.run(python, "import pylair, threading; gate = threading.Event(); pylair.register('gate', gate); pylair.start(app_id='s')" + WAIT)
    visit = home.visit("s")
    number = visit.send("execute", b"gate.wait(20)", client="k3n7", cell=1)
    running = wait_for(lambda: visit.status()["running"])
    assert [(call["call"], call["op"], call["client"]) for call in running] == [(number, "execute", "k3n7")]
    assert running[0]["seconds"] >= 0
    other = home.visit("s")
    assert other.status()["clients"] == 2
    other.run("gate.set()")
    assert visit.done(number)[0]["result"] == "True"
    assert json.loads(visit.ask("status")[1])["running"] == []


def test_threads_that_the_program_has_replaced_are_left_alone(python, home):
    """As gevent does, which also remembers what it replaced; and tracers of the program's do not see ours."""
    home.run(
        python,
        """
        import select, sys, threading, time, types, _thread
        originals, used = {}, []
        def replace(module, name):
            real = originals[module.__name__, name] = getattr(module, name)
            def replaced(*args, **kwargs):
                if "pylair" in sys._getframe(1).f_code.co_filename:
                    used.append(name)
                return real(*args, **kwargs)
            setattr(module, name, replaced)
        for name in ("start_new_thread", "allocate_lock", "get_ident", "RLock"):
            replace(_thread, name)
        for name in ("Lock", "RLock", "Event", "Thread", "get_ident"):
            replace(threading, name)
        replace(select, "poll")
        replace(time, "sleep")
        sys.modules["gevent.monkey"] = types.SimpleNamespace(get_original=lambda module, name: originals[module, name])
        def trace(frame, event, argument):
            used.append(frame.f_code.co_name)
        threading.settrace(trace)
        import pylair
        pylair.register("used", used)
        pylair.start(app_id="replaced")
        sys.stdin.read()
        """,
    )
    visit = home.visit("replaced")
    assert visit.run("for number in range(100): print(number)")["outcome"] == "ok"
    visit.ask("logs", wait_s=0.01)
    assert visit.run("used")["result"] == "[]"


def test_a_program_out_of_descriptors_is_told_why_it_cannot_be_looked_into(python, home):
    home.run(python, "import os, pylair, resource, sys\npylair.start(app_id='full')\nsys.stdin.read()")
    visit = home.visit("full")
    visit.run("""
        import os, resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
        taken = []
        try:
            while True:
                taken.append(os.dup(0))
        except OSError:
            pass
    """)
    refused = visit.ask("stacks")[0].get("refused", "Too many open files")
    assert "Too many open files" in refused
    visit.run("for fd in taken: os.close(fd)\nresource.setrlimit(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE))")
    assert visit.run("1")["result"] == "1"
