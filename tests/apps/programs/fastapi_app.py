"""An asynchronous web app, for uvicorn. Its calls run on its event loop."""

import asyncio
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from shop import picture, prepared, stock


@asynccontextmanager
async def lifespan(app):
    if prepared():
        import pylair

        pylair.register("app", app)
        pylair.register("stock", stock)
        pylair.set_screenshot_fn(picture)
        pylair.start(app_id="shop", loop=asyncio.get_running_loop())
    yield


app = FastAPI(lifespan=lifespan)


@app.get("/", response_class=PlainTextResponse)
async def index(who: str):
    return stock.answer(who)
