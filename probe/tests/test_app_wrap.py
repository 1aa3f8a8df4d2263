"""Programs under `pylair wrap`: what they are called, what they see of it, and the Pythons that they start."""

from __future__ import annotations

import os
import subprocess
import textwrap

import pytest
from visitor import INSTALLED, Visit, wait_for

WAIT = "import sys; print('ready', flush=True); sys.stdin.read()"


def script(home, code, name="shop.py"):
    path = home.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(code))
    return str(path)


def test_a_script_is_an_app_of_its_name_with_main(python, home):
    program = home.wrap([python, "-u", script(home, "stock = {'pears': 3}\n" + WAIT), "--fast"])
    assert program.line() == "ready"
    entry = home.entry("shop")
    assert (entry["how"], entry["parent"], entry["pid"]) == ("wrap", None, program.pid)
    assert entry["argv"] == [str(home.path / "shop.py"), "--fast"]
    visit = Visit(entry["endpoint"])
    assert visit.status()["registered"] == ["main"]
    assert visit.run("main.stock['pears']")["result"] == "3"
    assert program.end() == (0, "", "")
    assert list(home.apps.iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["-m", "shop.till"], "shop.till"),
        (["-c", WAIT], "python"),
        (["-Xdev", "-W", "ignore", "shop/till.py"], "till"),
        (["bin/gunicorn", "shop:app"], "gunicorn"),
        (["box"], "box"),
    ],
)
def test_ways_to_start_a_program(python, home, argv, name):
    for path in ("shop/till.py", "bin/gunicorn", "box/__main__.py"):
        script(home, WAIT, path)
    program = home.wrap([python, *argv])
    assert program.line() == "ready"
    assert home.visit(name).run("main.__name__")["result"] == "'__main__'"
    assert program.end() == (0, "", "")


def test_a_script_that_is_executed_by_its_first_line(python, home):
    path = script(home, f"#!{python}\n{WAIT}", "tool")
    os.chmod(path, 0o755)
    program = home.wrap([path])
    assert program.line() == "ready"
    home.entry("tool")
    assert program.end() == (0, "", "")


def test_the_program_sees_as_little_as_possible(python, home):
    code = """
    import os, sys, threading
    print([path for path in sys.path if "wrap" in path], "sitecustomize" in sys.modules, sys.argv[1:])
    print([name for name in vars() if not name.startswith("__")])
    """
    program = home.wrap([python, script(home, code), "x"])
    assert program.end() == (0, "[] False ['x']\n['os', 'sys', 'threading']\n", "")


@pytest.mark.parametrize("where", ["path", "venv"])
def test_an_existing_sitecustomize_runs_as_before(python, home, where):
    if where == "venv":
        subprocess.run([python, "-m", "venv", "--without-pip", home.path / "venv"], check=True)
        directory = next((home.path / "venv" / "lib").glob("python*")) / "site-packages"
        python, env = str(home.path / "venv" / "bin" / "python"), {}
    else:
        directory = home.path / "lib"
        env = {"PYTHONPATH": str(directory)}
    script(home, "import sys\nsys.mine = __file__\n", f"{directory.relative_to(home.path)}/sitecustomize.py")
    program = home.wrap([python, script(home, "import sys; print(sys.mine == sys.modules['sitecustomize'].__file__); " + WAIT)], **env)
    assert program.line() == "True" and program.line() == "ready"
    home.entry("shop")
    assert program.end() == (0, "", "")


def test_a_sitecustomize_that_raises_is_told_as_without_us(python, home):
    script(home, "raise RuntimeError('mine')\n", "lib/sitecustomize.py")
    path = script(home, "print('goes on')")
    without = home.start([python, path], PYTHONPATH=str(home.path / "lib")).end()
    assert home.wrap([python, path], PYTHONPATH=str(home.path / "lib")).end() == without
    assert without[:2] == (0, "goes on\n") and "RuntimeError: mine" in without[2]


def test_given_names_ports_and_modes(python, home):
    program = home.wrap([python, "-c", WAIT], app_id="front", port=0, readonly=True)
    assert program.line() == "ready"
    entry = home.entry("front")
    assert entry["readonly"] is True
    host, port = entry["tcp"].split(":")
    assert Visit((host, int(port)), entry["token"]).ask("ping")[0]["ok"]


def test_a_taken_port_does_not_keep_the_program_from_running(python, home):
    first = home.wrap([python, "-c", WAIT], app_id="one", port=0)
    port = int(home.entry("one")["tcp"].split(":")[1])
    second = home.wrap([python, "-c", WAIT], app_id="two", port=port)
    assert second.line() == "ready"
    assert home.visit("two").ask("ping")[0]["ok"]
    assert (
        second.end()[2] == f"pylair: pylair cannot listen on 127.0.0.1:{port}: Address already in use; the app is served without the port\n"
    )
    first.end()


def test_pythons_that_it_starts_are_apps_below_it(python, home):
    child = script(home, WAIT, "job.py")
    code = f"""
    import subprocess, sys
    child = subprocess.Popen([sys.executable, {child!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    print(child.pid, flush=True)
    sys.stdin.read()
    child.communicate()
    """
    program = home.wrap([python, script(home, code)], app_id="shop", port=0)
    pid = int(program.line())
    entry = home.entry("shop/job")
    assert (entry["pid"], entry["parent"], entry["how"]) == (pid, "shop", "wrap")
    assert "tcp" not in entry and "tcp" in home.entry("shop")
    assert home.visit("shop").hello["app"]["pid"] == program.pid
    assert program.end() == (0, "", "")


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_pythons_that_look_at_nothing_are_left_alone(python, home, flag):
    program = home.wrap([python, flag, "-c", "import sys; print(len(sys.modules) > 0, '_pylair' in sys.modules)"])
    assert program.end() == (0, "True False\n", "")
    assert not home.apps.exists()


def test_a_program_that_cannot_be_entered_runs_all_the_same(python, home):
    (home.path / "runtime").write_text("in the way")
    status, out, err = home.wrap([python, "-c", "print('ran')"]).end()
    assert (status, out) == (0, "ran\n")
    assert err.startswith("pylair: this program could not be made an app: ") and err.count("\n") == 1


def test_a_program_with_pylair_of_its_own_has_one_server(python, home):
    code = """
    import pylair, sys
    pylair.register("mine", 5)
    print(pylair.running, pylair.start(app_id="wanted", readonly=True), pylair.app_id, pylair.readonly, flush=True)
    sys.stdin.readline()
    print(pylair.n_clients, pylair.n_commands, flush=True)
    sys.stdin.read()
    """
    program = home.wrap([python, script(home, code)], PYTHONPATH=INSTALLED)
    assert program.line() == "True True wanted True"
    visit = home.visit("wanted")
    assert len(home.entries()) == 1 and visit.hello["app"]["readonly"] is True
    assert visit.status()["registered"] == ["main", "mine"]
    visit.ask("inspect", path="mine", client="c")
    program.tell()
    assert program.line() == "1 1"
    assert visit.ask("detach")[0]["ok"] and visit.is_over()
    assert program.end() == (0, "", "")


def test_multiprocessing_by_spawn_shows_the_main_of_the_child(python, home):
    code = """
    import multiprocessing, sys

    def work(gate):
        gate.wait(30)

    if __name__ == "__main__":
        context = multiprocessing.get_context("spawn")
        gate = context.Event()
        child = context.Process(target=work, args=(gate,))
        child.start()
        print(child.pid, flush=True)
        sys.stdin.read()
        gate.set()
        child.join()
        print(child.exitcode)
    """
    program = home.wrap([python, script(home, code)])
    pid = int(program.line())
    visit = home.visit(pid=pid)
    assert visit.hello["app"]["parent"] == "shop"
    wait_for(lambda: visit.run("main.work.__name__").get("result") == "'work'")
    # The process that only keeps count of shared things is no app.
    assert {entry["pid"] for entry in home.entries()} == {program.pid, pid}
    visit.close()
    assert program.end() == (0, "0\n", "")


def test_a_program_that_executes_itself_anew_is_one_app(python, home):
    code = """
    import os, sys
    if "again" not in sys.argv:
        os.execv(sys.executable, [sys.executable, __file__, "again"])
    print("ready", flush=True)
    sys.stdin.read()
    """
    program = home.wrap([python, script(home, code)])
    assert program.line() == "ready"
    entry = home.entry("shop/shop", pid=program.pid)
    assert entry["argv"][1:] == ["again"] and len(home.entries()) == 1
    assert Visit(entry["endpoint"]).ask("ping")[0]["ok"]
    assert program.end() == (0, "", "")


def test_detach_leaves_nothing_and_children_are_left_alone(python, home):
    code = """
    import os, subprocess, sys, threading
    print("ready", flush=True)
    sys.stdin.readline()
    while len(os.listdir("/proc/self/task")) > 1:
        threading.Event().wait(0.01)
    print([name for name in sys.modules if "pylair" in name], [f for f in sys.meta_path if "Memory" in type(f).__name__], flush=True)
    subprocess.run([sys.executable, "-c", "import sys; print([name for name in sys.modules if 'pylair' in name])"])
    """
    program = home.wrap([python, script(home, code)])
    assert program.line() == "ready"
    assert home.visit("shop").ask("detach")[0]["ok"]
    wait_for(lambda: list(home.apps.iterdir()) == [])
    program.tell()
    assert program.end() == (0, "[] []\n[]\n", "")
