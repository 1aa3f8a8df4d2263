"""Apps that end, start again, stop answering or let nobody change anything; and several who visit them."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import anyio
import pytest
from home import Home
from sdk import LEGACY, connect

from running import FlaskServer, Program, Script, Threads
from visitor import Visitor, visiting

pytestmark = pytest.mark.anyio


class Reloading(FlaskServer):
    command = ("-m", "flask", "--app", "flask_app", "run", "--debug", "--port", "0")


async def test_an_unknown_app_is_answered_with_what_is_running(home: Home, run: Any) -> None:
    async with visiting(home) as visitor:
        assert await visitor.apps() == []
        assert "no app" in await visitor.to("app:shop").refused("inspect", path="stock")
        first, second = run(Script, "start"), run(Threads, "wrap")
        told = await visitor.to("app:shoe").refused("inspect", path="stock")
        assert all(word in told for word in ("shoe", "shop", "threads", str(first.pid), str(second.pid))), told


async def test_one_of_two_instances_has_to_be_chosen(home: Home, run: Any) -> None:
    one, other = run(Script, "start"), run(Script, "start")
    async with visiting(home, "app:shop") as visitor:
        told = await visitor.refused("set_variable", path="stock.greeting", value="servus")
        assert str(one.pid) in told and str(other.pid) in told, told
        await visitor.to(f"app:shop@{one.pid}").done("set_variable", path="stock.greeting", value="servus")
        assert one.ask("ann").startswith("servus") and other.ask("ann").startswith("hello")
        other.end()
        assert await visitor.value("stock.greeting") == "'servus'", "now there is one"


async def test_an_app_that_dies_in_a_call_is_reported(home: Home, run: Any) -> None:
    shop = run(Script, "start")
    async with visiting(home, "app:shop") as visitor:
        answer = await visitor.ask("execute", code="import os\nos._exit(3)")
        assert "ended" in answer.text or "died" in answer.text, answer.text
        assert shop.process.wait(10) == 3
        assert await visitor.apps() == []


async def test_an_app_that_is_killed_in_a_call_is_reported(home: Home, run: Any) -> None:
    shop = run(Script, "start")
    async with visiting(home, "app:shop") as visitor:
        await visitor.run("import threading, time\nasleep = threading.Event()")
        answers: list[str] = []

        async def sleep() -> None:
            answers.append((await visitor.ask("execute", code="asleep.set()\ntime.sleep(60)")).text)

        async with anyio.create_task_group() as group:
            group.start_soon(sleep)
            assert await visitor.value("asleep.wait(30)") == "True"
            shop.signal(signal.SIGKILL)
        assert "ended" in answers[0] or "died" in answers[0], answers
        assert "no app" in await visitor.refused("inspect")


async def test_an_app_that_starts_again_is_told(home: Home, run: Any) -> None:
    # A supervisor as simple as they come.
    program = run(Program, ["sh", "-c", f"while ! {sys.executable} script.py; do :; done"], "start")
    program.wait_for("^open")
    async with visiting(home, "app:shop") as visitor:
        (first,) = await visitor.apps()
        answer = await visitor.done("execute", code="import os\nos._exit(3)")
        assert f"process {first['pid']}" in answer and "code 3" in answer, answer
        program.wait_for("^open")
        assert await visitor.value("stock.greeting") == "'hello'"
        (second,) = await visitor.apps()
        assert second["pid"] != first["pid"]
        # Not by a call this time.
        os.kill(second["pid"], signal.SIGTERM)
        program.wait_for("^open")
        answer = await visitor.done("execute", code="stock.greeting")
        (third,) = await visitor.apps()
        assert f"`shop` is now process {third['pid']}" in answer and str(second["pid"]) in answer, answer
    assert program.end() == 0


async def test_a_development_server_that_reloads_is_told(home: Home, run: Any) -> None:
    """Flask's reloader starts its child again when that exits with 3, which it does when a file has changed."""
    shop = run(Reloading, "wrap")
    async with visiting(home) as visitor:
        first = shop.serving_pid()
        (name,) = [app["id"] for app in await visitor.apps() if app["pid"] == first]
        assert name == "flask/flask"
        inside = visitor.to(f"app:{name}")
        await inside.run("from shop import stock\nstock.greeting = 'servus'")
        assert shop.ask("ann").startswith("servus")
        answer = await inside.done("execute", code="import os\nos._exit(3)")
        assert f"process {first}" in answer, answer
        shop.wait_for("Debugger PIN|Restarting with stat")
        shop.wait_for("Debugger is active")
        assert shop.ask("ann").startswith("hello") and shop.serving_pid() != first
        assert await inside.value("'stock' in dir()") == "False", "another process, without what was known in the last"


async def test_an_app_that_is_stopped_is_busy_and_comes_back(home: Home, run: Any) -> None:
    shop = run(Script, "start")
    async with visiting(home, "app:shop") as visitor:
        await visitor.value("stock.greeting")
        shop.signal(signal.SIGSTOP)
        (app,) = await visitor.apps()
        assert app["pid"] == shop.pid, "it is never dropped"
        sent = await visitor.data("execute", code="stock.add('figs')", wait_s=1, output="json")
        shop.signal(signal.SIGCONT)
        assert sent["outcome"] == "running", sent
        assert shop.ask("ann").startswith("hello ann")
        await Visitor(visitor.client).done("get_job", job=sent["job"], wait_s=60)
        # It was sent once.
        assert await visitor.value("stock.items['figs']") == "1"


async def test_a_call_that_outlives_its_time_keeps_running_and_is_named(home: Home, run: Any) -> None:
    shop = run(Script, "start")
    async with visiting(home, "app:shop") as visitor:
        await visitor.run("import threading\ngo = threading.Event()")
        answer = await visitor.ask("execute", code="go.wait()\nstock.add('figs')", wait_s=0.2)
        assert "running" in answer.text and not answer.is_error, answer.text
        await visitor.run("go.set()")
        while await visitor.value("stock.items.get('figs')") != "1":
            await anyio.sleep(0.01)
        assert "10" not in shop.ask("ann").split(",")[1] and "9 pieces" in shop.ask("ann")


async def test_readonly_lets_look_and_nothing_else(home: Home, run: Any) -> None:
    shop = run(Script, "wrap", ("--readonly",))
    async with visiting(home, "app:script") as visitor:
        assert (await visitor.data("inspect", path="main.stock.items['pears']"))["preview"] == "5"
        assert "total" in (await visitor.data("inspect", path="main.stock"))["properties"]
        for tool, arguments in [
            ("execute", {"code": "main.stock.items.clear()"}),
            ("call", {"path": "main.stock.items.clear"}),
            ("set_variable", {"path": "main.stock.greeting", "value": "x"}),
            ("inspect", {"path": "main.stock.items.clear()"}),
            ("inspect", {"path": "main.stock.total"}),
            ("screenshot", {"code": "1"}),
        ]:
            await visitor.refused(tool, **arguments)
        assert (await visitor.data("read_logs"))["entries"] == []
    assert shop.ask("ann").startswith("hello ann, 8 pieces")
    async with visiting(home, "app:script", "--readonly") as visitor:
        tools = await visitor.client.tools()
        assert not {"execute", "call", "set_variable", "attach"} & set(tools), sorted(tools)


async def test_names_belong_to_the_client_that_made_them(home: Home, run: Any) -> None:
    run(Script, "start")
    home.serve()
    async with visiting(home, "app:shop") as one, connect(home, "http", LEGACY) as client:
        other = Visitor(client, "app:shop")
        await one.run("mine = 1")
        await other.run("mine = 2")
        assert (await one.value("mine"), await other.value("mine")) == ("1", "2")
        assert await one.value("'mine' in vars(__import__('__main__'))") == "False"


async def test_dumping_stacks_shows_threads_with_what_they_hold(home: Home, run: Any) -> None:
    run(Threads, "start")
    async with visiting(home, "app:shop") as visitor:
        told = (await visitor.ask("dump_stacks")).text
    assert all(word in told for word in ("MainThread", "servant-0", "servant-2", "threads.py", "serve")), told


async def test_an_app_of_a_dead_daemon_is_found_by_the_next(home: Home, run: Any) -> None:
    run(Script, "start")
    async with visiting(home, "app:shop") as visitor:
        await visitor.run("stock.greeting = 'servus'")
    assert home.run("stop").returncode == 0
    assert os.listdir(home.path / "runtime/apps"), "the app is nobody's child"
    async with visiting(home, "app:shop") as visitor:
        assert await visitor.value("stock.greeting") == "'servus'"
