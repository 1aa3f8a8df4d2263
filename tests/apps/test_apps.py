"""Real programs, each looked into, changed, heard and seen through MCP, whichever way pylair came in."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from home import Home

from running import SHOPS, WAYS, Game, Gunicorn, Service, Shop, Uvicorn
from visitor import Visitor, visiting

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n"


async def enter(visitor: Visitor, shop: Shop, way: str) -> Visitor:
    """A visitor who has the shop's stock under the name `stock`."""
    pid = shop.serving_pid()
    if way == "attach":
        answer = await visitor.client.call("attach", pid=pid)
        assert not answer.is_error, answer.text
        assert answer.data["pid"] == pid
    with anyio.fail_after(20):
        # A process that was forked is served a moment later.
        while pid not in [app["pid"] for app in await visitor.apps()]:
            await anyio.sleep(0.02)
    inside = visitor.to(f"pid:{pid}")
    if way != "start":
        # Nothing was registered but `main`, which is the server in some of them.
        assert (await inside.run("from shop import stock"))["outcome"] == "ok"
    return inside


def ask(shop: Shop, visitor: Visitor, who: str) -> str:
    if isinstance(shop, Gunicorn):
        return shop.ask_worker(int(str(visitor.target).partition(":")[2]), who)
    return shop.ask(who)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SHOPS, ids=lambda kind: kind.kind)
async def test_a_shop(home: Home, run: Any, kind: type[Shop], way: str) -> None:
    shop = run(kind, way if way != "attach" else None)
    async with visiting(home) as visitor:
        inside = await enter(visitor, shop, way)
        await is_listed(inside, shop, way)
        await is_inspected(inside)
        await is_changed(inside, shop)
        await is_unharmed_by_exceptions(inside, shop)
        await is_heard(inside, shop)
        await is_seen(inside, way)
        await runs_calls_where_it_wants(inside, shop, way)
        assert ask(shop, inside, "eve").startswith("good day eve, 10 pieces")
        assert shop.leave() == kind.ending[1], "".join(shop.lines)
    assert "Traceback" not in "".join(shop.lines), "".join(shop.lines)


async def is_listed(inside: Visitor, shop: Shop, way: str) -> None:
    apps = {f"pid:{app['pid']}": app for app in await inside.apps()}
    app = apps[str(inside.target)]
    names = {
        "start": "shop",
        "attach": shop.command[1] if shop.command[0] == "-m" else shop.kind,
        "wrap": shop.command[1] if shop.command[0] == "-m" else shop.kind,
    }
    expected = names[way]
    if isinstance(shop, Gunicorn) and way == "wrap":
        expected += f"/{app['pid']}"
    assert app["id"] == expected, apps
    assert (await inside.to(f"app:{app['id']}@{app['pid']}").value("stock.greeting")) == "'hello'"


async def is_inspected(inside: Visitor) -> None:
    assert "stock" in (await inside.ask("inspect")).text
    found = await inside.data("inspect", path="stock", depth=2)
    attributes = {node["name"]: node for node in found["attributes"]}
    assert attributes["greeting"]["preview"] == "'hello'"
    assert {node["key"]: node["preview"] for node in attributes["items"]["items"]} == {"'apples'": "3", "'pears'": "5"}
    assert found["properties"] == ["total"], "shown but not run"
    assert (await inside.data("inspect", path="stock.items['pears']"))["preview"] == "5"
    source = await inside.data("read_source", path="stock.add")
    assert source["file"].endswith("programs/shop.py") and "More of something." in source["source"]
    assert "no_such" in await inside.refused("inspect", path="stock.oranges")


async def is_changed(inside: Visitor, shop: Shop) -> None:
    assert ask(shop, inside, "ann").startswith("hello ann, 8 pieces")
    await inside.done("set_variable", path="stock.greeting", value="good day")
    assert "7" in await inside.done("call", path="stock.add", args=["pears", 2])
    outcome = await inside.run("before = stock.total\nprint('counted', before)\nbefore")
    assert (outcome["result"], outcome["stdout"].strip()) == ("10", "counted 10")
    assert await inside.value("before + 1") == "11", "names stay"
    assert ask(shop, inside, "bob").startswith("good day bob, 10 pieces")
    assert not any("counted" in line for line in shop.lines), "what a call prints is the caller's"


async def is_unharmed_by_exceptions(inside: Visitor, shop: Shop) -> None:
    for code, error in (
        ("stock.lose('pears')", "LookupError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ):
        outcome = await inside.run(code)
        assert error in str(outcome["error"]), outcome
    called = await inside.ask("call", path="stock.lose", args=["pears"])
    assert "no pears to lose" in called.text
    assert "SyntaxError" in str((await inside.run("stock.("))["error"])
    assert ask(shop, inside, "cat").startswith("good day cat")


async def is_heard(inside: Visitor, shop: Shop) -> None:
    told = await inside.data("read_logs", logger="shop")
    messages = [entry["message"] for entry in told["entries"]]
    assert "cat was here" in messages
    assert {entry["level"] for entry in told["entries"]} == {"WARNING"}
    last = told["last_id"]
    heard: dict[str, Any] = {}

    async def follow() -> None:
        heard.update(await inside.data("read_logs", logger="shop", after_id=last, wait_s=20))

    async with anyio.create_task_group() as group:
        group.start_soon(follow)
        await anyio.to_thread.run_sync(ask, shop, inside, "dan")
    assert heard["entries"][0]["message"] == "dan was here"
    assert (await inside.data("read_logs", level="ERROR", logger="shop"))["entries"] == []


async def is_seen(inside: Visitor, way: str) -> None:
    if way != "start":
        assert "set_screenshot_fn" in await inside.refused("screenshot")
        return
    (picture,) = await inside.pictures()
    assert picture.startswith(PNG)


async def runs_calls_where_it_wants(inside: Visitor, shop: Shop, way: str) -> None:
    where = "import threading\nthreading.current_thread() is threading.main_thread()"
    wants = way == "start" and isinstance(shop, (Game, Service, Uvicorn))
    assert await inside.value(where) == str(wants)
    if way == "start" and isinstance(shop, (Service, Uvicorn)):
        assert await inside.value("import asyncio\nawait asyncio.sleep(0, 'awaited')") == "'awaited'"
        assert await inside.value("asyncio.get_running_loop().is_running()") == "True"


async def test_gunicorn_workers_are_instances_of_one_app(home: Home, run: Any) -> None:
    shop = run(Gunicorn, "start")
    async with visiting(home) as visitor:
        for worker in shop.workers:
            shop.ask_worker(worker, "ann")
        apps = await visitor.apps()
        assert sorted(app["pid"] for app in apps) == sorted(shop.workers)
        assert {app["id"] for app in apps} == {"shop"}
        told = await visitor.to("app:shop").refused("inspect", path="stock.greeting")
        assert all(str(worker) in told for worker in shop.workers), told
        one, other = shop.workers
        await visitor.to(f"app:shop@{one}").done("set_variable", path="stock.greeting", value="servus")
    assert shop.ask_worker(one, "ann").startswith("servus")
    assert shop.ask_worker(other, "ann").startswith("hello")


async def test_a_picture_shows_what_a_call_changed_on_the_main_thread(home: Home, run: Any) -> None:
    run(Game, "start")
    async with visiting(home, "app:shop") as visitor:
        (before,) = await visitor.pictures()
        assert await visitor.value("screen.get_at((1, 1))[1]") == "80"
        await visitor.done("call", path="stock.add", args=["plums"])
        # The next frame of the loop has drawn it when the loop takes the next call but one.
        await visitor.value("1")
        (after,) = await visitor.pictures()
    assert before != after and after.startswith(PNG)
