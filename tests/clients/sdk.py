"""The Python MCP SDK as a client, in one shape for its second and its first major version."""

from __future__ import annotations

import base64
import contextlib
from importlib.metadata import version
from typing import Any, AsyncIterator, Callable, NamedTuple

import anyio
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from home import BINARY, TIMEOUT, Home

LEGACY, MODERN = "2025-11-25", "2026-07-28"
IS_OLD = version("mcp").startswith("1.")
ERAS = [LEGACY] if IS_OLD else [LEGACY, MODERN]

if IS_OLD:
    import httpx
    from mcp import ClientSession, types
    from mcp.shared.exceptions import McpError as ProtocolError
else:
    import httpx2 as httpx
    from mcp import Client as SdkClient
    from mcp.shared.exceptions import MCPError as ProtocolError

__all__ = ["ERAS", "IS_OLD", "LEGACY", "MODERN", "Client", "ProtocolError", "Result", "connect"]


class Result(NamedTuple):
    text: str
    data: Any
    is_error: bool
    pictures: tuple[bytes, ...] = ()


class Client:
    def __init__(self, session: Any, protocol: str) -> None:
        self.session = session
        self.protocol = protocol

    async def call(self, tool: str, on_progress: Callable[[str], None] | None = None, **arguments: Any) -> Result:
        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            assert on_progress is not None
            on_progress(message or "")

        callback = progressed if on_progress else None
        request = self.session._request_id if IS_OLD else None
        try:
            result = await self.session.call_tool(tool, arguments, progress_callback=callback)
        except anyio.get_cancelled_exc_class():
            # The second version of the SDK says that it cancels, the first leaves it to its user.
            if IS_OLD:
                params = types.CancelledNotificationParams(requestId=request, reason="the test wants it")
                with anyio.CancelScope(shield=True):
                    cancelled = types.CancelledNotification(params=params)
                    await self.session.send_notification(types.ClientNotification(cancelled))
            raise
        text = "".join(block.text for block in result.content if block.type == "text")
        pictures = tuple(base64.b64decode(block.data) for block in result.content if block.type == "image")
        if IS_OLD:
            return Result(text, result.structuredContent, result.isError, pictures)
        return Result(text, result.structured_content, bool(result.is_error), pictures)

    async def execute(self, code: str, **arguments: Any) -> dict[str, Any]:
        """Runs a cell and returns its structured outcome."""
        result = await self.call("execute", code=code, output="json", **arguments)
        assert not result.is_error, result.text
        return result.data

    async def tools(self) -> dict[str, Any]:
        return {tool.name: tool for tool in (await self.session.list_tools()).tools}

    async def resources(self) -> list[str]:
        return [str(resource.uri) for resource in (await self.session.list_resources()).resources]

    async def read(self, uri: str) -> str:
        (contents,) = (await self.session.read_resource(uri)).contents
        return contents.text


@contextlib.asynccontextmanager
async def connect(
    home: Home, door: str, era: str, token: str | None = None, flags: tuple[str, ...] = (), verify: Any = True
) -> AsyncIterator[Client]:
    """A client over `stdio` or `http`; `home.serve()` comes first for the latter."""
    async with contextlib.AsyncExitStack() as stack:
        if door == "stdio":
            transport: Any = stdio_client(StdioServerParameters(command=BINARY, args=["mcp", *flags], env=home.env))
        else:
            headers = {"Authorization": f"Bearer {home.token if token is None else token}"}
            http = await stack.enter_async_context(httpx.AsyncClient(headers=headers, timeout=TIMEOUT, verify=verify))
            transport = streamable_http_client(home.url, http_client=http)
        if IS_OLD:
            read, write, *_ = await stack.enter_async_context(transport)
            session = await stack.enter_async_context(ClientSession(read, write))
            protocol = (await session.initialize()).protocolVersion
        else:
            mode = "legacy" if era == LEGACY else era
            session = await stack.enter_async_context(SdkClient(transport, mode=mode, cache=None))
            protocol = session.protocol_version
        yield Client(session, protocol)
