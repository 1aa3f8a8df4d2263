"""The names that a client has in an app: what the app registered, and in front of it what the client's own calls assigned.

Called by calls.py. Each client has a dictionary of its own that lives from call to call. It is brought up to date with the registered names
before each call; nothing is ever put into a module of the app's.
"""

from __future__ import annotations

import builtins
from collections import OrderedDict
from typing import Any

from .plain_threads import allocate_lock

MAX_CLIENTS = 32

_MISSING = object()


class Scratch:
    """One client's names."""

    def __init__(self) -> None:
        # Classes that are defined here are named after a module that is there: some of the standard library looks it up.
        self.namespace: dict[str, Any] = {"__name__": "__main__", "__doc__": None, "__builtins__": builtins}
        # What `locals()` is to code that runs here, where that is not all of it.
        self.locals: dict[str, Any] | None = None
        # The flags that a `from __future__ import` has set for the next call.
        self.flags: int | None = None
        # What the client has been told once.
        self.told: set[str] = set()
        self._registered: dict[str, Any] = {}

    def refresh(self, registered: dict[str, Any]) -> None:
        """Shows what is registered now. A name that the client has assigned itself stays as it is."""
        namespace, before = self.namespace, self._registered
        for name, value in before.items():
            if name not in registered and namespace.get(name, _MISSING) is value:
                namespace.pop(name, None)
        for name, value in registered.items():
            current = namespace.get(name, _MISSING)
            if current is _MISSING or current is before.get(name, _MISSING):
                namespace[name] = value
        self._registered = registered


class Scratches:
    """The scratch namespaces of an app's clients. The one that was used longest ago is let go when there are too many."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = allocate_lock()
        self._by_client: OrderedDict[str, Scratch] = OrderedDict()

    def of(self, client: str) -> Scratch:
        """For a call that may assign names."""
        with self._lock:
            scratch = self._by_client.get(client)
            if scratch is None:
                scratch = self._by_client[client] = Scratch()
                while len(self._by_client) > MAX_CLIENTS:
                    self._by_client.popitem(last=False)
            self._by_client.move_to_end(client)
            scratch.refresh(dict(self._app.registered))
            return scratch

    def names(self, client: str) -> dict[str, Any]:
        """For a look: a copy."""
        with self._lock:
            scratch = self._by_client.get(client) or Scratch()
            scratch.refresh(dict(self._app.registered))
            return dict(scratch.namespace)

    def forget(self) -> None:
        with self._lock:
            self._by_client.clear()

    def forked(self) -> None:
        self._lock = allocate_lock()
