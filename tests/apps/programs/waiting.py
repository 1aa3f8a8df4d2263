"""A service on an asyncio loop that knows nothing of pylair. Its event is made at import; who is asked to wait waits for it on the loop."""

import asyncio
import logging
import os
import sys

logger = logging.getLogger("waiting")
event = asyncio.Event() if sys.version_info >= (3, 10) else None
waits = 0


async def serve(reader, writer):
    global waits
    async for line in reader:
        who = line.decode().strip()
        logger.warning("%s was here", who)
        try:
            await asyncio.wait_for(event.wait(), 0.01)
            waited = "woken"
        except asyncio.TimeoutError:
            waited = "waited"
        waits += 1
        writer.write(f"hello {who}, {waited}, from {os.getpid()}\n".encode())
    writer.close()


async def main():
    global event
    event = event or asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print("open on port", server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
