"""An agent loop with the Python MCP SDK: a model writes a cell, pylair runs it, the model reads the answer.

`think` stands in for the model, so that this runs without one. Its first cell has a mistake; the session and its variables
survive the exception, and the second cell goes on from there.
"""

from __future__ import annotations

import asyncio
import os

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

SERVER = StdioServerParameters(command="pylair", args=["mcp"], env=dict(os.environ))


def think(answers: list[str]) -> str | None:
    """Returns the next cell, or None when the task is done. Call your model here, with the answers so far."""
    if not answers:
        return "prices = {'tea': 3, 'coffee': 4}\nsum(price)"
    if "NameError" in answers[-1]:
        return "sum(prices.values())"
    return None


async def main() -> None:
    async with stdio_client(SERVER) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        answers: list[str] = []
        while (code := think(answers)) is not None:
            result = await session.call_tool("execute", {"code": code})
            answers.append("\n".join(block.text for block in result.content if block.type == "text"))
            print(f">>> {code}\n{answers[-1]}\n")


if __name__ == "__main__":
    asyncio.run(main())
