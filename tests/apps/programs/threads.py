"""Several threads that share the work; the main one hands it out."""

import queue
import sys
import threading

from shop import picture, prepared, stock

orders = queue.Queue()
answers = queue.Queue()


def serve():
    while True:
        who = orders.get()
        if who is None:
            return
        answers.put(stock.answer(who))


def main():
    servants = [threading.Thread(target=serve, name=f"servant-{number}") for number in range(3)]
    for servant in servants:
        servant.start()
    print("open", flush=True)
    for line in sys.stdin:
        orders.put(line.strip())
        print(answers.get(), flush=True)
    for _ in servants:
        orders.put(None)
    for servant in servants:
        servant.join()
    print("closed", flush=True)


if prepared():
    import pylair

    pylair.register("stock", stock)
    pylair.set_screenshot_fn(picture)
    pylair.start(app_id="shop")

if __name__ == "__main__":
    main()
