"""Cells that do to Python whatever they like: the worker answers, goes on, and can be rolled back.

The cells are in hostile.cells. The sweep takes the functions of one module of the standard library after the other away.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import pytest
from host import Datagram, Frozen, Session, send

_FIRST, *_CELLS = (Path(__file__).parent / "hostile.cells").read_text().split("\n== ")[1:]
# Classes that raise from whatever they are asked, for the cells that use one.
BOOM = _FIRST.partition("\n")[2]
CELLS = {
    name: BOOM * bool(re.search(r"\b(boom|Evil|Text|Number|Odd)\b", code)) + code
    for name, _, code in (text.partition("\n") for text in _CELLS)
}

# After these a later cell may raise: what they installed is called for it, or stands in its way.
SPOILED = {"audit", "audit exception", "audit later", "audit not compile", "monitoring", "setprofile late", "itimer", "builtins class"}
NO_COPY = {"thread running", "rlimit", "rlimit as"} | SPOILED

# fmt: off
MODULES = (
    "abc", "_abc", "array", "ast", "asyncio", "atexit", "builtins", "codecs", "collections", "collections.abc", "contextlib", "copyreg",
    "ctypes", "dataclasses", "difflib", "enum", "errno", "faulthandler", "fcntl", "functools", "gc", "genericpath", "importlib",
    "importlib.machinery", "importlib.util", "inspect", "io", "itertools", "json", "json.encoder", "json.decoder", "keyword", "linecache",
    "marshal", "math", "operator", "os", "os.path", "pathlib", "pickle", "platform", "posix", "random", "re", "resource", "select",
    "selectors", "signal", "_signal", "site", "socket", "_socket", "stat", "string", "struct", "subprocess", "sys", "tempfile", "termios",
    "textwrap", "threading", "_thread", "time", "token", "tokenize", "traceback", "types", "typing", "warnings", "weakref",
)
# fmt: on


@pytest.fixture
def bounded(session: Session) -> Session:
    """A session that cannot take the machine with it."""
    session.execute("import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))")
    session.execute("kept = [1, 2]")
    return session


def answers(session: Session, spoiled: bool) -> None:
    done = session.execute("1+1")
    assert done.get("result") == "2" or (spoiled and done["outcome"] in ("ok", "raised")), done
    assert spoiled or "refused" not in session.look("inspect")
    done = session.execute("1/0")
    assert done["outcome"] == "raised" or spoiled, done


def is_copied(session: Session) -> None:
    done = session.ask("checkpoint", checkpoint="c")
    assert done.get("made"), done
    frozen = Frozen("c", Datagram(session.control).descriptors[0])
    session.rollback(frozen)
    assert session.execute("1+1")["result"] == "2"
    frozen.drop()


def is_saved(session: Session) -> None:
    with tempfile.TemporaryFile() as file:
        send(session.control, {"op": "file"}, (file.fileno(),))
        session.request("save")
        done = session.reply()
        assert "refused" not in done, done
        saved = json.loads(session.blob)
        assert "kept" in [row["name"] for row in saved["saved"]], saved


# What a save needs is there before the program is, so none of these loses the variables of a session that is stopped.
SPOILERS = {
    "import hook": "import sys; sys.meta_path.insert(0, type('Hook', (), {'find_spec': lambda *_, **__: 1 / 0})())",
    "import": "import builtins; builtins.__import__ = lambda *_, **__: 1 / 0",
    "no paths": "import sys; sys.path[:] = []; sys.meta_path[:] = []; sys.path_hooks[:] = []",
    "no modules": "import sys; sys.modules.clear()",
    "builtins": "import builtins; vars(builtins).update(dict.fromkeys(('isinstance', 'len', 'type', 'repr', 'open', 'compile', 'exec')))",
    "sys": "import sys; sys.version_info = sys.flags = sys.platform = sys.intern = None",
    "no frames": "import sys; sys._getframe = sys.exc_info = None",
}


@pytest.mark.parametrize("name", SPOILERS)
def test_variables_are_saved_after(bounded: Session, name: str) -> None:
    assert bounded.execute(SPOILERS[name])["outcome"] == "ok"
    is_saved(bounded)


@pytest.mark.parametrize("name", CELLS)
def test_a_worker_survives(bounded: Session, name: str) -> None:
    before = bounded.checkpoint("before")
    bounded.begin(CELLS[name])
    done, _ = bounded.finish()
    assert done["outcome"] in ("ok", "raised", "interrupted") and len(json.dumps(done)) < 1 << 20, done
    answers(bounded, name in SPOILED)
    if name not in NO_COPY:
        is_copied(bounded)
    bounded.rollback(before)
    assert bounded.result("kept") == "[1, 2]"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_without_functions_is_no_loss_to_the_worker(bounded: Session, module: str) -> None:
    code = f"""
import {module}
import sys
names = vars(sys.modules[{module!r}])
names.update(dict.fromkeys([n for n, v in names.items() if callable(v) and not n.startswith("__")]))
"""
    assert bounded.execute(code)["outcome"] == "ok"
    answers(bounded, False)
    assert "kept" in json.dumps(bounded.look("inspect"))
    is_saved(bounded)
    is_copied(bounded)
