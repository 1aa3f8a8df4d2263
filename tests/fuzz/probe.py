"""Fuzzes what the probe reads from outside: frames of the wire, and paths to values.

Stdlib only, and runs on every Python we support. The same seed makes the same inputs, whatever the machine. What fails is made as small
as possible, printed and written to a file, which `--input` tries again.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import random
import sys
import time
import types
import warnings
from array import array
from pathlib import Path
from typing import Any, Callable

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "probe"))

from pylair import paths, wire  # noqa: E402

MAX_SECONDS = 1.0
MAX_LINES = 50_000
COUNTED_EVERY = 50


class Finding(AssertionError):
    """A promise that was not kept."""


class Ran(BaseException):
    """Code of the program was run."""


# Frames.


class FakeOs:
    """Stands in for `os` in `wire`: hands out one input in pieces."""

    def __init__(self, data: bytes, sizes: random.Random | None) -> None:
        self.data, self.at, self.sizes = data, 0, sizes

    def read(self, fd: int, size: int) -> bytes:
        if size > wire.MAX_BLOB_BYTES + wire.MAX_HEADER_BYTES + 4:
            raise Finding(f"a read of {size} bytes")
        if self.sizes is not None:
            size = min(size, self.sizes.choice([1, 1, 2, 3, 7, 64, 4096]))
        piece = self.data[self.at : self.at + size]
        self.at += len(piece)
        return piece


def frames_of(data: bytes, sizes: random.Random | None) -> list[Any]:
    """The frames in these bytes, and what is said about what is none."""
    real, wire.os = wire.os, FakeOs(data, sizes)  # type: ignore[assignment]
    reader, found = wire.FrameReader(0), []
    try:
        while True:
            frame = reader.read()
            if frame is None:
                return [*found, "end"]
            found.append(frame)
    except wire.Garbage as garbage:
        return [*found, str(garbage)]
    finally:
        wire.os = real


def try_frames(data: bytes) -> str:
    whole = frames_of(data, None)
    pieces = frames_of(data, random.Random(len(data)))
    if repr(whole) != repr(pieces):
        raise Finding(f"in one piece {whole!r:.300}, in pieces {pieces!r:.300}")
    for header, blob in whole[:-1]:
        header.pop("blob", None)
        again = frames_of(wire.encode_frame(dict(header), blob), None)
        if again[-1] != "end" or len(again) != 2 or again[0][1] != blob:
            raise Finding(f"a frame does not survive: {header!r:.300}, {again!r:.300}")
    return f"{len(whole)} {''.join(c for c in whole[-1] if c.isalpha())[:40]}"


def golden_frames() -> list[bytes]:
    return [bytes.fromhex(json.loads(path.read_text())["frame_hex"]) for path in sorted((ROOT / "tests/wire").glob("*.json"))]


ODD_VALUES = [None, True, -1, 0, 1 << 64, 1e308, "", "\ud800", "x" * 5000, [], {}, [[]] * 9, {"blob": 1}, wire.MAX_BLOB_BYTES + 1, 3.0, "3"]
ODD_TEXTS = [
    b"NaN",
    b"-Infinity",
    b"1e999",
    b'"\\ud800"',
    b"[" * 3000,
    b'{"a":' * 600,
    b"9" * 6000,
    b"\xff",
    b"\xef\xbb\xbf",
    b"\0",
    b" ",
    b",",
]
ODD_LENGTHS = [0, 1, 3, 4, 255, 1 << 16, 1 << 20, (1 << 20) + 1, 1 << 31, (1 << 32) - 1]


def mutate_frame(data: bytes, corpus: list[bytes], chance: random.Random) -> bytes:
    kind = chance.randrange(4)
    if kind == 0:
        return mutate_bytes(data, corpus, chance, ODD_TEXTS)
    size = int.from_bytes(data[:4], "big")
    text, blob = data[4 : 4 + size], data[4 + size :]
    if kind == 1:
        text = mutate_bytes(text, corpus, chance, ODD_TEXTS)
    elif kind == 2:
        try:
            header = json.loads(text)
            key = chance.choice([*header, "blob", "blob", "new"])
            header[key] = chance.choice([*ODD_VALUES, len(blob)])
            text = json.dumps(header).encode()
        except (ValueError, TypeError, IndexError, RecursionError):
            pass
    else:
        size = chance.choice(ODD_LENGTHS)
        return size.to_bytes(4, "big") + text + blob
    return len(text).to_bytes(4, "big") + text + blob


# Paths.

RAN: list[str] = []


def words(text: str) -> list[str]:
    return text.split()


_SPECIAL = words(
    """
    __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __bool__ __len__ __iter__ __next__ __contains__ __getitem__ __setitem__
    __getattr__ __getattribute__ __setattr__ __repr__ __str__ __format__ __bytes__ __index__ __int__ __float__ __call__ __dir__
    __instancecheck__ __subclasscheck__ __reduce__ __reduce_ex__ __sizeof__ __add__ __radd__ __neg__ __missing__ __length_hint__ __enter__
    __get__ __set__ __delete__ __copy__ __deepcopy__ __class_getitem__ __fspath__ __reversed__ __mro_entries__ __prepare__
    """
)


def trap(name: str) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        RAN.append(name)
        raise Ran(name)

    return run


def traps(*without: str) -> dict[str, Any]:
    return {name: trap(name) for name in _SPECIAL if name not in without}


def booby_trapped() -> dict[str, Any]:
    """A program's variables, most of which do harm when anything is asked of them."""
    meta = type("Meta", (type,), traps("__call__", "__prepare__", "__setattr__", "__set__", "__hash__", "__eq__"))
    # A dictionary that has the class for a key needs its hash when it is made; from then on it is a trap too.
    hostile = meta("Hostile", (), {**traps("__setattr__"), "__class__": property(trap("__class__")), "slot": property(trap("slot"))})
    value = object.__new__(hostile)
    object.__setattr__(value, "__dict__", {"inner": [1, 2], "value": value})
    key_class = type("Key", (str,), {"__hash__": str.__hash__, "__eq__": trap("Key.__eq__")})
    loud = {
        name: type(f"Loud{base.__name__}", (base,), traps("__setattr__", "__hash__", "__getattribute__")) for name, base in BASES.items()
    }
    module = types.ModuleType("loud")
    module.__dict__.update({"__getattr__": trap("module.__getattr__"), "there": 1})
    namespace: dict[str, Any] = {
        "__builtins__": __builtins__,
        "a": {"b": [{"c": (1, 2.5, None)}], 1: "one", (1, "x"): "tuple", "é": 0, None: 1},
        "rows": [{"name": "x", "n": number} for number in range(5)],
        "hostile": value,
        "Hostile": hostile,
        "mapping": dict.fromkeys([key_class("trap"), "plain"], value),
        "module": module,
        "text": "text",
        "raw": b"raw",
        "view": memoryview(bytearray(24)).cast("i", [2, 3]),
        "numbers": array("d", [1.0, 2.0]),
        "deque": collections.deque([1, [2]]),
        "default": collections.defaultdict(trap("default_factory")),
        "ordered": collections.OrderedDict(x=1),
        "proxy": types.MappingProxyType({"x": 1}),
        "chain": collections.ChainMap({"x": 1}),
        "span": range(10**30),
        "cls": int,
        "function": trap("function"),
        "method": [].append,
        "point": collections.namedtuple("Point", "x y")(1, 2),
        "frame": sys._getframe(),
        "many": {f"{'long_name_' * 15}{number}": number for number in range(100)},
        "loud": {name: cls.__new__(cls) for name, cls in loud.items()},
    }
    namespace["me"] = namespace
    return namespace


BASES: dict[str, type] = {
    "dict": dict,
    "list": list,
    "str": str,
    "int": int,
    "tuple": tuple,
    "deque": collections.deque,
    "exception": Exception,
}

PIECES = words(
    r"""
    a rows hostile Hostile mapping module text raw view numbers deque default ordered proxy chain span cls function method point frame
    many loud me int print __builtins__ .b .inner .value .name .__class__ .__dict__ .__mro__ .append .x .real .there .gone .nmae .f_locals
    .__annotations__ .__wrapped__ ["b"] ['name'] [0] [-1] [1:2] [::0] [::-1] [...] [1,'x'] [0,0] [0:1,0] [None] [True] [1.0] [1j] [a]
    [rows[0]['n']] [hostile] [mapping] ['trap'] ["dict"] ['list'] ['exception'] [b'x'] [99999999999999999999999] [-9e999] [0x7f] ['é']
    ["\n"] ["\ud800"] ['\N{DASH}'] ['\d'] () (1) [ ] ( ) { } . : , ; = := * ** + - ~ not await yield lambda: if else is in for f'{a}'
    f'{a!r:>{a}}' 'x''y' "" # \ @ 1 1_0 0777 1e5 0b1 ` $ ? ! ->
    """
)
PIECES += [" ", "\n", "\t", "\f", "\r", "\0", "é", "ﬁ", "ａ", "𝒶", "\u2028", "\ud800"]
STARTS = [
    "a['b'][0]['c']",
    "rows[-1].name",
    "hostile.inner[0]",
    "many['long']",
    "view[0, 0]",
    "a[(1, 'x')]",
    "loud['dict']['x']",
    "me['a']['b']",
    "mapping['trap']",
]


def mutate_path(data: bytes, corpus: list[bytes], chance: random.Random) -> bytes:
    text = data.decode("utf-8", "surrogatepass")
    kind = chance.randrange(6)
    at = chance.randrange(len(text) + 1)
    if kind == 0:
        return "".join(chance.choice(PIECES) for _ in range(chance.randrange(1, 8))).encode("utf-8", "surrogatepass")
    if kind == 1:
        text = text[:at] + chance.choice(PIECES) + text[at:]
    elif kind == 2:
        text = text + chance.choice(PIECES)
    elif kind == 3:
        end = min(len(text), at + chance.randrange(1, 8))
        text = text[:at] + text[end:]
    elif kind == 4:
        other = chance.choice(corpus).decode("utf-8", "surrogatepass")
        text = text[:at] + other[chance.randrange(len(other) + 1) :]
    else:
        end = min(len(text), at + chance.randrange(1, 20))
        text = text[:end] + text[at:end] * chance.choice([1, 2, 30, 300]) + text[end:]
    return text[: paths.MAX_PATH_CHARS + 10].encode("utf-8", "surrogatepass")


class Counter:
    """Counts the lines that `paths` runs."""

    def __init__(self) -> None:
        self.lines = 0

    def __call__(self, frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename != paths.__file__:
            return None
        if event == "line":
            self.lines += 1
        return self

    def __enter__(self) -> Counter:
        sys.settrace(self)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.settrace(None)


class Paths:
    def __init__(self) -> None:
        self.namespace = booby_trapped()
        self.runs = 0
        # What the program has put in to see its warnings is code of the program too.
        warnings.simplefilter("always")
        warnings.showwarning = trap("warnings.showwarning")

    def __call__(self, data: bytes) -> str:
        text = data.decode("utf-8", "surrogatepass")
        self.runs += 1
        if self.runs % COUNTED_EVERY:
            return self.ask(text)
        with Counter() as counter:
            told = self.ask(text)
        if counter.lines > MAX_LINES:
            raise Finding(f"{counter.lines} lines were run")
        return told

    def ask(self, text: str) -> str:
        told = []
        # Checking is for source that is written around the path: it must then be one expression, and no more.
        for question in (lambda: paths.walk(paths.parse(text), self.namespace), lambda: paths.check(text)):
            try:
                question()
                told.append("found")
            except paths.Refused as refused:
                told.append(
                    f"{refused.kind} {refused.message[-24:]}" if refused.kind != "bad_path" else refused.message.rpartition(":")[2][:40]
                )
                if not isinstance(refused.message, str) or "\n" in refused.kind:
                    raise Finding(f"an odd refusal: {refused!r}") from None
            except Ran:
                pass
            if RAN:
                ran, RAN[:] = list(RAN), []
                raise Finding(f"code was run: {ran}")
        if told[1] == "found":
            self.stays_one_expression(text)
        return " ".join(word for word in "|".join(told).split() if word.isalpha())

    @staticmethod
    def stays_one_expression(text: str) -> None:
        """What passed the check must not reach out of the source that is written around it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(f"first = 1\n__it__ = ({text.strip()})\nlast = 2\n")
        if len(tree.body) != 3 or not isinstance(tree.body[1], ast.Assign):
            raise Finding("source around the path is more than one assignment")


# The engine.


def mutate_bytes(data: bytes, corpus: list[bytes], chance: random.Random, words: list[bytes]) -> bytes:
    at = chance.randrange(len(data) + 1)
    end = min(len(data), at + chance.choice([1, 1, 2, 4, 16]))
    kind = chance.randrange(6)
    if kind == 0 and at < len(data):
        return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + data[end:]
    if kind == 2:
        return data[:end] + data[at:end] + data[end:]
    if kind == 3:
        other = chance.choice(corpus)
        return data[:at] + other[chance.randrange(len(other) + 1) :]
    if kind == 4:
        return data[:at] + bytes(chance.randrange(256) for _ in range(chance.randrange(1, 5))) + data[end:]
    return data[:at] + chance.choice(words) + data[end:]


TARGETS: dict[str, tuple[Callable[[], Callable[[bytes], str]], Callable[[], list[bytes]], Callable[..., bytes]]] = {
    "wire": (lambda: try_frames, golden_frames, mutate_frame),
    "paths": (Paths, lambda: [start.encode() for start in STARTS], mutate_path),
}


def failure(run: Callable[[bytes], str], data: bytes) -> tuple[str | None, str]:
    """What is wrong with this input, if anything, and how it went."""
    began = time.thread_time()
    try:
        told = run(data)
    except Finding as finding:
        return str(finding), ""
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {error}"[:300], ""
    took = time.thread_time() - began
    return (f"it took {took:.1f} s" if took > MAX_SECONDS else None), told


def smallest(run: Callable[[bytes], str], data: bytes) -> bytes:
    """Takes pieces away as long as it still fails."""
    until = time.monotonic() + 20
    size = len(data) // 2
    while size:
        at = 0
        while at < len(data) and time.monotonic() < until:
            shorter = data[:at] + data[at + size :]
            try:
                fails = failure(run, shorter)[0] is not None
            except UnicodeError:
                fails = False
            if fails:
                data = shorter
            else:
                at += size
        size //= 2
    return data


def fuzz(name: str, seconds: float, seed: int) -> bool:
    make, seeds, mutate = TARGETS[name]
    run, corpus = make(), seeds()
    chance = random.Random(f"{name} {seed}")
    seen: set[str] = set()
    runs, began = 0, time.monotonic()
    queue = list(corpus)
    while time.monotonic() - began < seconds:
        if queue:
            data = queue.pop()
        else:
            data = chance.choice(corpus)
            for _ in range(chance.choice([1, 1, 2, 4])):
                data = mutate(data, corpus, chance)
        runs += 1
        wrong, told = failure(run, data)
        if wrong is not None:
            data = smallest(run, data)
            path = Path(f"fuzz-{name}-{seed}-{runs}.bin")
            path.write_bytes(data)
            print(f"{name}: {failure(run, data)[0] or wrong}\n  input {data[:200]!r}, in {path.resolve()}", flush=True)
            return False
        if told not in seen and len(corpus) < 5000:
            seen.add(told)
            corpus.append(data)
    took = time.monotonic() - began
    python = ".".join(map(str, sys.version_info[:2]))
    print(
        f"{name} on Python {python}: {runs} inputs in {took:.0f} s ({runs / took:.0f}/s), {len(corpus)} kept, seed {seed}: nothing found",
        flush=True,
    )
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"which of {', '.join(TARGETS)}; all if none is named")
    parser.add_argument("--seconds", type=float, default=5, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--input", type=Path, help="try this input only")
    options = parser.parse_args()
    options.targets = options.targets or list(TARGETS)
    if not set(options.targets) <= set(TARGETS):
        parser.error(f"the targets are {', '.join(TARGETS)}")
    if options.input is not None:
        wrongs = [failure(TARGETS[name][0](), options.input.read_bytes())[0] for name in options.targets]
        print("\n".join(wrong or "nothing is wrong with it" for wrong in wrongs))
        return int(any(wrongs))
    return int(not all([fuzz(name, options.seconds, options.seed) for name in options.targets]))


if __name__ == "__main__":
    sys.exit(main())
