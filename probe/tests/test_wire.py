"""Frames: the golden ones, strictness, and reading in pieces."""

from __future__ import annotations

import base64
import json
import math
import os
import threading
from pathlib import Path

import pytest

from pylair import wire

GOLDEN = Path(__file__).parent.parent.parent / "tests" / "wire"
VALID = sorted(path for path in GOLDEN.glob("*.json") if not path.name.startswith("invalid_"))
INVALID = sorted(GOLDEN.glob("invalid_*.json"))


def read_from(data: bytes):
    """The frames that a reader makes of these bytes, followed by the end of the stream."""
    reading, writing = os.pipe()

    def feed():
        try:
            wire.write_all(writing, data)
        except BrokenPipeError:
            pass
        os.close(writing)

    feeder = threading.Thread(target=feed)
    feeder.start()
    reader = wire.FrameReader(reading)
    frames = []
    try:
        while True:
            frame = reader.read()
            if frame is None:
                return frames
            frames.append(frame)
    finally:
        os.close(reading)
        feeder.join()


def test_there_are_golden_frames():
    assert VALID and INVALID


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_golden_frames_are_decoded_and_encoded(path):
    golden = json.loads(path.read_text())
    frame = bytes.fromhex(golden["frame_hex"])
    blob = base64.b64decode(golden["blob_base64"])
    assert read_from(frame) == [(golden["header"], blob)]
    assert wire.encode_frame(golden["header"], blob) == frame


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_invalid_frames_are_garbage(path):
    frame = bytes.fromhex(json.loads(path.read_text())["frame_hex"])
    with pytest.raises(wire.Garbage):
        read_from(frame)


def test_frames_in_one_read_and_in_many():
    frames = [({"ch": 1, "id": number, "blob": number}, b"x" * number) for number in (1, 70_000, 3)]
    data = b"".join(wire.encode_frame(dict(header), blob) for header, blob in frames)
    assert read_from(data) == frames


def test_a_frame_that_arrives_byte_by_byte():
    reading, writing = os.pipe()
    reader = wire.FrameReader(reading)
    data = wire.encode_frame({"ch": 1}, b"ab")
    received = []
    thread = threading.Thread(target=lambda: received.append(reader.read()))
    thread.start()
    for at in range(len(data)):
        os.write(writing, data[at : at + 1])
    thread.join()
    assert received == [({"ch": 1, "blob": 2}, b"ab")]
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, "nan"),
        ([math.inf, -math.inf], ["inf", "-inf"]),
        (1 << 64, str(1 << 64)),
        ((1 << 64) - 1, (1 << 64) - 1),
        (-(1 << 63), -(1 << 63)),
        ("a\udc80b", "a\\udc80b"),
        ({"\ud800": 1}, {"\\ud800": 1}),
        ({1: (2, 3)}, {"1": [2, 3]}),
        (object, "<class 'object'>"),
        (True, True),
    ],
)
def test_what_json_cannot_carry_becomes_text(value, expected):
    assert json.loads(wire.dumps(value)) == expected


def test_an_integer_with_too_many_digits_for_str():
    assert json.loads(wire.dumps(1 << 100_000)) == hex(1 << 100_000) or json.loads(wire.dumps(1 << 100_000)).isdigit()


def test_depth_is_capped():
    deep = []
    for _ in range(1000):
        deep = [deep]
    text = wire.dumps(deep).decode()
    assert text.count("[") == wire.MAX_DEPTH


def test_headers_with_surrogates_are_still_strict_json():
    frame = wire.encode_frame({"result": "\ud800é"})
    assert json.loads(frame[4:]) == {"result": "\\ud800é"}


def test_write_waits_for_a_full_nonblocking_pipe():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    data = os.urandom(300_000)
    received = bytearray()

    def drain():
        while len(received) < len(data):
            received.extend(os.read(reading, 65536))

    thread = threading.Thread(target=drain)
    thread.start()
    wire.write_all(writing, data)
    thread.join()
    assert received == data
    os.close(reading)
    os.close(writing)
