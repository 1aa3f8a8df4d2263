"""Answers `save` and `restore`: a session's variables in a file, and back. Runs in the worker, on its main thread.

Each variable is saved on its own, restored and compared in a throw-away child, and either saved and verified or reported with a reason.
Only variables are kept: not the working directory, the environment, `sys.path`, the state of `random` and NumPy's generators,
or what modules hold.
"""

from __future__ import annotations

import os
import stat
import time
from typing import Any

from . import children, errors, restoring, saving, verify, wire
from .snapshot_file import Unreadable, WriteFailed

MAX_NAMES = 1000
VERIFY_SECONDS = 20.0
# With each round the file is written again without the variables that failed, which may not be the last.
_MAX_ROUNDS = 4
_FIRST_ROUND = 0.6


def answer(request: dict[str, Any], cells: Any, side_door: Any) -> tuple[dict[str, Any], bytes]:
    """The fields and the blob of a done frame."""
    passed = _passed_files(side_door)
    if not passed:
        return {"refused": f"no file was passed for {request['op']}"}, b""
    fd = passed[0]
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return {"refused": f"{request['op']} needs a regular file"}, b""
        saving_it = request["op"] == "save"
        said = _save(passed, request, cells) if saving_it else _restore(fd, cells)
    except (Unreadable, WriteFailed) as problem:
        return {"refused": str(problem)}, b""
    finally:
        for each in passed:
            os.close(each)
        cells.output.flush()
    return {}, wire.dumps(said)


def _passed_files(side_door: Any) -> list[int]:
    """The descriptors of the last `file` datagram. Those that an earlier request did not take are closed."""
    found: list[int] = []
    while True:
        received = side_door.take()
        if received is None:
            return found
        message, passed = received
        if message.get("op") == "file" and passed:
            passed, found = found, passed
        for fd in passed:
            os.close(fd)


def _save(passed: list[int], request: dict[str, Any], cells: Any) -> dict[str, Any]:
    fd, reading = passed[0], passed[1] if len(passed) > 1 else None
    children.reap()
    namespace = cells.namespace
    limit = request.get("max_bytes")
    chosen = saving.variables(namespace)
    not_saved: dict[str, str] = {}
    seconds = request.get("verify_s")
    deadline = time.monotonic() + (VERIFY_SECONDS if seconds is None else seconds)
    for number in range(1, _MAX_ROUNDS + 1):
        started = time.monotonic()
        written = saving.write(fd, namespace, chosen, not_saved, limit)
        # Only verifying is on the clock.
        deadline += time.monotonic() - started
        remaining = max(0.0, deadline - time.monotonic())
        verdicts = verify.verify(fd, reading, written.contents, cells, remaining * (_FIRST_ROUND if number == 1 else 1))
        if not verdicts.failed:
            break
        not_saved.update(verdicts.failed)
    else:
        # What fails keeps changing. Nothing can be said about the rest.
        written = saving.write(fd, namespace, chosen, not_saved, limit)
        verdicts = verify.Verdicts()
        verdicts.incomplete = "variables that were fine before failed when others were left out"
    return _said(dict(chosen), written, verdicts, not_saved)


def _said(values: dict[str, Any], written: saving.Written, verdicts: verify.Verdicts, not_saved: dict[str, str]) -> dict[str, Any]:
    saved = []
    for variable in written.contents.variables:
        if not saving.is_listed(variable.name):
            continue
        row: dict[str, Any] = {"name": variable.name, "type": variable.type, "bytes": variable.length}
        row["verified"] = variable.name in verdicts.verified
        notes = [written.notes.get(variable.name), verdicts.notes.get(variable.name)]
        if not row["verified"]:
            notes.append(f"not verified: {verdicts.incomplete}")
        if any(notes):
            row["note"] = "; ".join(note for note in notes if note)
        saved.append(row)
    missing = {name: why for name, why in not_saved.items() if saving.is_listed(name)}
    rows = [{"name": name, "type": errors.type_name(type(values[name])), "reason": why} for name, why in missing.items()]
    said: dict[str, Any] = {"saved": saved[:MAX_NAMES], "not_saved": rows[:MAX_NAMES], "bytes": written.size}
    return _with_more(said, len(saved) + len(rows))


def _restore(fd: int, cells: Any) -> dict[str, Any]:
    restored, not_restored = restoring.restore(fd, cells.namespace, cells.remember)
    cells.take_note()
    restored = [name for name in restored if saving.is_listed(name)]
    not_restored = [row for row in not_restored if saving.is_listed(row["name"])]
    said = {"restored": restored[:MAX_NAMES], "not_restored": not_restored[:MAX_NAMES]}
    return _with_more(said, len(restored) + len(not_restored))


def _with_more(said: dict[str, Any], names: int) -> dict[str, Any]:
    shown = sum(len(rows) for rows in said.values() if isinstance(rows, list))
    if names > shown:
        said["more"] = names - shown
    return said
