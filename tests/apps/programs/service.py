"""A service on an asyncio loop: answers each line that comes in on its socket. Its calls run on its loop."""

import asyncio
import signal

from shop import picture, prepared, stock


async def serve(reader, writer):
    async for line in reader:
        writer.write(stock.answer(line.decode().strip()).encode() + b"\n")
    writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    if prepared():
        import pylair

        pylair.register("stock", stock)
        pylair.set_screenshot_fn(picture)
        pylair.start(app_id="shop", loop=asyncio.get_running_loop())
    print("open on port", server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await ended.wait()
    print("closed", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
