import sys


def leave(code):
    sys.exit(code)


def test_exit():
    leave(3)


def test_interrupt():
    raise KeyboardInterrupt


def test_after():
    pass
