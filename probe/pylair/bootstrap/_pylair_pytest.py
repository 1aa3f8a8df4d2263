"""The pytest plugin for a project that has nothing of pylair installed, and the script that runs pytest with it. PYTEST_DONT_REWRITE

`pylair test` runs `python DIRECTORY/_pylair_pytest.py [PYTEST ARGUMENTS]`, with `probe.json` (`{"sources": {module: text}}`) beside it.
As a script it runs pytest as `python -m pytest` would; as the plugin `-p _pylair_pytest` it loads the probe from memory. Its directory is
the last of `sys.path`, which xdist hands on to its workers, and nothing else in it can be imported.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def main(arguments):
    # As `python -m` has it: the working directory, and not that of this script.
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd()
    if _HERE not in sys.path:
        sys.path.append(_HERE)
    try:
        import pytest
    except ImportError as error:
        if getattr(error, "name", None) != "pytest":
            raise
        sys.stderr.write("pylair: there is no pytest in %s; install it there, or name another Python\n" % sys.executable)
        return 127
    sys.argv[0] = "pytest"
    return pytest.main(["-p", "_pylair_pytest"] + arguments)


def _hooks():
    import importlib
    import json

    if "_pylair.pytest_plugin" not in sys.modules:
        with open(os.path.join(_HERE, "probe.json"), "rb") as file:
            sources = json.loads(file.read().decode("utf-8"))["sources"]
        namespace = {"__name__": "_pylair.loader"}
        exec(compile(sources["loader"], "<pylair/loader.py>", "exec"), namespace)
        importer = namespace["PluginImporter"](sources)
        sys.meta_path.insert(0, importer)
        importer.load("pytest_plugin")
        importer.seal()
    plugin = importlib.import_module("_pylair.pytest_plugin")
    return {name: value for name, value in vars(plugin).items() if name.startswith("pytest_")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
elif __name__ == "_pylair_pytest":
    globals().update(_hooks())
