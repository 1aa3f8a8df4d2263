"""An MCP client that looks into one app."""

from __future__ import annotations

import contextlib
from typing import Any, AsyncIterator

from home import Home
from sdk import LEGACY, Client, Result, connect


class Visitor:
    """Calls of one client; they go to `target` unless told otherwise."""

    def __init__(self, client: Client, target: str | None = None) -> None:
        self.client = client
        self.target = target

    def to(self, target: str) -> Visitor:
        """The same client at another target."""
        return Visitor(self.client, target)

    async def ask(self, tool: str, **arguments: Any) -> Result:
        if self.target is not None:
            arguments.setdefault("target", self.target)
        return await self.client.call(tool, **arguments)

    async def data(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured answer of a call that works."""
        result = await self.ask(tool, **arguments)
        assert not result.is_error, (tool, arguments, result.text)
        assert result.data is not None, (tool, arguments, result.text)
        return result.data

    async def done(self, tool: str, **arguments: Any) -> str:
        """What a call that works says."""
        result = await self.ask(tool, **arguments)
        assert not result.is_error, (tool, arguments, result.text)
        return result.text

    async def refused(self, tool: str, **arguments: Any) -> str:
        """What a call that cannot be done says."""
        result = await self.ask(tool, **arguments)
        assert result.is_error, (tool, arguments, result.text)
        return result.text

    async def run(self, code: str) -> dict[str, Any]:
        """The outcome of a piece of code, which may be an exception."""
        return await self.data("execute", code=code, output="json")

    async def value(self, code: str) -> str:
        """The text of a value."""
        outcome = await self.run(code)
        assert outcome["outcome"] == "ok", outcome
        return outcome["result"]

    async def apps(self) -> list[dict[str, Any]]:
        answer = await self.client.call("list_targets", kind="app")
        assert not answer.is_error, answer.text
        return answer.data["apps"]

    async def pictures(self, **arguments: Any) -> list[bytes]:
        answer = await self.ask("screenshot", **arguments)
        assert not answer.is_error, answer.text
        return list(answer.pictures)


@contextlib.asynccontextmanager
async def visiting(home: Home, target: str | None = None, *flags: str) -> AsyncIterator[Visitor]:
    try:
        async with connect(home, "stdio", LEGACY, flags=flags) as client:
            yield Visitor(client, target)
    except Exception as error:
        # Each task group of the SDK wraps what a test raised once more.
        while len(getattr(error, "exceptions", ())) == 1:
            error = error.exceptions[0]
        raise error from None
