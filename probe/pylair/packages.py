"""What a session's imports need, and packages that were installed while it lives. Runs on the worker's main thread, between cells.

Nothing is imported to find out whether it is there, and no source is run: it is parsed.
"""

from __future__ import annotations

import importlib.machinery
import os
import site as site_module
import sys
import types
from typing import Any, Iterator

_MAX_MISSING = 100
_MAX_LOADED = 1000
_MODULE_ENDINGS = tuple(ending for suffix in importlib.machinery.all_suffixes() for ending in (suffix, f"/__init__{suffix}"))
_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


def imports(source: str) -> dict[str, Any]:
    """The modules this source imports that are not there. A source that cannot be parsed imports nothing."""
    import ast
    import warnings

    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        with warnings.catch_warnings():
            # They are told when the cell is compiled to be run.
            warnings.simplefilter("ignore")
            tree = compile(source, "<imports>", "exec", flags, dont_inherit=True)
        names = dict.fromkeys(_imported(tree, ast))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {"missing": []}
    missing = [name for name in names if not _is_there(name)]
    return {"missing": missing[:_MAX_MISSING]}


def _imported(tree: Any, ast: Any) -> Iterator[str]:
    """Names of modules in the order of the source, without those that the source itself is prepared to miss."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if not node.level and node.module:
                yield node.module
        elif isinstance(node, ast.Call):
            name = _literal_import(node, ast)
            if name is not None:
                yield name
        waiting.extend(reversed(_children(node, ast)))


def _children(node: Any, ast: Any) -> list[Any]:
    if isinstance(node, ast.Try) and any(_catches_import_errors(handler.type, ast) for handler in node.handlers):
        return [*node.orelse, *node.finalbody]
    if isinstance(node, ast.If) and _last_name(node.test, ast) == "TYPE_CHECKING":
        return list(node.orelse)
    if isinstance(node, ast.With) and any(_suppresses_import_errors(item.context_expr, ast) for item in node.items):
        return []
    return list(ast.iter_child_nodes(node))


def _last_name(node: Any, ast: Any) -> str | None:
    """`b` of `b` and of `a.b`."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def _catches_import_errors(kind: Any, ast: Any) -> bool:
    if kind is None:
        return True
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(_last_name(each, ast) in _IMPORT_ERRORS for each in kinds)


def _suppresses_import_errors(node: Any, ast: Any) -> bool:
    if not isinstance(node, ast.Call) or _last_name(node.func, ast) != "suppress":
        return False
    return any(_last_name(argument, ast) in _IMPORT_ERRORS for argument in node.args)


def _literal_import(call: Any, ast: Any) -> str | None:
    """The module of `importlib.import_module("module")`, if it can be read off."""
    if _last_name(call.func, ast) not in ("import_module", "__import__") or not call.args:
        return None
    first = call.args[0]
    value = first.value if isinstance(first, ast.Constant) else None
    if not isinstance(value, str) or not all(part.isidentifier() for part in value.split(".")):
        return None
    return value


def _is_there(name: str) -> bool:
    """Whether an import would find this module. Packages above it are not imported for that; what they contain is their own business,
    except for namespaces, which contain what lies in their directories."""
    top, *rest = name.split(".")
    try:
        directories = _namespace(top)
        if directories is None:
            return top in sys.modules or _find(top) is not None
    except BaseException:
        # Somebody's own finder failed; the import itself will tell.
        return True
    for part in rest:
        places = [os.path.join(directory, part) for directory in directories]
        directories = [place for place in places if os.path.isdir(place)]
        if any(os.path.isfile(place + ending) for place in places for ending in _MODULE_ENDINGS):
            return True
        if not directories:
            return False
    return True


def _namespace(top: str) -> list[str] | None:
    """The directories of a package that consists of nothing else."""
    if top in sys.modules:
        variables = _vars(sys.modules[top])
        is_namespace = "__path__" in variables and variables.get("__file__") is None
        return list(variables["__path__"]) if is_namespace else None
    spec = _find(top)
    if spec is None or not spec.submodule_search_locations or spec.origin not in (None, "namespace"):
        return None
    return list(spec.submodule_search_locations)


def _find(top: str) -> Any:
    for finder in list(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        spec = find_spec(top, None) if find_spec is not None else None
        if spec is not None:
            return spec
    return None


def _vars(module: Any) -> dict[str, Any]:
    """A module's namespace without asking the module, which may answer for itself."""
    if not issubclass(type(module), types.ModuleType):
        return {}
    return types.ModuleType.__getattribute__(module, "__dict__")


def site(directory: str, bin: str | None) -> dict[str, Any]:
    """Puts a directory of packages in front of the others, with its .pth files, and its programs on PATH. May be asked again.

    The answer names the packages that are loaded already: they stay what they are until the interpreter is started anew.
    """
    loaded = _loaded(directory)
    if directory not in sys.path:
        added = _add(directory)
        at = _first_of_packages(directory)
        sys.path[at:at] = added
    else:
        # .pth files may be new.
        sys.path.extend(_add(directory))
    if bin:
        own = bin.split(os.pathsep)
        # Nothing when the variable is empty: an empty entry would be the working directory.
        parts = [part for part in os.environ.get("PATH", os.defpath).split(os.pathsep) if part and part not in own]
        os.environ["PATH"] = os.pathsep.join([*own, *parts])
    invalidate_caches()
    return {"loaded": loaded}


def _add(directory: str) -> list[str]:
    """Entries that `site` would append for this directory, which are taken off again."""
    before = len(sys.path)
    try:
        site_module.addsitedir(directory, set(sys.path))
    except BaseException:
        # `site` itself tells of a .pth file that raises; one that exits must not take the session with it.
        if directory not in sys.path:
            sys.path.append(directory)
    added = sys.path[before:]
    del sys.path[before:]
    return added


def _first_of_packages(directory: str) -> int:
    """Where directories of packages begin: behind the working directory, PYTHONPATH and the standard library."""
    standard = os.path.dirname(os.__file__)
    for at, entry in enumerate(sys.path):
        if os.path.basename(entry) in ("site-packages", "dist-packages"):
            return at
    return sys.path.index(standard) + 1 if standard in sys.path else len(sys.path)


def invalidate_caches() -> None:
    for finder in list(sys.meta_path):
        invalidate = getattr(finder, "invalidate_caches", None)
        if invalidate is not None:
            try:
                invalidate()
            except Exception:
                continue


def _loaded(directory: str) -> list[str]:
    """Top-level modules that were loaded from where packages are installed."""
    names = []
    for name, module in list(sys.modules.items()):
        if not isinstance(name, str) or "." in name or len(names) == _MAX_LOADED:
            continue
        file = _vars(module).get("__file__")
        if type(file) is str and ("site-packages" in file or "dist-packages" in file or file.startswith(directory)):
            names.append(name)
    return sorted(names)
