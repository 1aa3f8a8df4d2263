"""Paths: what is one, and that walking one runs nothing."""

from __future__ import annotations

import builtins
import collections
import time
import types

import pytest

from pylair import paths

HOSTILE = """
def boom(*args, **kwargs): raise SystemExit("user code ran")
class Meta(type):
    __eq__ = __hash__ = __getattribute__ = __instancecheck__ = __subclasscheck__ = boom
class Hostile(metaclass=Meta):
    __getattribute__ = __getattr__ = __dir__ = __len__ = __iter__ = __eq__ = __hash__ = __repr__ = __bool__ = __contains__ = boom
    __class__ = property(boom)
    kept = 5
    prop = property(boom)
    def method(self): pass
class Key(str):
    __hash__ = str.__hash__
    def __eq__(self, other): boom()
class LoudDict(dict):
    __getitem__ = __iter__ = items = keys = get = __len__ = __missing__ = boom
class LoudList(list):
    __iter__ = __len__ = boom
"""


@pytest.fixture
def namespace():
    namespace = {"__builtins__": __builtins__}
    exec(HOSTILE, namespace)
    hostile = object.__new__(namespace["Hostile"])
    object.__setattr__(hostile, "own", 7)
    namespace.update(hostile=hostile, keyed={namespace["Key"]("a"): 1, "b": 2}, loud=namespace["LoudList"]([1, 2]))
    namespace["plain"] = {"a": [1, {"b": (3, 4)}], 1: "one", (1, "x"): "pair", None: "none"}
    namespace["counted"] = collections.defaultdict(list, a=1)
    namespace["i"] = 1
    return namespace


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("plain['a'][1]['b'][-1]", 4),
        ('plain [ "a" ] [0:1]', [1]),
        ("plain[1, 'x']", "pair"),
        ("plain[None]", "none"),
        ("plain['a'][i]['b'][0]", 3),
        ("hostile.own", 7),
        ("hostile.kept", 5),
        ("Hostile.kept", 5),
        ("keyed['b']", 2),
        ("loud[0]", 1),
        ("'text'[1:]", "ext"),
        ("i.real", 1),
        ("dict.__name__", "dict"),
    ],
)
def test_a_path_is_walked_without_running_anything(namespace, path, expected):
    assert paths.walk(paths.parse(path), namespace) == expected


def test_a_method_is_bound_and_not_called(namespace):
    assert paths.walk(paths.parse("hostile.method"), namespace).__func__.__name__ == "method"


@pytest.mark.parametrize(
    "path", ["f()", "a + b", "[1, 2]", "a if b else c", "", "a.", "lambda: 1", "a[b()]", "a := 1", "*a", "import os", "a; b"]
)
def test_what_computes_is_no_path(path):
    with pytest.raises(paths.Refused) as refused:
        paths.parse(path)
    assert refused.value.kind == "bad_path"


@pytest.mark.parametrize("text", [r"a['\d']", "1if 2else 3", "a[1if 2else 3]", "0x1for x in y", "a is 1"])
def test_a_bad_path_warns_nobody(recwarn, text):
    for ask in (paths.parse, paths.check):
        with pytest.raises(paths.Refused):
            ask(text)
    assert not recwarn.list


def test_an_item_that_c_code_has_not_learned_to_find_is_refused():
    namespace = {"view": memoryview(bytearray(6)).cast("B", [2, 3])}
    assert paths.walk(paths.parse("view[1, 2]"), namespace) == 0
    for path in ("view[0]", "view[0:1, 0]"):
        with pytest.raises(paths.Refused) as refused:
            paths.walk(paths.parse(path), namespace)
        assert refused.value.kind == "no_such_item"


def test_an_index_larger_than_a_machine_word_is_past_the_end():
    namespace = {"queue": collections.deque([1]), "items": [1], "text": "x", "numbers": range(3)}
    for name in namespace:
        for index in (10**19, -(10**19)):
            with pytest.raises(paths.Refused) as refused:
                paths.walk(paths.parse(f"{name}[{index}]"), namespace)
            assert refused.value.kind == "no_such_item"
            assert "past the end" in str(refused.value)


def test_long_names_that_are_alike_cost_little():
    names = [f"{'long_name_' * 40}{number}" for number in range(2000)]
    began = time.thread_time()
    assert paths.did_you_mean("long_name_" * 40, names) is not None
    # Comparing all of them takes a minute.
    assert time.thread_time() - began < 2


@pytest.mark.parametrize(
    ("path", "kind", "said"),
    [
        ("plian", "no_such_name", "did you mean 'plain'?"),
        ("hostile.prop", "needs_code", "execute"),
        ("hostile.other", "needs_code", "execute"),
        ("i.reel", "no_such_attribute", "'real'"),
        ("plain['A']", "no_such_item", "'a'"),
        ("plain[0]", "no_such_item", "the keys are 'a', 1"),
        ("counted['b']", "no_such_item", "the keys are 'a'"),
        ("plain['a'][9]", "no_such_item", "the length is 2"),
        ("keyed['a']", "no_such_item", "'b'"),
        ("hostile[0]", "no_such_item", ""),
    ],
)
def test_what_is_not_there_is_refused_with_a_hint(namespace, path, kind, said):
    with pytest.raises(paths.Refused) as refused:
        paths.walk(paths.parse(path), namespace)
    assert refused.value.kind == kind
    assert said in (refused.value.hint or "")


def test_the_key_of_a_subclass_that_computes_is_refused(namespace):
    namespace["computing"] = namespace["LoudDict"](a=1)
    with pytest.raises(paths.NeedsCode):
        paths.walk(paths.parse("computing['a']"), namespace)


@pytest.mark.parametrize("text", ["x # c", "(x)", "1", "x;y", "x = 1", "f(1)", "x\n# c", "x if y else z"])
def test_source_is_only_written_around_a_whole_path(text):
    with pytest.raises(paths.Refused):
        paths.check(text)


@pytest.mark.parametrize("text", ["x", " a.b ", "a['#'].b[1:2]", "größe.b"])
def test_a_whole_path_may_have_source_around_it(text):
    paths.check(text)


PYTHONS_OWN = [
    "__builtins__",
    "__name__",
    "__loader__",
    "__spec__",
    "__debug__",
    "__\uff42uiltins__",
    " __builtins__ ",
    "__builtins__.print",
    "__builtins__.__dict__['print']",
    "here.__builtins__",
    "here.__dict__['__name__']",
    "hidden.len",
    "names[which]",
]


@pytest.fixture
def own(namespace):
    here = types.ModuleType("__main__")
    here.__dict__.update(namespace, __builtins__=builtins, hidden=builtins, names=builtins.__dict__, which="len", here=here)
    return here.__dict__


@pytest.mark.parametrize("text", PYTHONS_OWN)
def test_what_python_needs_is_not_set(own, text):
    paths.check(text)
    with pytest.raises(paths.Refused) as refused:
        paths.check_assigned(text, f"{text} = 1", own)
    assert refused.value.kind == "bad_path"
    # Looking at it and calling it is another matter.
    paths.check_assigned(text, f"{text}(1 == 1)", own)


@pytest.mark.parametrize("text", ["x", "_", "print", "__private", "plain['__name__']", "hostile.__class__", "missing.value"])
def test_the_programs_own_is_set(own, text):
    paths.check_assigned(text, f"{text} = 1", own)


@pytest.mark.parametrize("text", ["class", "not an id", "1x", "None", "True", "f()", "a, b", "*a", "", "x.class", "x = y", "global"])
def test_what_is_no_name_is_not_set(text):
    with pytest.raises(paths.Refused) as refused:
        paths.check(text)
    assert refused.value.kind == "bad_path"
