# What `pylair wrap` puts in front of PYTHONPATH: `site` imports it in every Python that the command starts. It loads the probe from
# `probe.json` beside it (`{"sources": {module: text}}`), takes its directory out of `sys.path`, and then is the `sitecustomize` that would
# have been imported without it, errors included. Must parse on Python 2, so that an old Python only passes through.
import os
import sys


def _enter(directory):
    wrap = os.environ.get("PYLAIR_WRAP")
    if not wrap or sys.version_info < (3, 8):
        return
    try:
        import json

        with open(os.path.join(directory, "probe.json"), "rb") as file:
            sources = json.loads(file.read().decode("utf-8"))["sources"]
        namespace = {"__name__": "_pylair.loader"}
        exec(compile(sources["loader"], "<pylair/loader.py>", "exec"), namespace)
        namespace["run"](sources, "wrapped", json.loads(wrap))
    except Exception as error:
        if sys.stderr is not None:
            sys.stderr.write("pylair: this program could not be made an app: %s: %s\n" % (type(error).__name__, error))


def _chain(directory):
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != directory]
    sys.path_importer_cache.pop(directory, None)
    _enter(directory)
    sys.modules.pop("sitecustomize", None)
    # Raises what it raises, above all ImportError when there is none: `site` knows what to do.
    import sitecustomize


_chain(os.path.dirname(os.path.abspath(__file__)))
