"""The sockets that an app's server listens on, and who may come in by them. Called by `serving`."""

from __future__ import annotations

import _socket
import os
import struct

from . import registry

BACKLOG = 64


def bind_unix(path: str) -> _socket.socket:
    # The name holds the pid and its start time: what is there was left by this process, before it executed itself anew.
    registry.remove(path)
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        listener.bind(path)
        os.chmod(path, 0o600)
    except BaseException:
        listener.close()
        raise
    return listener


def bind_tcp(host: str, port: int) -> _socket.socket:
    family = _socket.AF_INET6 if ":" in host else _socket.AF_INET
    listener = _socket.socket(family, _socket.SOCK_STREAM)
    try:
        listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1" if host == "localhost" else host, port))
        # Two sockets can share an address until one listens.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"pylair cannot listen on {host}:{port}: {error.strerror}") from None
    return listener


def is_own_user(sock: _socket.socket) -> bool:
    credentials = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return uid in (0, os.geteuid())
