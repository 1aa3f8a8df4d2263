"""`complete`: what could be typed at a place in code. Called through look.py, in any process.

The code before the cursor is cut into tokens by a scanner of our own, which unlike the compiler's never fails and never warns. Values are
found by walking paths, so none of the program's code runs; only the columns of a DataFrame are asked for, in a throw-away.
"""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
import keyword
import os
import re
import sys
import types
from itertools import islice
from typing import Any, Iterable, NamedTuple

from . import paths, signature, source, throwaway
from .paths import MISSING, Refused

MAX_MATCHES = 200
_MAX_SCANNED_CHARS = 100_000
_MAX_ENTRIES = 20_000
_MAX_DIRECTORIES = 64
_MAX_PARSED_CHARS = 256 << 10
_MAX_KEYS = 5000
_COLUMNS_SECONDS = 0.5

_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\f]+|\\\r?\n)
    | (?P<comment>\#[^\r\n]*)
    | (?P<newline>\r?\n|\r)
    | (?P<string>[rRuUbBfFtT]{0,2}(?:'''|\"\"\"|'|"))
    | (?P<number>\d[\w.]*|\.\d\w*)
    | (?P<name>\w+)
    | (?P<op>->|:=|\*\*=?|//=?|>>=?|<<=?|!=|==|<=|>=|\.\.\.|[-+*/%@&|^]=|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENING, _CLOSING = {"(": ")", "[": "]", "{": "}"}, {")": "(", "]": "[", "}": "{"}
_NOT_OPERANDS = frozenset(keyword.kwlist) - {"None", "True", "False"}
_KEY_METHODS = frozenset({"get", "pop", "setdefault"})


class Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


class Match(NamedTuple):
    text: str
    kind: str


class _Instance(NamedTuple):
    """What is known of a value that the code will have made: its class."""

    cls: type


class _Defined(NamedTuple):
    """A function that the code defines."""

    parameters: list[str]


def complete(code: str, cursor: int, namespace: dict[str, Any], may_fork: bool = True, may_read: bool = True) -> dict[str, Any]:
    """`{"start", "end", "matches": [{"text", "kind"}]}`: each text could stand in place of the characters from `start` to `end`.
    Tables are asked for their columns if a copy may be forked, directories and files are looked into if they may be read."""
    cursor = max(0, min(cursor, len(code)))
    before = code[:cursor]
    skipped = 0
    if len(before) > _MAX_SCANNED_CHARS:
        skipped = before.find("\n", len(before) - _MAX_SCANNED_CHARS) + 1
        before = before[skipped:]
    start, matches = _Completion(before, namespace, may_fork, may_read).find()
    prefix = before[start:]
    ordered = _order(matches, prefix)
    answer: dict[str, Any] = {
        "start": start + skipped,
        "end": cursor,
        "matches": [{"text": match.text, "kind": match.kind.strip()} for match in ordered[:MAX_MATCHES]],
    }
    if len(ordered) > MAX_MATCHES:
        answer["more"] = True
    return answer


def _order(matches: Iterable[Match], prefix: str) -> list[Match]:
    """Those that begin with the prefix, each once; its own case first, then public names, then by name."""
    lower = prefix.lower()
    found: dict[str, Match] = {}
    for match in matches:
        if match.text.lower().startswith(lower) and match.text != prefix:
            found.setdefault(match.text, match)

    def rank(match: Match) -> tuple[Any, ...]:
        text = match.text
        bare = text.lstrip("'\"")
        private = 0 if not bare.startswith("_") else 2 if bare.startswith("__") else 1
        return not text.startswith(prefix), _RANKS.get(match.kind, 1), private, bare.lower(), text

    return sorted(found.values(), key=rank)


# An attribute that is shown before others.
_COLUMN = "attribute "
_RANKS = {"keyword_argument": 0, "key": 0, _COLUMN: 0, "keyword": 2}


def scan(code: str) -> tuple[list[Token], Token | None]:
    """The tokens of code that may be unfinished, and the string or comment in which it ends, if it does."""
    tokens: list[Token] = []
    at, end = 0, len(code)
    match_at = _TOKEN.match
    while at < end:
        match = match_at(code, at)
        if match is None:
            break
        kind, text = match.lastgroup or "op", match.group()
        start, at = at, match.end()
        if kind == "space":
            continue
        if kind == "comment":
            if at == end:
                return tokens, Token(kind, text, start, at)
            continue
        if kind == "string":
            closed = _string_end(code, at, text)
            if closed is None:
                return tokens, Token(kind, text, start, at)
            at = closed
            text = code[start:at]
        tokens.append(Token(kind, text, start, at))
    return tokens, None


def _string_end(code: str, at: int, opening: str) -> int | None:
    """Where the string that was opened ends; None if the code ends first. One that misses its quote ends with the line."""
    quote = opening.lstrip("rRuUbBfFtT")
    while True:
        closing = code.find(quote, at)
        if len(quote) == 1:
            line_end = code.find("\n", at)
            while line_end > 0 and code[line_end - 1] == "\\" and (closing < 0 or line_end < closing):
                line_end = code.find("\n", line_end + 1)
            if line_end >= 0 and (closing < 0 or line_end < closing):
                return line_end
        if closing < 0:
            return None
        backslashes = 0
        while code[closing - 1 - backslashes] == "\\":
            backslashes += 1
        if backslashes % 2 == 0 or closing - backslashes < at:
            return closing + len(quote)
        at = closing + 1


class _Completion:
    def __init__(self, code: str, namespace: dict[str, Any], may_fork: bool, may_read: bool) -> None:
        self.code = code
        self.namespace = namespace
        self.may_fork = may_fork
        self.may_read = may_read
        self.tokens, self.inside = scan(code)
        self.known: dict[str, Any] = {}

    def find(self) -> tuple[int, Iterable[Match]]:
        """Where the completed text begins, and what could stand there."""
        end = len(self.code)
        if self.inside is not None:
            return self._in_string(self.inside) if self.inside.kind == "string" else (end, ())
        tokens = self.tokens
        start = end
        if tokens and tokens[-1].end == end and tokens[-1].kind in ("name", "number"):
            last = tokens.pop()
            if last.kind == "number":
                return end, ()
            start = last.start
        statement = self._statement()
        first = statement[0].text if statement else ""
        if first in ("import", "from"):
            return start, self._import(statement)
        previous = tokens[-1] if tokens else None
        if previous is None:
            return start, self._names()
        if previous.text == ".":
            return start, self._attributes(len(tokens) - 1)
        if previous.text in ("def", "class", "as") and previous.kind == "name":
            return start, ()
        return start, [*self._keyword_arguments(), *self._bare_keys(previous), *self._names()]

    def _statement(self) -> list[Token]:
        """The tokens of the statement that the cursor is in."""
        depth = 0
        first = 0
        for at, token in enumerate(self.tokens):
            if token.kind == "op":
                if token.text in _OPENING:
                    depth += 1
                elif token.text in _CLOSING:
                    depth = max(0, depth - 1)
                elif token.text in (";", ":") and depth == 0:
                    first = at + 1
            elif token.kind == "newline" and depth == 0:
                first = at + 1
            elif token.text in ("import", "from", "def", "class") and depth and self._begins_line(at):
                # A bracket was never closed.
                depth, first = 0, at
        return self.tokens[first:]

    def _begins_line(self, at: int) -> bool:
        return at > 0 and self.tokens[at - 1].kind == "newline" and self.code[self.tokens[at].start - 1] == "\n"

    # Values.

    def _expression_start(self, end: int) -> int | None:
        """The index of the first token of the primary expression that ends before the token at `end`."""
        at = end - 1
        while at >= 0:
            token = self.tokens[at]
            if token.text in _CLOSING:
                opening = self._opening(at)
                if opening is None:
                    return None
                if token.text == "}" or opening == 0 or not self._is_operand(self.tokens[opening - 1]):
                    return opening
                at = opening - 1
                continue
            if not self._is_operand(token):
                return None
            if at == 0 or self.tokens[at - 1].text != ".":
                return at
            at -= 2
        return None

    def _is_operand(self, token: Token) -> bool:
        if token.kind == "name":
            return token.text not in _NOT_OPERANDS
        return token.kind == "string" or token.text in (")", "]")

    def _opening(self, closing: int) -> int | None:
        depth = 0
        for at in range(closing, -1, -1):
            text = self.tokens[at].text
            if text in _CLOSING and self.tokens[at].kind == "op":
                depth += 1
            elif text in _OPENING and self.tokens[at].kind == "op":
                depth -= 1
                if depth == 0:
                    return at
        return None

    def _value_before(self, end: int) -> Any:
        """The value of the expression before the token at `end`, or its class; MISSING if it cannot be known without running it."""
        start = self._expression_start(end)
        if start is None:
            return MISSING
        first, last = self.tokens[start], self.tokens[end - 1]
        if last.text == ")":
            opening = self._opening(end - 1)
            made = self._value_before(opening) if opening else MISSING
            return _Instance(made) if paths.is_class(made) else MISSING
        if first.text in ("[", "{"):
            return _Instance(list if first.text == "[" else dict)
        text = self.code[first.start : last.end]
        try:
            path = paths.parse(text)
            root = path.steps[0]
            known = self._known().get(root.value, MISSING) if root.kind == "name" else MISSING
            if known is MISSING:
                return paths.walk(path, self.namespace)
            if len(path.steps) == 1 or _is_hint(known):
                return known if len(path.steps) == 1 else MISSING
            return paths.walk(path, {**self.namespace, root.value: known})
        except Refused:
            return MISSING

    def _known(self) -> dict[str, Any]:
        """What the code itself says about its names: imports of loaded modules, literals, instances of known classes, functions."""
        if self.known or not self.tokens:
            return self.known
        known = self.known
        tokens = self.tokens
        # So that a value that is looked for on the way does not begin this again.
        known[""] = MISSING
        for at, token in enumerate(tokens):
            following = tokens[at + 1] if at + 1 < len(tokens) else None
            if token.kind != "name" or following is None or (at and tokens[at - 1].text == "."):
                continue
            if token.text == "def" and following.kind == "name":
                known[following.text] = _Defined(self._parameters_from(at + 2))
            elif token.text == "import":
                self._note_imports(at)
            elif following.text == "=" and (at == 0 or tokens[at - 1].kind == "newline" or tokens[at - 1].text in (";", ":")):
                known[token.text] = self._assigned(at + 2)
        return known

    def _assigned(self, at: int) -> Any:
        """What is known of the value whose first token is at this place."""
        if at >= len(self.tokens):
            return MISSING
        first = self.tokens[at]
        if first.kind == "string":
            prefix = first.text[: len(first.text) - len(first.text.lstrip("rRuUbBfFtT"))].lower()
            made: Any = _Instance(bytes if "b" in prefix else str)
            end = at + 1
        elif first.text in ("[", "{", "("):
            made = _Instance({"[": list, "{": dict, "(": tuple}[first.text])
            end = self._closing(at) + 1
        elif first.kind == "name" and first.text not in _NOT_OPERANDS:
            end = at + 1
            while end + 1 < len(self.tokens) and self.tokens[end].text == "." and self.tokens[end + 1].kind == "name":
                end += 2
            made = self._value_before(end)
            if end < len(self.tokens) and self.tokens[end].text == "(":
                made = _Instance(made) if paths.is_class(made) else MISSING
                end = self._closing(end) + 1
        else:
            return MISSING
        return made if end >= len(self.tokens) or self.tokens[end].kind == "newline" or self.tokens[end].text == ";" else MISSING

    def _closing(self, opening: int) -> int:
        depth = 0
        for at in range(opening, len(self.tokens)):
            if self.tokens[at].kind == "op":
                depth += (self.tokens[at].text in _OPENING) - (self.tokens[at].text in _CLOSING)
                if depth == 0:
                    return at
        return len(self.tokens)

    def _parameters_from(self, opening: int) -> list[str]:
        if opening >= len(self.tokens) or self.tokens[opening].text != "(":
            return []
        names = []
        depth = 0
        for at in range(opening, len(self.tokens)):
            token = self.tokens[at]
            if token.kind == "op":
                depth += (token.text in _OPENING) - (token.text in _CLOSING)
                if depth == 0:
                    break
            elif token.kind == "name" and depth == 1 and self.tokens[at - 1].text in ("(", ",") and token.text.isidentifier():
                names.append(token.text)
        return names

    def _note_imports(self, at: int) -> None:
        """`import a.b as c` and `from a import b as c`, of modules that are loaded."""
        tokens = self.tokens
        parent = ""
        begin = at - 1
        while begin >= 0 and (tokens[begin].kind == "name" or tokens[begin].text == ".") and tokens[begin].text != "from":
            begin -= 1
        if begin >= 0 and tokens[begin].text == "from":
            parent = "".join(token.text for token in tokens[begin + 1 : at])
        names: list[str] = []
        for token in [*tokens[at + 1 :], Token("newline", "\n", 0, 0)]:
            if token.text in ("(", ")"):
                continue
            if token.kind == "name" or token.text == ".":
                names.append(token.text)
                continue
            self._note_import(parent, names)
            names = []
            if token.text != "," and token.kind != "newline":
                break
            if token.kind == "newline":
                break

    def _note_import(self, parent: str, names: list[str]) -> None:
        if not names:
            return
        alias = None
        if "as" in names:
            cut = names.index("as")
            names, alias = names[:cut], names[cut + 1] if cut + 1 < len(names) else None
        name = "".join(names)
        if parent:
            module = _loaded(parent)
            value = paths.lookup(paths.module_dict(module), name) if module is not None else MISSING
        elif alias is None:
            name = name.partition(".")[0]
            value = _loaded(name) or MISSING
        else:
            value = _loaded(name) or MISSING
        self.known[alias or name] = value

    # What could stand there.

    def _attributes(self, dot: int) -> Iterable[Match]:
        value = self._value_before(dot)
        if value is MISSING or type(value) is _Defined:
            return [] if value is MISSING else _matches(paths.attribute_names(complete), "attribute")
        if type(value) is _Instance:
            names: dict[str, None] = {}
            for base in paths.mro(value.cls):
                names.update(dict.fromkeys(paths.plain_names(paths.class_dict(base))))
            return _matches(names, "attribute")
        found = paths.attribute_names(value)
        if issubclass(type(value), types.ModuleType):
            attributes = paths.module_dict(value)
            listed = paths.lookup(attributes, "__all__")
            if type(listed) is list or type(listed) is tuple:
                found += [name for name in listed if type(name) is str]
        if self._is_table(value):
            return [*_matches(self._columns(value), _COLUMN), *_matches(found, "attribute")]
        return _matches(found, "attribute")

    def _is_table(self, value: Any) -> bool:
        return paths.short_name(type(value)).endswith("DataFrame") and paths.library(type(value)) is not None

    def _columns(self, table: Any) -> list[str]:
        if not self.may_fork:
            return []
        names = throwaway.run([lambda: [str(name) for name in islice(table.columns, _MAX_KEYS)]], _COLUMNS_SECONDS)[0].value
        return names if type(names) is list else []

    def _keys(self, value: Any) -> list[Any]:
        """Keys with which `value[…]` would find something."""
        if issubclass(type(value), dict):
            return list(islice(dict.keys(value), _MAX_KEYS))
        if self._is_table(value):
            return list(self._columns(value))
        if type(value) is type(os.environ):
            data = paths.lookup(paths.instance_dict(value) or {}, "_data")
            if type(data) is dict:
                return [key.decode("utf-8", "replace") for key in list(data) if type(key) is bytes]
        if paths.is_numpy_array_class(type(value)):
            names = paths.attribute(paths.attribute(value, "dtype"), "names")
            return list(names) if type(names) is tuple else []
        return []

    def _bare_keys(self, previous: Token) -> Iterable[Match]:
        """`d[` before a quote is typed."""
        if previous.text != "[":
            return ()
        value = self._value_before(len(self.tokens) - 1)
        if value is MISSING or _is_hint(value):
            return ()
        return [Match(repr(key), "key") for key in self._keys(value) if paths.is_plain(key)]

    def _in_string(self, string: Token) -> tuple[int, Iterable[Match]]:
        end = len(self.code)
        opening = string.text
        quote = opening.lstrip("rRuUbBfFtT")
        prefix = opening[: len(opening) - len(quote)].lower()
        content = self.code[string.end :]
        if "f" in prefix or "t" in prefix:
            brace = _open_brace(content)
            if brace is not None:
                inner = _Completion(content[brace:], self.namespace, self.may_fork, self.may_read)
                inner.known.update(self._known())
                start, matches = inner.find()
                return start + string.end + brace, matches
        keys = self._keys_here()
        if keys is not None:
            texts = [_inside_quotes(key, quote, "r" in prefix) for key in keys if type(key) is (bytes if "b" in prefix else str)]
            return string.end, [Match(text, "key") for text in texts]
        if len(quote) == 3 or "\n" in content or len(content) > 4096 or not self.may_read:
            return end, ()
        start = string.end + content.rfind("/") + 1
        return start, _files(content, self.code[start:])

    def _keys_here(self) -> list[Any] | None:
        """The keys that fit when the string is `d["` or `d.get("`; None when it is something else."""
        tokens = self.tokens
        if not tokens:
            return None
        if tokens[-1].text == "[":
            at = len(tokens) - 1
        elif len(tokens) > 3 and tokens[-1].text == "(" and tokens[-2].text in _KEY_METHODS and tokens[-3].text == ".":
            at = len(tokens) - 3
        else:
            return None
        value = self._value_before(at)
        if value is MISSING or _is_hint(value):
            return None if tokens[-1].text == "[" and self._expression_start(at) is None else []
        return self._keys(value)

    def _keyword_arguments(self) -> list[Match]:
        """Parameters of the call that the cursor is in, where an argument begins."""
        tokens = self.tokens
        if not tokens or (tokens[-1].text not in ("(", ",") and tokens[-1].kind != "newline"):
            return []
        opening = self._enclosing()
        if opening is None or tokens[opening].text != "(" or opening == 0:
            return []
        start = self._expression_start(opening)
        if start is None or (start and tokens[start - 1].text in ("def", "class")):
            return []
        callee = self._value_before(opening)
        if type(callee) is _Defined:
            names = callee.parameters
        elif callee is MISSING or type(callee) is _Instance:
            return []
        else:
            found = signature.parameters(callee) or []
            names = [parameter.name for parameter in found if parameter.kind in ("ordinary", "keyword")]
        used = {token.text for token, then in zip(tokens[opening:], tokens[opening + 1 :]) if then.text == "=" and token.kind == "name"}
        return [Match(name + "=", "keyword_argument") for name in names if name not in used]

    def _enclosing(self) -> int | None:
        """The bracket that is open at the cursor."""
        depth = 0
        for at in range(len(self.tokens) - 1, -1, -1):
            token = self.tokens[at]
            if token.kind != "op":
                continue
            if token.text in _CLOSING:
                depth += 1
            elif token.text in _OPENING:
                if depth == 0:
                    return at
                depth -= 1
        return None

    def _names(self) -> list[Match]:
        found = [Match(name, "name") for name in self._written()]
        found += _matches(paths.plain_names(self.namespace), "name")
        found += [Match(name, "keyword") for name in keyword.kwlist]
        found += _matches(_BUILTINS, "name")
        return found

    def _written(self) -> Iterable[str]:
        """Names in the code that are not attributes or the names of arguments."""
        depth = 0
        before = ""
        for token, following in zip(self.tokens, [*self.tokens[1:], None]):
            if token.kind == "op":
                depth += (token.text in _OPENING) - (token.text in _CLOSING)
            is_argument = depth > 0 and following is not None and following.text == "="
            if token.kind == "name" and before != "." and not is_argument and not keyword.iskeyword(token.text):
                yield token.text
            before = token.text

    def _import(self, statement: list[Token]) -> Iterable[Match]:
        texts = [token.text for token in statement if token.kind != "newline"]
        if texts[-1] == "as":
            return ()
        if texts[0] == "import" or "import" not in texts:
            last = len(texts) - texts[::-1].index(",") if "," in texts else 1
            parts = texts[last:]
            if parts and parts[-1] != ".":
                return [Match("import" if texts[0] == "from" else "as", "keyword")]
            if parts and parts[0] == ".":
                return ()
            return _matches(self._modules("".join(parts[:-1])), "module")
        at = texts.index("import")
        if texts[-1] not in ("import", "(", ","):
            return [Match("as", "keyword")]
        name = "".join(texts[1:at])
        if name.startswith("."):
            return ()
        module = _loaded(name)
        found: list[Match] = []
        if module is not None:
            found += _matches(self._attributes_of_module(module), "name")
        elif self.may_read:
            found += _matches(_names_in_file(name), "name")
        return found + _matches(self._modules(name), "module")

    def _attributes_of_module(self, module: types.ModuleType) -> list[str]:
        attributes = paths.module_dict(module)
        listed = paths.lookup(attributes, "__all__")
        more = [name for name in listed if type(name) is str] if type(listed) is list or type(listed) is tuple else []
        return more + paths.plain_names(attributes)

    def _modules(self, parent: str) -> Iterable[str]:
        """Modules that could be imported below a package, or without one at the top."""
        start = parent + "." if parent else ""
        names = [name[len(start) :] for name in list(sys.modules) if type(name) is str and name.startswith(start)]
        found = dict.fromkeys(name for name in names if name and "." not in name and name != "_pylair")
        if not parent:
            found.update(dict.fromkeys(sys.builtin_module_names))
        if self.may_read:
            for directory in _search_path(parent):
                found.update(dict.fromkeys(_modules_in(directory)))
        return found


_BUILTINS = [name for name in vars(builtins) if not name.startswith("_")]


def _matches(names: Iterable[str], kind: str) -> list[Match]:
    return [Match(name, kind) for name in names if name.isidentifier()]


def _is_hint(value: Any) -> bool:
    return type(value) is _Instance or type(value) is _Defined


def _loaded(name: str) -> types.ModuleType | None:
    module = sys.modules.get(name)
    return module if issubclass(type(module), types.ModuleType) else None


def _open_brace(content: str) -> int | None:
    """Where the expression begins that an f-string's text ends in, if it ends in one."""
    at = 0
    opened: list[int] = []
    while at < len(content):
        if content[at] == "{":
            if not opened and content.startswith("{{", at):
                at += 2
                continue
            opened.append(at + 1)
        elif content[at] == "}" and opened:
            opened.pop()
        at += 1
    return opened[-1] if opened else None


def _inside_quotes(key: Any, quote: str, raw: bool) -> str:
    if type(key) is bytes:
        return repr(key)[2:-1]
    if raw:
        return key
    return key.replace("\\", "\\\\").replace(quote[0], "\\" + quote[0]).replace("\n", "\\n")


def _files(typed: str, prefix: str) -> list[Match]:
    """Entries of the directory that a string names."""
    directory = typed[: len(typed) - len(prefix)] or "."
    found = []
    try:
        with os.scandir(os.path.expanduser(directory)) as entries:
            for entry in islice(entries, _MAX_ENTRIES):
                if not entry.name.startswith(prefix) or (entry.name.startswith(".") and not prefix):
                    continue
                try:
                    name = entry.name + "/" if entry.is_dir() else entry.name
                    name.encode("utf-8")
                except (OSError, UnicodeEncodeError):
                    continue
                found.append(Match(name, "path"))
    except (OSError, ValueError):
        pass
    return found


# Modules that could be imported, by directory: its time of change and the names.
_directories: dict[str, tuple[int, list[str]]] = {}


def _search_path(parent: str) -> list[str]:
    if not parent:
        return [entry or "." for entry in sys.path if type(entry) is str] if type(sys.path) is list else []
    module = _loaded(parent)
    if module is not None:
        found = paths.lookup(paths.module_dict(module), "__path__")
        return [entry for entry in found if type(entry) is str] if type(found) is list else []
    below = parent.replace(".", "/")
    return [os.path.join(entry, below) for entry in _search_path("")]


def _modules_in(directory: str) -> list[str]:
    try:
        changed = os.stat(directory).st_mtime_ns
        known = _directories.get(directory)
        if known is not None and known[0] == changed:
            return known[1]
        with os.scandir(directory) as entries:
            found = _list_modules(directory, islice(entries, _MAX_ENTRIES))
    except (OSError, ValueError):
        return []
    if len(_directories) >= _MAX_DIRECTORIES:
        _directories.clear()
    _directories[directory] = changed, found
    return found


def _list_modules(directory: str, entries: Iterable[os.DirEntry[str]]) -> list[str]:
    suffixes = importlib.machinery.all_suffixes()
    installed = directory.endswith("-packages")
    found = {}
    for entry in entries:
        stem, dot, rest = entry.name.partition(".")
        if not stem.isidentifier() or stem in ("__pycache__", "__init__", "__main__"):
            continue
        if dot:
            if dot + rest in suffixes:
                found[stem] = None
        elif (installed and entry.is_dir()) or os.path.exists(os.path.join(directory, stem, "__init__.py")):
            found[stem] = None
    return list(found)


def _names_in_file(module: str) -> list[str]:
    """The names that a module which is not loaded would have, as far as its text shows them."""
    parent, _, name = module.rpartition(".")
    for directory in _search_path(parent):
        for file in (os.path.join(directory, name, "__init__.py"), os.path.join(directory, name + ".py")):
            text = source.read_file(file)
            if text is not None:
                return _top_names(text)
    return []


def _top_names(text: str) -> list[str]:
    if len(text) > _MAX_PARSED_CHARS:
        return []
    try:
        with paths.NoWarnings():
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    names: list[str] = []
    _collect_names(tree.body, names)
    return names


def _collect_names(body: Iterable[ast.AST], names: list[str]) -> None:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names += [alias.asname or alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                names += [part.id for part in ast.walk(target) if isinstance(part, ast.Name)]
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            _collect_names(node.body, names)
            _collect_names(getattr(node, "orelse", ()), names)
            for handler in getattr(node, "handlers", ()):
                _collect_names(handler.body, names)
