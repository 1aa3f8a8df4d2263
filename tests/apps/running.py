"""Programs as their users run them: started one of three ways, spoken to through their own doors, ended."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

from home import BINARY, TIMEOUT, Home

PROGRAMS = Path(__file__).parent / "programs"
PROBE = Path(__file__).parents[2] / "probe"
WAYS = ["start", "wrap", "attach"]


class Program:
    """A process and what it prints. `way` is how pylair comes in: `start`, `wrap`, or None for a process that is left alone at first."""

    def __init__(self, home: Home, command: list[str], way: str | None = None, options: tuple[str, ...] = (), **env: str) -> None:
        env = {
            **home.env,
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SDL_VIDEODRIVER": "dummy",
            "PYGAME_HIDE_SUPPORT_PROMPT": "1",
            **env,
        }
        if way == "start":
            env.update(SHOP_IS_OPEN="1", PYTHONPATH=str(PROBE))
        if way == "wrap":
            command = [BINARY, "wrap", *options, "--", *command]
        self.lines: list[str] = []
        self._unread: queue.Queue[str | None] = queue.Queue()
        self._socket: socket.socket | None = None
        self.process = subprocess.Popen(
            command,
            cwd=PROGRAMS,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            self._unread.put(line)
        self._unread.put(None)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Reads on to a line that matches."""
        until = time.monotonic() + TIMEOUT
        while True:
            try:
                line = self._unread.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                raise AssertionError(f"no line like {pattern!r} in: {''.join(self.lines)}")
            found = re.search(pattern, line)
            if found:
                return found

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, number: int | None = None) -> int:
        """Closes its input, or sends a signal, and returns its exit code."""
        assert self.process.stdin is not None
        if number is None:
            self.process.stdin.close()
        else:
            self.process.send_signal(number)
        code = self.process.wait(TIMEOUT)
        self._reader.join(TIMEOUT)
        return code

    def close(self) -> None:
        """Whatever is left of it goes."""
        if self._socket is not None:
            self._socket.close()
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(TIMEOUT)
        for stream in (self.process.stdin, self.process.stdout):
            try:
                assert stream is not None
                stream.close()
            except OSError:
                pass


class Shop(Program):
    """One of the programs, with its door."""

    kind = ""
    command: tuple[str, ...] = ()
    opens = "^open"
    # What ends it, and with which exit code.
    ending: tuple[int | None, int] = (None, 0)

    def __init__(self, home: Home, way: str | None = None, options: tuple[str, ...] = (), **env: str) -> None:
        super().__init__(home, [sys.executable, *self.command], way, options, **env)
        self.opened = self.wait_for(self.opens)

    def ask(self, who: str) -> str:
        """Goes into the shop as a customer would."""
        self.write(who)
        return self.wait_for(f" {who}, ").string.strip()

    def serving_pid(self) -> int:
        """The process that answers."""
        return int(self.ask("nobody").rpartition(" ")[2])

    def leave(self) -> int:
        if self._socket is not None:
            self._socket.close()
        return self.end(self.ending[0])


class Script(Shop):
    kind = "script"
    command = ("script.py",)


class Threads(Shop):
    kind = "threads"
    command = ("threads.py",)


class Game(Shop):
    kind = "game"
    command = ("game.py",)


class Service(Shop):
    kind = "service"
    command = ("service.py",)
    opens = r"^open on port (\d+)"
    ending = (signal.SIGTERM, 0)

    def ask(self, who: str) -> str:
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", int(self.opened[1])), TIMEOUT)
        self._socket.sendall(who.encode() + b"\n")
        with self._socket.makefile("r") as answers:
            return answers.readline().strip()


class Web(Shop):
    def ask(self, who: str) -> str:
        query = urllib.parse.urlencode({"who": who})
        with urllib.request.urlopen(f"http://127.0.0.1:{self.opened[1]}/?{query}", timeout=TIMEOUT) as answer:
            return answer.read().decode()


class FlaskServer(Web):
    kind = "flask"
    command = ("-m", "flask", "--app", "flask_app", "run", "--port", "0")
    opens = r"Running on http://127.0.0.1:(\d+)"
    ending = (signal.SIGINT, 0)


class Gunicorn(Web):
    kind = "gunicorn"
    command = ("-m", "gunicorn", "--workers", "2", "--bind", "127.0.0.1:0", "flask_app:app")
    opens = r"Listening at: http://127.0.0.1:(\d+)"
    ending = (signal.SIGTERM, 0)

    def __init__(self, home: Home, way: str | None = None, options: tuple[str, ...] = (), **env: str) -> None:
        super().__init__(home, way, options, **env)
        self.workers = [int(self.wait_for(r"Booting worker with pid: (\d+)")[1]) for _ in range(2)]

    def ask_worker(self, pid: int, who: str) -> str:
        """Asks until that worker is the one that answers. Every other time somebody who says nothing keeps a worker busy, because the
        kernel may give all connections to the same one."""
        for attempt in range(1000):
            with contextlib.ExitStack() as stack:
                if attempt % 2:
                    stack.enter_context(socket.create_connection(("127.0.0.1", int(self.opened[1])), TIMEOUT))
                answer = self.ask(who)
            if answer.endswith(f"from {pid}"):
                return answer
        raise AssertionError(f"worker {pid} never answered")


class Uvicorn(Web):
    kind = "fastapi"
    command = ("-m", "uvicorn", "fastapi_app:app", "--port", "0")
    opens = r"Uvicorn running on http://127.0.0.1:(\d+)"
    ending = (signal.SIGINT, 0)


SHOPS = [Script, Threads, Service, Game, FlaskServer, Gunicorn, Uvicorn]
