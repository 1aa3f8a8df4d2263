"""The official Python SDK against the built binary: both doors, both eras of the protocol."""

from __future__ import annotations

import logging
import time

import anyio
import pytest

from home import TIMEOUT, Home
from sdk import ERAS, LEGACY, MODERN, Client, ProtocolError, connect

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("era", ERAS),
    pytest.mark.parametrize("door", ["stdio", "http"]),
]


@pytest.fixture(autouse=True)
def served(home: Home, door: str) -> None:
    if door == "http":
        home.serve()


def keeps_sessions(door: str, era: str) -> bool:
    """Only stateless HTTP has no default session: every request without a target opens one."""
    return (door, era) != ("http", MODERN)


async def target_of(client: Client, door: str, era: str) -> dict:
    """Arguments that make calls go to one session."""
    if keeps_sessions(door, era):
        return {}
    opened = await client.call("open_session")
    return {"target": opened.data["name"]}


async def test_tools_are_listed_with_schemas_and_annotations(home: Home, door: str, era: str) -> None:
    async with connect(home, door, era) as client:
        assert client.protocol == era
        tools = await client.tools()
    assert {"execute", "get_job", "interrupt", "open_session", "close_session", "list_targets"} <= set(tools)
    for tool in tools.values():
        schema = tool.inputSchema if era == LEGACY and hasattr(tool, "inputSchema") else tool.input_schema
        assert schema["type"] == "object"
        assert tool.description
        assert tool.annotations is not None


async def test_variables_live_from_call_to_call(home: Home, door: str, era: str) -> None:
    async with connect(home, door, era) as client:
        target = await target_of(client, door, era)
        assert not (await client.call("execute", code="x = 20\nprint('set')", **target)).is_error
        answer = await client.call("execute", code="x * 2 + 2", **target)
    assert "Out[2]: 42" in answer.text
    # Clients that see structured content drop the text.
    assert answer.data is None


async def test_stateless_http_returns_a_fresh_session(home: Home, door: str, era: str) -> None:
    async with connect(home, door, era) as client:
        first = await client.execute("x = 1")
        second = await client.execute("'x' in globals()")
        assert second["result"] == str(keeps_sessions(door, era))
        assert (first["session"] == second["session"]) == keeps_sessions(door, era)
        again = await client.execute("x", target=first["session"])
    assert again["result"] == "1"


async def test_an_exception_is_a_result(home: Home, door: str, era: str) -> None:
    async with connect(home, door, era) as client:
        target = await target_of(client, door, era)
        report = await client.execute("print('before')\n1 / 0", **target)
        assert report["outcome"] == "raised"
        assert report["stdout"] == "before\n"
        assert report["error"]["type"] == "ZeroDivisionError"
        assert report["error"]["line"] == 2
        text = await client.call("execute", code="1 / 0", **target)
    assert not text.is_error
    assert "ZeroDivisionError: division by zero" in text.text


async def test_the_structured_form_has_everything(home: Home, door: str, era: str) -> None:
    async with connect(home, door, era) as client:
        report = await client.execute("import sys\nprint('out')\nprint('err', file=sys.stderr)\ny = 3\ny + 1")
    assert (report["outcome"], report["cell"], report["result"]) == ("ok", 1, "4")
    assert (report["stdout"], report["stderr"], report["error"]) == ("out\n", "err\n", None)
    assert "y" in report["variables"]["new"]
    assert not report["truncated"]
    assert {"session", "job", "displays", "duration_ms", "cpu_ms", "rss_mb", "notes"} <= set(report)


async def test_progress_comes_while_the_cell_runs(home: Home, door: str, era: str) -> None:
    seen: list[str] = []
    code = "import time\nfor step in range(4):\n    print('step', step)\n    time.sleep(0.3)\n'end'"
    async with connect(home, door, era) as client:
        answer = await client.call("execute", on_progress=seen.append, code=code)
    assert "'end'" in answer.text
    assert any("step 0" in message for message in seen), seen
    assert not any("step 0" in message and "step 3" in message for message in seen), seen


async def test_cancelling_the_request_interrupts_the_cell(home: Home, door: str, era: str) -> None:
    async with connect(home, door, era) as client:
        name = (await client.call("open_session")).data["name"]
        started = anyio.Event()
        code = "import time\nx = 1\nprint('running', flush=True)\ntime.sleep(600)"

        async def run() -> None:
            await client.call("execute", lambda _: started.set(), code=code, target=name)

        with anyio.fail_after(TIMEOUT):
            async with anyio.create_task_group() as group:
                group.start_soon(run)
                await started.wait()
                group.cancel_scope.cancel()
            while (await client.call("get_status", target=name)).data["session"]["state"] == "busy":
                await anyio.sleep(0.02)
        assert (await client.execute("x", target=name))["result"] == "1"


async def test_a_slow_cell_answers_running_and_goes_on_as_a_job(home: Home, door: str, era: str) -> None:
    async with connect(home, door, era) as client:
        code = "import time\nprint('first', flush=True)\ntime.sleep(0.8)\nprint('then')\n7"
        began = time.monotonic()
        report = await client.execute(code, wait_s=0.3)
        assert time.monotonic() - began < 5
        assert (report["outcome"], report["stdout"]) == ("running", "first\n")
        behind = await client.execute("'behind'", target=report["session"])
        assert behind["result"] == "'behind'"
        assert any(note.startswith("waited ") and note.endswith(" s for cell 1") for note in behind["notes"]), behind["notes"]
        done = await client.call("get_job", job=report["job"], output="json")
    assert (done.data["outcome"], done.data["result"], done.data["stdout"]) == ("ok", "7", "first\nthen\n")


async def test_calls_of_one_client_to_one_session_wait_for_each_other(home: Home, door: str, era: str) -> None:
    async with connect(home, door, era) as client:
        target = await target_of(client, door, era)
        answers = []

        async def append(number: int) -> None:
            code = f"import time\nseen = [*globals().get('seen', ()), {number}]\ntime.sleep(0.02)"
            answers.append(await client.execute(code, **target))

        with anyio.fail_after(TIMEOUT):
            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(append, number)
        seen = (await client.execute("seen", **target))["result"]
    assert [answer["outcome"] for answer in answers] == ["ok"] * 8
    if door == "stdio":
        assert seen == str(list(range(8)))
    else:
        # Each call is on a connection of its own: they come as the network brings them, and each runs once.
        assert sorted(map(int, seen.strip("[]").split(","))) == list(range(8))


async def test_nothing_is_logged_when_a_client_closes(home: Home, door: str, era: str, caplog: pytest.LogCaptureFixture) -> None:
    async with connect(home, door, era) as client:
        await client.execute("1")
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == []


async def test_long_output_is_cut_and_read_in_pages(home: Home, door: str, era: str) -> None:
    lines = "".join(f"line {number}\n" for number in range(60_000))
    async with connect(home, door, era) as client:
        report = await client.execute("for number in range(60_000):\n    print('line', number)")
        assert report["truncated"]
        assert len(report["stdout"]) < 26_000
        assert report["stdout"].startswith("line 0\n")
        assert "line 59999\n" in report["stdout"]
        uri = f"pylair://output/{report['job']}"
        assert uri in await client.resources()
        pages = []
        page_uri = uri
        while page_uri:
            text, more, rest = (await client.read(page_uri)).partition("\n[more: read ")
            pages.append(text)
            page_uri = rest.rstrip("]") if more else ""
        assert len(pages) > 2
        assert "".join(pages) == lines
        assert (await client.read(f"{uri}?offset=0&limit=7")).startswith("line 0\n")
        with pytest.raises(ProtocolError):
            await client.read("pylair://output/nothing-1")


async def test_sessions_open_are_listed_and_close(home: Home, door: str, era: str) -> None:
    async with connect(home, door, era) as client:
        opened = await client.call("open_session", name="work", description="mine")
        assert (opened.data["name"], opened.is_error) == ("work", False)
        assert (await client.execute("z = 5", target="work"))["session"] == "work"
        listed = (await client.call("list_targets")).data["sessions"]
        assert [session["name"] for session in listed] == ["work"]
        closed = await client.call("close_session", target="work")
        assert closed.data == {"closed": "work"}
        gone = await client.call("execute", code="z", target="work")
    assert gone.is_error


async def test_mistakes_are_told_with_a_hint(home: Home, door: str, era: str) -> None:
    async with connect(home, door, era) as client:
        unknown = await client.call("execute", code="1", target="nobody")
        assert unknown.is_error
        assert unknown.data["kind"] == "unknown_session"
        assert "nobody" in unknown.data["message"]
        assert unknown.data["hint"]
        wrong = await client.call("execute", source="1")
        assert wrong.is_error
        assert wrong.data["kind"] == "bad_argument"
        with pytest.raises(ProtocolError, match="no tool"):
            await client.call("exec", code="1")
        assert (await client.execute("1 + 1"))["result"] == "2"
