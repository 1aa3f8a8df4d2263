"""What all these programs are about: something to look at, to change, to hear of and to see. Each shows it in its own way."""

import logging
import os
import struct
import zlib

logger = logging.getLogger("shop")


class Stock:
    def __init__(self):
        self.greeting = "hello"
        self.items = {"apples": 3, "pears": 5}
        self.asked = 0

    @property
    def total(self):
        return sum(self.items.values())

    def add(self, name, count=1):
        """More of something."""
        self.items[name] = self.items.get(name, 0) + count
        return self.items[name]

    def lose(self, name):
        raise LookupError(f"no {name} to lose")

    def answer(self, who):
        """What a visitor of the shop is told."""
        self.asked += 1
        logger.warning("%s was here", who)
        return f"{self.greeting} {who}, {self.total} pieces, from {os.getpid()}"


def picture(red=200, width=8, height=6):
    """A small PNG of one colour."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = b"\0" + bytes((red, 0, 0)) * width
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row * height)) + chunk(b"IEND", b"")


def prepared():
    """Whether this run of a program lets pylair in by itself."""
    return "SHOP_IS_OPEN" in os.environ


stock = Stock()
