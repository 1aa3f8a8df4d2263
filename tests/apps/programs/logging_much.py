"""Logs whatever it is told to, at a level that its handler does not show. What it logs notices when it is asked for its text."""

import logging
import sys

asked = []


class Frame:
    """As costly to show as a table."""

    def __str__(self):
        asked.append("str")
        return "x" * 100_000

    __repr__ = __str__


frame = Frame()
handler = logging.StreamHandler(sys.stdout)
handler.setLevel(logging.WARNING)
logging.basicConfig(level=logging.DEBUG, handlers=[handler])
log = logging.getLogger("much")
print("open", flush=True)
for line in sys.stdin:
    count, _, what = line.strip().partition(" ")
    for number in range(int(count)):
        log.debug("%d %s", number, frame if what == "frame" else what * 20_000)
    print("logged", count, len(asked), flush=True)
