"""Connections, pipes and requests that end in the middle."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import time
from typing import Callable

from arena import Arena
from doors import PATIENCE, command
from fault import Effect, is_under_way, kind
from kills import lose_client
from model import Book, Operation
from words import Wrong, expect

# More than pipes and sockets hold by themselves.
MUCH = 400_000


def request_line(number: int, book: Book, operation: Operation) -> bytes:
    params = {"name": "execute", "arguments": {"code": operation.code, "target": book.name, "output": "json"}}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode()


def half_a_line(arena: Arena, book: Book) -> Effect:
    """What was not sent whole is not run."""
    operation, _, _ = arena.operation(book)
    line = request_line(10_000, book, operation)
    part = line[: arena.chance.randrange(1, len(line))]
    arena.say("half a line", book.name, operation.number, len(part), "of", len(line))
    assert arena.line.process.stdin is not None
    arena.line.process.stdin.write(part)
    arena.line.process.stdin.flush()
    at = time.monotonic()
    arena.new_line()
    return Effect(True, at, (book,))


def end_of_input(arena: Arena, book: Book) -> Effect:
    """The client closes its end and goes."""
    pending = arena.begin(book, waits=arena.chance.random() < 0.6)
    middle, at = is_under_way(pending), time.monotonic()
    arena.say("end of input")
    lose_client(arena, pending)
    return Effect(middle, at, (book,))


def nobody_reads(arena: Arena, book: Book) -> Effect:
    """The client closes the end that answers come from, while a long one is on its way."""
    much = f"print('x' * {MUCH})" if arena.chance.random() < 0.5 else ""
    pending = arena.begin(book, waits=arena.chance.random() < 0.6, extra=much, max_chars=1_000_000)
    middle, at = is_under_way(pending), time.monotonic()
    arena.say("nobody reads")
    arena.line.close_output()
    pending.let_go()
    lose_client(arena, pending)
    return Effect(middle, at, (book,))


def taken_back(arena: Arena, book: Book) -> Effect:
    """The client takes its request back: the cell is interrupted, or had come to its end."""
    pending = arena.begin(book, waits=arena.chance.random() < 0.7)
    middle, at = is_under_way(pending), time.monotonic()
    arena.say("taken back")
    arena.line.write({"method": "notifications/cancelled", "params": {"requestId": pending.request}})
    book.floating.append(pending.operation)
    book.may.add(pending.operation.number)
    # In the order of lines: the answer to this says that the other was read.
    arena.line.must("get_status")
    arena.wait_for_state(book, busy=False)
    return Effect(middle, at, (book,))


def no_json(arena: Arena, book: Book) -> Effect:
    """Lines that are no messages, between those that are."""
    pending = arena.begin(book, waits=True)
    at = time.monotonic()
    for _ in range(arena.chance.randrange(1, 6)):
        junk = bytes(arena.chance.randrange(256) for _ in range(arena.chance.randrange(1, 200))).replace(b"\n", b" ")
        assert arena.line.process.stdin is not None
        arena.line.process.stdin.write(junk + b"\n")
        arena.line.process.stdin.flush()
    arena.line.must("get_status")
    pending.let_go()
    arena.finish(pending)
    return Effect(True, at, (book,))


LINE_CUTS: list[Callable[[Arena, Book], Effect]] = [half_a_line, end_of_input, nobody_reads, taken_back, no_json]


@kind("cut line")
def cut_line(arena: Arena) -> Effect:
    """The stdio of a client ends, or is disturbed, in the middle of a request."""
    cut = arena.chance.choice(LINE_CUTS)
    return cut(arena, arena.choose())


def reset(connection: socket.socket) -> None:
    """Without a farewell, where there is one."""
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def half_a_request(arena: Arena, book: Book) -> Effect:
    """Head or body are cut: nothing was asked for, nothing is run."""
    operation, _, _ = arena.operation(book)
    body = json.dumps({"code": operation.code, "target": book.name}).encode()
    connection, text = arena.web.raw("POST", "/api/execute", body)
    part = text[: arena.chance.randrange(1, len(text))]
    arena.say("half a request", book.name, operation.number, len(part), "of", len(text))
    connection.sendall(part)
    at = time.monotonic()
    (reset if arena.chance.random() < 0.5 else socket.socket.close)(connection)
    return Effect(True, at, (book,))


def gone_after_asking(arena: Arena, book: Book) -> Effect:
    """Somewhere between the request and the end of the answer."""
    waits = arena.chance.random() < 0.6
    after = arena.chance.randrange(4) if waits else None
    much = f"print('x' * {MUCH})" if arena.chance.random() < 0.5 else ""
    operation, gate, release = arena.operation(book, after, much)
    body = json.dumps({"code": operation.code, "target": book.name}).encode()
    connection, text = arena.web.raw("POST", "/api/execute", body)
    arena.say("gone after asking", book.name, operation.number, f"waits after {after}")
    book.floating.append(operation)
    book.may.add(operation.number)
    connection.sendall(text)
    if waits:
        arena.wait_for(gate.exists, "a cell did not begin")
        book.reach(operation)
    if arena.chance.random() < 0.5:
        connection.recv(arena.chance.randrange(1, 5000))
    else:
        time.sleep(arena.chance.uniform(0, 0.01))
    at = time.monotonic()
    (reset if arena.chance.random() < 0.5 else socket.socket.close)(connection)
    release.touch()
    arena.settle_requests(book)
    return Effect(True, at, (book,))


def half_an_upload(arena: Arena, book: Book) -> Effect:
    """A file is there as it was before, whole."""
    name = f"upload-{arena.gates}.bin"
    arena.gates += 1
    path = f"/files/upload?target={book.name}&path={name}"
    whole = os.urandom(arena.chance.randrange(1, 50_000))
    status, answer = arena.web.request("POST", path, whole, "application/octet-stream")
    expect(status == 200, "an upload was answered with", status, answer)
    other = os.urandom(200_000)
    connection, text = arena.web.raw("POST", path, other, "application/octet-stream")
    connection.sendall(text[: arena.chance.randrange(200, len(text))])
    at = time.monotonic()
    (reset if arena.chance.random() < 0.5 else socket.socket.close)(connection)
    arena.say("half an upload", name)
    found = (book.file.parent / name).read_bytes()
    expect(found in (whole,), "half an upload has changed a file")
    return Effect(True, at, (book,))


def left_command(arena: Arena, book: Book) -> Effect:
    """`pylair exec` is killed, interrupted or hung up while its cell runs."""
    after = arena.chance.randrange(4)
    operation, gate, release = arena.operation(book, after)
    process = command(arena.home, "exec", "--target", book.name, operation.code)
    arena.wait_for(gate.exists, "a cell did not begin")
    book.reach(operation)
    book.floating.append(operation)
    book.may.add(operation.number)
    how = arena.chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
    arena.say("left command", book.name, operation.number, how)
    at = time.monotonic()
    process.send_signal(how)
    release.touch()
    try:
        process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise Wrong(f"a command does not end at {how}") from None
    arena.settle_requests(book)
    return Effect(True, at, (book,))


WEB_CUTS: list[Callable[[Arena, Book], Effect]] = [half_a_request, gone_after_asking, gone_after_asking, half_an_upload, left_command]


@kind("cut request")
def cut_request(arena: Arena) -> Effect:
    """A connection or a command ends in the middle of a request."""
    return arena.chance.choice(WEB_CUTS)(arena, arena.choose())
