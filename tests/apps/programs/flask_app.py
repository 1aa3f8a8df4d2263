"""A web app, for Flask's own server and for gunicorn."""

from flask import Flask, request
from shop import picture, prepared, stock

app = Flask(__name__)


@app.get("/")
def index():
    return stock.answer(request.args["who"])


if prepared():
    import pylair

    pylair.register("app", app)
    pylair.register("stock", stock)
    pylair.set_screenshot_fn(picture)
    pylair.start(app_id="shop")
