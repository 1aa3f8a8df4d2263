"""A client without an SDK: JSON-RPC lines on the stdin and stdout of a bridge. Stdlib only, on every Python we support."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from typing import Any

from home import BINARY, TIMEOUT, Home


class Client:
    """A line client on the stdin and stdout of a bridge."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.process = subprocess.Popen([BINARY, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=home.env)
        self.answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self.last_id = 0
        threading.Thread(target=self.read, daemon=True).start()
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "line", "version": "1"}}
        self.result(self.send("initialize", params))
        self.write({"method": "notifications/initialized"})

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("id") in self.answers:
                self.answers[message["id"]].put(message)

    def write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def send(self, method: str, params: dict[str, Any]) -> int:
        self.last_id += 1
        self.answers[self.last_id] = queue.Queue()
        self.write({"id": self.last_id, "method": method, "params": params})
        return self.last_id

    def result(self, request: int) -> dict[str, Any]:
        try:
            message = self.answers[request].get(timeout=TIMEOUT)
        except queue.Empty:
            raise AssertionError(f"no answer to request {request} within {TIMEOUT:.0f} s") from None
        del self.answers[request]
        assert "result" in message, message
        return message["result"]

    def call(self, tool: str, **arguments: Any) -> Any:
        """A tool's structured answer."""
        result = self.result(self.send("tools/call", {"name": tool, "arguments": arguments}))
        assert not result.get("isError"), (tool, arguments, result)
        return result["structuredContent"]

    def read_resource(self, uri: str) -> str:
        return self.result(self.send("resources/read", {"uri": uri}))["contents"][0]["text"]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(TIMEOUT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT)
