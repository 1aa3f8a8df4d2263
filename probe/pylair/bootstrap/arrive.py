# What the thread begins with that `pylair attach` started: `payload` is the probe as JSON. Nothing that it raises comes out.
# The modules of the standard library that the probe imports, and those that they import: one that the program has put its own in front of
# would be imported, which runs the program's code, and would not do.
kind = ""
try:
    import sys
    from _frozen_importlib import _find_spec

    needed = (
        "__future__ _socket _struct _weakrefset abc array ast binascii codecs collections contextlib contextvars copyreg difflib dis enum "
        "fcntl functools heapq importlib inspect io json keyword linecache logging math opcode operator os re reprlib resource select "
        "selectors signal socket stat string struct textwrap threading token tokenize traceback types typing warnings weakref"
    )
    # The probe does without these where they are not there.
    optional = "_json ctypes"
    # The one that every interpreter has loaded: without `site` (`-S`) that is not `os`.
    library = getattr(sys.modules.get("encodings"), "__file__", None) or ""
    library = library.rpartition("/")[0].rpartition("/")[0]
    is_bundle = bool(getattr(sys, "frozen", False))
    missing = []
    for name in (needed + " " + optional).split():
        module = sys.modules.get(name)
        spec = _find_spec(name, None) if module is None else None
        if module is None and spec is None:
            if name not in optional.split():
                missing.append(name)
            continue
        file = getattr(module, "__file__", None) if module is not None else spec.origin
        inside = type(file) is str and library and file.startswith(library + "/") and not file.startswith(library + "/site-packages/")
        if type(file) is str and file.endswith((".py", ".pyc")) and library and not inside and not is_bundle:
            kind = "shadowed_module"
            raise ImportError(name + " is " + file)
    if missing:
        kind = "frozen_bundle" if is_bundle else "no_module"
        raise ImportError(" ".join(missing))
    import json

    payload = json.loads(payload)
    loader = {"__name__": "_pylair.loader"}
    exec(compile(payload["sources"]["loader"], "<pylair/loader.py>", "exec"), loader)
    loader["run"](payload["sources"], payload["entry"], payload["config"])
except BaseException as error:
    exec("@TELL@", {"error": error, "kind": kind})
