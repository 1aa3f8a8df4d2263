"""A plain script: answers each line of its input."""

import sys

from shop import picture, prepared, stock


def main():
    print("open", flush=True)
    for line in sys.stdin:
        print(stock.answer(line.strip()), flush=True)
    print("closed", flush=True)


if prepared():
    import pylair

    pylair.register("stock", stock)
    pylair.set_screenshot_fn(picture)
    pylair.start(app_id="shop")

if __name__ == "__main__":
    main()
