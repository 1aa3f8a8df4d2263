"""A pygame main loop, which no other thread may disturb: calls are handed to it by an invoker."""

import io
import queue
import sys
import threading

import pygame
from shop import prepared, stock

ORDER = pygame.event.custom_type()
calls = queue.Queue()


def listen():
    for line in sys.stdin:
        pygame.event.post(pygame.event.Event(ORDER, who=line.strip()))
    pygame.event.post(pygame.event.Event(pygame.QUIT))


def on_main_thread(function):
    """Runs a function in the loop and returns what it returned."""
    answers = queue.Queue()
    calls.put((function, answers))
    return answers.get()


def screenshot():
    picture = io.BytesIO()
    pygame.image.save(pygame.display.get_surface(), picture, "screen.png")
    return picture.getvalue()


def main():
    pygame.display.init()
    screen = pygame.display.set_mode((64, 48))
    clock = pygame.time.Clock()
    threading.Thread(target=listen, daemon=True).start()
    if prepared():
        import pylair

        pylair.register("stock", stock)
        pylair.register("screen", screen)
        pylair.set_main_thread_invoker(on_main_thread)
        pylair.set_screenshot_fn(screenshot)
        pylair.start(app_id="shop")
    print("open", flush=True)
    while True:
        while not calls.empty():
            function, answers = calls.get()
            # What is raised here would end the loop.
            answers.put(function())
        for event in pygame.event.get():
            if event.type == pygame.QUIT:
                print("closed", flush=True)
                return
            if event.type == ORDER:
                print(stock.answer(event.who), flush=True)
        screen.fill((0, 40 * len(stock.items) % 256, 0))
        pygame.display.flip()
        clock.tick(200)


if __name__ == "__main__":
    main()
