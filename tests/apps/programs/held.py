"""A threaded program whose main thread takes calls between two lines of its input, and has none while it works on one."""

import queue
import sys
import threading

import pylair

todo = queue.Queue()
ran = []


def on_main_thread(function):
    done = threading.Event()
    todo.put(lambda: (function(), done.set()))
    done.wait()


pylair.register("ran", ran)
pylair.set_main_thread_invoker(on_main_thread)
pylair.start(app_id="held")
print("open", flush=True)
for _ in sys.stdin:
    while not todo.empty():
        todo.get()()
    print("ran", ran, flush=True)
