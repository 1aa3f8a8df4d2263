"""Plays serving.py for the tests of calls: an app in a process of its own, whose `Calls` are asked over a socket.

Each request is answered on a thread of its own, as in a real app; `quick` is tried first on the one that reads. The app itself is a piece
of code; it finds `app`, `calls` and `wait`: nothing is asked before that is called, and it returns when the test lets the app end.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import textwrap
from typing import Any

from host import TIMEOUT_SECONDS, sources

# An app that shows a few names.
PLAIN_APP = """
class Thing:
    def __init__(self): self.value = 1
app.registered = {"thing": Thing(), "numbers": [1, 2, 3]}
"""

_SERVE = r"""
import json, os, socket, sys, threading

class App:
    registered = {}
    readonly = allow_code = False
    invoker = loop = screenshot_fn = winshot_fn = None

def _start(fd, package):
    global app, calls
    sock = socket.socket(fileno=fd)
    lines = sock.makefile("rb")
    texts = json.loads(lines.readline())
    if package:
        sys.path.insert(0, package)
        from pylair.calls import Calls
    else:
        namespace = {}
        exec(compile(texts["loader"], "<pylair/loader.py>", "exec"), namespace)
        sys.meta_path.insert(0, namespace["MemoryImporter"](texts))
        from _pylair.calls import Calls
    app = App()
    calls = Calls(app)
    calls.start()
    lock = threading.Lock()
    def send(request, header, blob):
        line = json.dumps({**header, "id": request["id"], "blob": blob.decode("latin-1")})
        with lock:
            sock.sendall(line.encode() + b"\n")
    def answer(request, blob):
        fields, blob = calls.answer(request, blob, lambda header, data: send(request, header, data))
        send(request, {"ev": "done", **fields}, blob)
    def read():
        ready.wait()
        for line in lines:
            request = json.loads(line)
            blob = request.pop("blob").encode("latin-1")
            found = calls.quick(request, blob)
            if found is not None:
                send(request, {"ev": "done", "quick": True, **found[0]}, found[1])
            else:
                threading.Thread(target=answer, args=(request, blob), daemon=True).start()
    threading.Thread(target=read, name="pylair", daemon=True).start()

def wait():
    ready.set()
    sys.__stdin__.read()

ready = threading.Event()
"""


class Done:
    """An answer: the fields of its done frame, its blob, and the events before it."""

    def __init__(self, fields: dict[str, Any], blob: bytes, events: list[tuple[dict[str, Any], bytes]]) -> None:
        self.fields = fields
        self.blob = blob
        self.events = events

    def __getitem__(self, key: str) -> Any:
        return self.fields[key]

    def get(self, key: str) -> Any:
        return self.fields.get(key)

    @property
    def json(self) -> Any:
        assert "refused" not in self.fields, self.fields
        return json.loads(self.blob)

    @property
    def result(self) -> Any:
        assert self.fields.get("outcome") == "ok", self.fields
        return self.fields["result"]

    def output(self, stream: int = 1) -> str:
        return b"".join(blob for event, blob in self.events if event["ev"] == "output" and event["stream"] == stream).decode()


class AppProcess:
    """A running app, seen from the daemon."""

    def __init__(self, python: str, code: str, package: str = "") -> None:
        ours, theirs = socket.socketpair()
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        # Under a name of the probe's own, because that is what it stands for.
        serving = f"exec(compile({_SERVE!r}, '<pylair/serving.py>', 'exec'), globals())"
        program = f"{serving}\n_start({theirs.fileno()}, {package!r})\n{textwrap.dedent(code)}\nwait()\n"
        self.process = subprocess.Popen(
            [python, "-c", program],
            stdin=subprocess.PIPE,
            # Not pipes: nobody reads them while the app runs.
            stdout=self._out,
            stderr=self._err,
            env={"PYTHONDONTWRITEBYTECODE": "1"},
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        ours.settimeout(TIMEOUT_SECONDS)
        ours.sendall(json.dumps({} if package else sources()).encode() + b"\n")
        self._socket = ours
        self._lines = ours.makefile("rb")
        self._id = 0
        self._events: dict[int, list[tuple[dict[str, Any], bytes]]] = {}
        self._done: dict[int, Done] = {}

    def begin(self, op: Any, blob: str | bytes = b"", **fields: Any) -> int:
        self._id += 1
        data = blob.encode() if isinstance(blob, str) else blob
        self._socket.sendall(json.dumps({"id": self._id, "op": op, **fields, "blob": data.decode("latin-1")}).encode() + b"\n")
        return self._id

    def event(self) -> tuple[dict[str, Any], bytes]:
        """The next frame, of whatever request."""
        line = self._lines.readline()
        assert line, self.ended()
        frame = json.loads(line)
        blob = frame.pop("blob").encode("latin-1")
        events = self._events.setdefault(frame["id"], [])
        if frame["ev"] == "done":
            self._done[frame["id"]] = Done(frame, blob, events)
        else:
            events.append((frame, blob))
        return frame, blob

    def finish(self, number: int) -> Done:
        while number not in self._done:
            self.event()
        return self._done.pop(number)

    def ask(self, op: Any, blob: str | bytes = b"", **fields: Any) -> Done:
        return self.finish(self.begin(op, blob, **fields))

    def execute(self, code: str, client: str = "k3n7", **fields: Any) -> Done:
        return self.ask("execute", textwrap.dedent(code), client=client, **fields)

    def begin_execute(self, code: str, client: str = "k3n7") -> int:
        return self.begin("execute", textwrap.dedent(code), client=client)

    def until_printed(self, number: int, text: str) -> None:
        while text not in b"".join(blob for _, blob in self._events.get(number, [])).decode():
            self.event()

    def ended(self) -> tuple[str, str]:
        """Lets the app end; what it printed itself."""
        try:
            self.process.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            self._lines.close()
            self._socket.close()
        said = []
        for file in (self._out, self._err):
            file.seek(0)
            said.append(file.read().decode())
            file.close()
        return said[0], said[1]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        if not self._lines.closed:
            self.ended()
