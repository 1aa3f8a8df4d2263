"""Says what to write instead of IPython's own syntax. Runs in the worker when a cell does not compile; executes nothing."""

from __future__ import annotations

import re

_TIMING = "the answer tells how long a cell took; for parts of it use time.perf_counter() or the timeit module"
_INSTALL = "use the install_packages tool"
_INSPECT = "use the inspect tool"
_MAGICS = {
    "time": _TIMING,
    "timeit": _TIMING,
    "prun": "use the cProfile module",
    "pip": _INSTALL,
    "conda": _INSTALL,
    "mamba": _INSTALL,
    "uv": _INSTALL,
    "matplotlib": "leave it out: open figures are shown at the end of a cell",
    "run": "use the run_file tool",
    "cd": "use os.chdir(…)",
    "pwd": "use os.getcwd()",
    "ls": "use os.listdir(…)",
    "env": "use os.environ",
    "set_env": "use os.environ",
    "who": _INSPECT,
    "whos": _INSPECT,
    "pinfo": _INSPECT,
    "history": "use the get_history tool",
    "reset": "use the restart_session tool",
    "load_ext": "leave it out; changed modules are loaded again by importlib.reload(…)",
    "autoreload": "leave it out; changed modules are loaded again by importlib.reload(…)",
    "writefile": "use pathlib.Path(…).write_text(…)",
    "bash": "use subprocess.run(…, shell=True)",
    "sh": "use subprocess.run(…, shell=True)",
    "capture": "use contextlib.redirect_stdout(…)",
}
_ASSIGNED = r"\s*(?:[\w.,\s]+=\s*)?"
_MAGIC = re.compile(_ASSIGNED + r"(%{1,2})(\w+)")
_SHELL = re.compile(_ASSIGNED + r"!{1,2}\s*(\S*)\s*(\S*)")
_HELP = re.compile(r"\s*(?:\?{1,2}\s*([\w.]+)|([\w.%]+)\s*\?{1,2})\s*;?\s*$")


def hint(source: str, line: int | None) -> str | None:
    """A sentence about the line that is no Python, if it is IPython's."""
    lines = source.splitlines()
    text = lines[line - 1] if line is not None and 0 < line <= len(lines) else ""
    found = _MAGIC.match(text)
    if found:
        signs, name = found.groups()
        instead = _MAGICS.get(name, "write it in plain Python")
        return f"{signs}{name} is a magic of IPython's and not Python: {instead}"
    found = _HELP.match(text)
    if found:
        name = found.group(1) or found.group(2)
        return f"{text.strip()} is IPython's way to ask for help and not Python: use the inspect tool with the path {name}"
    found = _SHELL.match(text)
    if found:
        command, argument = found.groups()
        installs = command in ("pip", "pip3", "uv", "conda") and argument in ("install", "pip", "add")
        instead = _INSTALL if installs else "use subprocess.run([…], capture_output=True, text=True)"
        return f"a line that begins with ! is IPython's way to run a command and not Python: {instead}"
    return None
