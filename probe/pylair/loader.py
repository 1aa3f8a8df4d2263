"""Loads the probe's modules from memory. Runs first in every process that the bootstrap starts.

Stage 1 executes this file's text and calls `run`. The modules become `_pylair.NAME` with file names such as `<pylair/execute.py>`,
which is how the rest of the probe recognises its own frames. No file is read or written.
"""

import builtins
import importlib
import sys
from importlib.machinery import ModuleSpec

PACKAGE = "_pylair"


class MemoryImporter:
    """A finder and loader for `_pylair` and its modules."""

    def __init__(self, sources):
        self.sources = sources
        # A program that replaces `builtins.repr` shall not break the probe.
        self.builtins = dict(vars(builtins))

    def find_spec(self, name, path=None, target=None):
        if name == PACKAGE:
            return ModuleSpec(name, self, origin="<pylair/__init__.py>", is_package=True)
        if name.startswith(PACKAGE + "."):
            module = name[len(PACKAGE) + 1 :]
            if module in self.sources:
                return ModuleSpec(name, self, origin=f"<pylair/{module}.py>")
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        spec = module.__spec__
        source = self.get_source(spec.name)
        module.__dict__["__builtins__"] = self.builtins
        exec(compile(source, spec.origin, "exec", dont_inherit=True), module.__dict__)

    def get_source(self, name):
        # The package itself is the module without a name.
        return self.sources.get(name[len(PACKAGE) + 1 :], "")


def run(sources, entry, config):
    """Installs the importer and calls `main(config)` of the entry module."""
    sys.meta_path.insert(0, MemoryImporter(sources))
    importlib.import_module(f"{PACKAGE}.{entry}").main(config)
