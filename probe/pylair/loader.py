"""Loads the probe's modules from memory. Runs first in every process that the bootstrap starts.

Stage 1 executes this file's text and calls `run`. The modules become `_pylair.NAME` with file names such as `<pylair/execute.py>`,
which is how the rest of the probe recognises its own frames. No file is read or written.
"""

import builtins
import importlib
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType

# A program that replaces `builtins.repr` shall not break the probe; nor this file, whose functions are called later too.
__builtins__ = dict(vars(builtins))

PACKAGE = "_pylair"
# Longest piece of a module that is compiled at once, if it can be cut, and how long an arriving probe works without a rest.
_PIECE_LINES = 40
_WORK_SECONDS = 0.001
_REST_SECONDS = 0.0005

_import = builtins.__import__
# What these hold the probe reads and sets for the program's sake.
_SHARED = ("builtins", "sys", "warnings")
# Modules in Python before others in C, whose functions and plain numbers will do.
_IN_C = {"signal": "_signal", "socket": "_socket"}
# What tests replace and the probe needs later, which may not be imported yet.
_REPLACED = ("gc", "io", "mmap", "os", "resource", "select", "signal", "socket", "threading", "time")


class MemoryImporter:
    """A finder and loader for `_pylair` and its modules."""

    def __init__(self, sources, rest=None):
        self.sources = sources
        self.builtins = dict(__builtins__)
        # Where others wait while we compile, a module is compiled in pieces, and this is called after each.
        self.rest = rest

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
        flags = 0
        for piece in [source] if self.rest is None else _pieces(source):
            exec(compile(piece, spec.origin, "exec", flags, True), module.__dict__)
            if self.rest is not None:
                # What the first piece imports from the future holds for all.
                flags = getattr(module.__dict__.get("annotations"), "compiler_flag", 0)
                self.rest()

    def get_source(self, name):
        # The package itself is the module without a name.
        return self.sources.get(name[len(PACKAGE) + 1 :], "")


def _pieces(source):
    """The source in pieces that can be compiled one by one, each with as many empty lines before it as there were lines. Cut where a
    function or a class of the module begins."""
    lines = source.split("\n")
    start = 0
    for at, line in enumerate(lines):
        if (
            at - start >= _PIECE_LINES
            and line.startswith(("def ", "class ", "async def ", "@"))
            and not lines[at - 1]
            and not lines[at - 2]
        ):
            yield "\n" * start + "\n".join(lines[start:at])
            start = at
    yield "\n" * start + "\n".join(lines[start:])


def _resting():
    """What an arriving probe does after each piece of work: it lets go of the interpreter for a moment, if it has worked for one. Only on
    this thread, which is the probe's own."""
    import _thread
    import time

    try:
        # gevent's own would wait for its loop.
        sleep = sys.modules["gevent.monkey"].get_original("time", "sleep")
    except Exception:
        sleep = time.sleep
    arriving, rested = _thread.get_ident(), [time.perf_counter()]

    def rest():
        if _thread.get_ident() == arriving and time.perf_counter() - rested[0] > _WORK_SECONDS:
            sleep(_REST_SECONDS)
            rested[0] = time.perf_counter()

    return rest


class ApartImporter(MemoryImporter):
    """The same in a process whose program may do anything to Python. The probe's modules get copies of those they import, made before
    the program runs: whatever it replaces or removes in the standard library is still there for the probe. Modules that are not
    copied by then, those of the program, are imported as usual."""

    def __init__(self, sources):
        super().__init__(sources)
        self.builtins["__import__"] = self.import_for_probe
        self.own = {}
        self.copies = {}
        self.is_sealed = False

    def run(self, entry, config):
        self.load(entry).main(config)

    def seal(self):
        """Copies what the probe may import later and is there already. Called before anything of the program's is imported."""
        for name, module in list(sys.modules.items()):
            if type(module) is ModuleType and name.partition(".")[0] not in (PACKAGE, "__main__"):
                self.copy(name)
        self.is_sealed = True

    def import_for_probe(self, name, names=None, _=None, wanted=(), level=0):
        """`__import__` of the probe's modules."""
        if level:
            for module in () if name else wanted or ():
                if module in self.sources:
                    self.load(module)
            return self.load(name)
        if name in _SHARED or (self.is_sealed and name not in self.copies):
            return _import(name, names, None, wanted, 0)
        module = self.copy(name)
        return module if wanted else self.copy(name.partition(".")[0])

    def copy(self, name):
        copy = self.copies.get(name)
        if copy is None:
            if name in _SHARED:
                return sys.modules[name]
            _import(name)
            module = sys.modules[name]
            self.copies[name] = copy = ModuleType(name)
            copy.__dict__.update(module.__dict__)
            if name == "os":
                copy.path = self.copy("posixpath")
            if name in _IN_C:
                behind = self.copy(_IN_C[name]).__dict__
                copy.__dict__.update((each, value) for each, value in behind.items() if not each.startswith("__"))
            if name == "socket":
                copy.socket = _with_end(copy.socket)
            parent, _, child = name.rpartition(".")
            if parent:
                self.copy(parent).__dict__[child] = copy
        return copy

    def load(self, name):
        """A module of the probe's, which may be the package itself. Does not depend on what the program did to importing."""
        module = self.own.get(name)
        if module is not None:
            return module
        package = self.load("") if name else None
        spec = self.find_spec(f"{PACKAGE}.{name}" if name else PACKAGE)
        if spec is None:
            raise ImportError(f"the probe has no module {name}")
        module = ModuleType(spec.name)
        module.__spec__, module.__loader__, module.__package__ = spec, self, PACKAGE
        if package is None:
            module.__path__ = []
        self.own[name] = module
        try:
            sys.modules[spec.name] = module
        except Exception:
            # Some program's own idea of `sys.modules`. Nobody has to find the module there.
            pass
        try:
            self.exec_module(module)
        except BaseException:
            del self.own[name]
            raise
        if package is not None:
            package.__dict__[name] = module
        return module


class PluginImporter(ApartImporter):
    """The same in a test run: tests replace time, sockets and files, and some libraries do so in every module that is loaded. The modules
    come from memory, or from the directory of the installed package."""

    def __init__(self, sources, directory=None):
        if directory is not None:
            names = [name[:-3] for name in _import("os").listdir(directory) if name.endswith(".py")]
            sources = {"" if name == "__init__" else name: f"{directory}/{name}.py" for name in names}
        super().__init__(sources)
        self.has_files = directory is not None

    def seal(self):
        for name in _REPLACED:
            self.copy(name)
        super().seal()

    def copy(self, name):
        is_new = name not in self.copies
        copy = super().copy(name)
        if is_new and name in self.copies:
            # Whoever looks for modules to replace knows them by their names.
            copy.__name__ = f"{PACKAGE} {name}"
        return copy

    def exec_module(self, module):
        if not self.has_files:
            super().exec_module(module)
            return
        name = module.__spec__.name
        path = self.sources[name[len(PACKAGE) + 1 :]]
        module.__dict__.update(__builtins__=self.builtins, __file__=path)
        if name != PACKAGE:
            # As it is compiled already, if it is.
            exec(SourceFileLoader(name, path).get_code(name), module.__dict__)


def _with_end(base):
    """A class of sockets without the Python of `socket.socket`, but for `with`."""

    class Socket(base):
        __slots__ = ()

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.close()

    return Socket


def run(sources, entry, config):
    """Installs the importer and calls `main(config)` of the entry module."""
    if entry == "template":
        importer = ApartImporter(sources)
        sys.meta_path.insert(0, importer)
        importer.run(entry, config)
    else:
        # Where a probe is already, its modules are the ones that are asked.
        if PACKAGE not in sys.modules:
            sys.meta_path.insert(0, MemoryImporter(sources, _resting() if entry == "attached" else None))
        importlib.import_module(f"{PACKAGE}.{entry}").main(config)
