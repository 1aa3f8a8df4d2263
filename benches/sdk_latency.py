"""How long `execute("x+1")` takes through the Python MCP SDK over stdio. Prints microseconds as JSON."""

import asyncio
import json
import sys
import time

from home import Home
from sdk import LEGACY, connect


async def measure(home: Home, count: int) -> list:
    taken = []
    async with connect(home, "stdio", LEGACY) as client:
        await client.call("execute", code="x = 1")
        for _ in range(count + 20):
            began = time.perf_counter()
            await client.call("execute", code="x+1")
            taken.append((time.perf_counter() - began) * 1e6)
    return sorted(taken[20:])


home = Home({"PYLAIR_CHECKPOINTS": "off", "PYLAIR_PYTHON": sys.argv[2]})
try:
    taken = asyncio.run(measure(home, int(sys.argv[1])))
    print(json.dumps({"p50": taken[len(taken) // 2], "p99": taken[int((len(taken) - 1) * 0.99)]}))
finally:
    home.close()
