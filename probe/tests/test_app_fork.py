"""Apps that fork: children become instances of their own, and parents notice nothing."""

from __future__ import annotations

import os
import signal

import pytest
from visitor import Visit, wait_for


def test_a_child_is_an_instance_below_its_parent(python, home):
    program = home.run(
        python,
        """
        import os, pylair, sys
        pylair.register("who", "parent")
        pylair.start(app_id="web", readonly=False, port=0)
        sys.stdin.readline()
        child = os.fork()
        if child == 0:
            pylair.register("who", "child")
            sys.stdin.readline()
            sys.exit()
        print(child, flush=True)
        sys.stdin.read()
        os.waitpid(child, 0)
        """,
    )
    parent = home.visit("web")
    program.tell()
    child = int(program.line())
    entry = home.entry(f"web/{child}")
    assert (entry["pid"], entry["parent"], entry["how"]) == (child, "web", "fork")
    assert "tcp" not in entry
    visit = Visit(entry["endpoint"])
    assert visit.run("who")["result"] == "'child'"
    assert parent.run("who")["result"] == "'parent'"
    assert parent.status()["clients"] == 1 and visit.status()["clients"] == 1
    assert parent.hello["app"]["endpoint"] in {entry["endpoint"] for entry in home.entries()}
    program.tell()
    assert program.end() == (0, "", "")
    assert list(home.apps.iterdir()) == []


@pytest.fixture(autouse=True)
def quiet(home, monkeypatch):
    """What these programs write to stderr is compared; 3.13.0 counts threads too late, and warns of those that begin after a fork."""
    env = home.env
    monkeypatch.setattr(home, "env", lambda **more: env(PYTHONWARNINGS="ignore", **more))


def test_forking_says_nothing_about_threads_and_changes_none(python, home):
    """From 3.12 on a fork with threads is worth a warning; ours are not there at that moment."""
    code = """
    import os, pylair, sys, warnings
    if sys.version_info[:3] != (3, 13, 0):
        warnings.simplefilter("always")
    pylair.start(app_id="web")
    for _ in range(20):
        child = os.fork()
        if child == 0:
            os._exit(len(os.listdir("/proc/self/task")) > 2)
        assert os.waitpid(child, 0)[1] == 0
    print(pylair.running)
    """
    program = home.run(python, code)
    assert program.end() == (0, "True\n", "")


def test_a_storm_of_forks_leaves_the_parent_whole(python, home):
    program = home.run(
        python,
        """
        import os, pylair, sys
        pylair.start(app_id="web")
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(200):
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
        print(len(os.listdir("/proc/self/task")), flush=True)
        sys.stdin.read()
        """,
    )
    assert program.line() == "ready"
    visit = home.visit("web")
    before = len(os.listdir(f"/proc/{program.pid}/fd"))
    program.tell()
    answers = 0
    while len(visit.ask("ping")[0]) and answers < 300:
        answers += 1
    assert program.line() == "2"
    assert visit.run("1 + 1")["result"] == "2"
    assert len(os.listdir(f"/proc/{program.pid}/fd")) == before
    assert [entry["pid"] for entry in home.entries()] == [program.pid]


def test_a_fork_in_the_middle_of_calls(python, home):
    program = home.run(
        python,
        """
        import os, pylair, sys, threading
        gate = threading.Event()
        pylair.register("gate", gate)
        pylair.start(app_id="web")
        for line in sys.stdin:
            child = os.fork()
            if child == 0:
                sys.stdin.readline()
                os._exit(0)
            print(child, flush=True)
        """,
    )
    visit = home.visit("web")
    numbers = [visit.send("execute", b"gate.wait(20)", client="c", cell=1) for _ in range(5)]
    wait_for(lambda: len(visit.status()["running"]) == 5)
    program.tell()
    child = home.visit(pid=int(program.line()))
    assert child.status()["running"] == []
    assert child.run("gate.is_set()")["result"] == "False"
    home.visit("web").run("gate.set()")
    assert {visit.receive()[0]["id"] for _ in numbers} == set(numbers)


@pytest.mark.parametrize("preexec", ["None", "os.setsid"])
def test_programs_that_are_executed_are_no_apps(python, home, preexec):
    program = home.run(
        python,
        f"""
        import os, pylair, subprocess, sys
        pylair.start(app_id="web")
        sleep = subprocess.Popen(["sleep", "30"], preexec_fn={preexec})
        forked = os.fork()
        if forked == 0:
            os.execvp("sleep", ["sleep", "30"])
        witness = os.fork()
        if witness == 0:
            sys.stdin.read()
            os._exit(0)
        print(sleep.pid, forked, witness, flush=True)
        sys.stdin.readline()
        os.kill(forked, 9), os.waitpid(forked, 0), sleep.kill(), sleep.wait()
        """,
    )
    _, _, witness = map(int, program.line().split())
    # Forked last, and with the same delay.
    home.entry(pid=witness)
    assert sorted(entry["pid"] for entry in home.entries()) == sorted([program.pid, witness])
    program.tell()
    program.end()


def test_multiprocessing(python, home):
    program = home.run(
        python,
        """
        import multiprocessing, pylair, sys

        def work(queue, answers):
            for number in iter(queue.get, None):
                answers.put(number * 2)

        if __name__ == "__main__":
            context = multiprocessing.get_context("fork")
            pylair.start(app_id="pool")
            queue, answers = context.Queue(), context.Queue()
            workers = [context.Process(target=work, args=(queue, answers)) for _ in range(2)]
            for worker in workers:
                worker.start()
            print(*[worker.pid for worker in workers], flush=True)
            for number in range(10):
                queue.put(number)
            print(sum(answers.get() for _ in range(10)), flush=True)
            sys.stdin.readline()
            for worker in workers:
                queue.put(None)
            for worker in workers:
                worker.join()
            print([worker.exitcode for worker in workers])
        """,
    )
    pids = list(map(int, program.line().split()))
    assert program.line() == "90"
    for pid in pids:
        visit = home.visit(f"pool/{pid}")
        assert visit.run("__import__('os').getpid()")["result"] == str(pid)
        visit.close()
    program.tell()
    assert program.end() == (0, "[0, 0]\n", "")


def test_a_daemon_that_closes_everything_after_it_forked(python, home):
    program = home.run(
        python,
        """
        import os, pylair, sys
        pylair.start(app_id="daemon")
        if os.fork():
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
        os.closerange(3, 4096)
        print(os.getpid(), flush=True)
        sys.stdin.read()
        """,
    )
    pid = int(program.line())
    visit = home.visit(pid=pid)
    assert visit.hello["app"]["app_id"].startswith("daemon/")
    assert visit.run("2")["result"] == "2"
    os.kill(pid, signal.SIGKILL)


def test_a_child_that_cannot_be_served_is_unharmed(python, home):
    program = home.run(
        python,
        """
        import os, pylair, shutil, sys, threading
        pylair.start(app_id="web")
        runtime = os.environ["PYLAIR_HOME"] + "/runtime"
        child = os.fork()
        if child == 0:
            shutil.rmtree(runtime)
            open(runtime, "w").close()
            while len(os.listdir("/proc/self/task")) > 1:
                threading.Event().wait(0.01)
            os.write(1, b"unharmed %d\\n" % pylair.running)
            os._exit(0)
        print(os.waitpid(child, 0)[1])
        """,
    )
    assert program.end() == (0, "unharmed 0\n0\n", "")


def test_after_stop_a_fork_is_only_a_fork(python, home):
    code = """
    import os, pylair
    pylair.start(); pylair.stop()
    child = os.fork()
    if child == 0:
        os._exit(len(os.listdir("/proc/self/task")) - 1 + pylair.running)
    print(os.waitpid(child, 0)[1])
    """
    assert home.run(python, code).end() == (0, "0\n", "")
