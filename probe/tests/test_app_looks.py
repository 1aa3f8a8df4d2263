"""Looking into an app: that nothing of its code runs unless asked for, read-only, stacks and tasks."""

from __future__ import annotations

import pytest

# Everything that Python calls by itself counts and raises.
TRAPPED = '''
import collections, functools, threading, types
ran = []
DUNDERS = """__getattribute__ __getattr__ __getitem__ __len__ __hash__ __eq__ __repr__ __str__ __bool__ __iter__ __contains__ __dir__
    __call__ __format__ __bytes__ __index__ __int__ __float__ __ne__ __lt__ __reversed__ __next__ __missing__ __sizeof__ __reduce__
    __enter__ __length_hint__ __instancecheck__ __subclasscheck__ __fspath__ __get__""".split()
def trap(name):
    def trapped(*args):
        ran.append(name)
        raise SystemExit(name)
    return trapped
def trapped_class(name, bases=(object,), **more):
    names = {dunder: trap(dunder) for dunder in DUNDERS}
    names["__class__"] = property(trap("__class__"))
    names["__dict__"] = property(trap("__dict__"))
    names["prop"] = property(trap("prop"))
    names["cached"] = functools.cached_property(trap("cached"))
    return type(name, bases, {**names, **more})
Trapped = trapped_class("Trapped")
TrappedDict = trapped_class("TrappedDict", (dict,), __hash__=None)
TrappedList = trapped_class("TrappedList", (list,), __hash__=None)
TrappedStr = trapped_class("TrappedStr", (str,))
TrappedInt = trapped_class("TrappedInt", (int,))
Meta = type("Meta", (type,), {name: trap("meta " + name) for name in DUNDERS if name != "__getattribute__" and name != "__call__"})
class Plain:
    __slots__ = ("a", "b", "__dict__")
    def __init__(self): self.a, self.extra = 1, Trapped()
    @property
    def doubled(self):
        ran.append("doubled")
        return self.a * 2
    @property
    def broken(self): raise ValueError("broken")
    def __repr__(self):
        ran.append("repr")
        return "Plain!"
class WithMeta(metaclass=Meta): pass
class Lazy:
    def __getattr__(self, name):
        ran.append(name)
        return name
class OwnDict(dict):
    def __init__(self, **names):
        super().__init__(names)
        self.__dict__ = self
for name in ("__len__", "__bool__", "__iter__", "__contains__", "get", "items", "keys", "values", "copy"):
    setattr(OwnDict, name, trap("own " + name))
def odd(a=1, *, b=2): pass
odd.__defaults__ = trapped_class("TrappedTuple", (tuple,))((1,))
odd.__kwdefaults__, odd.__module__ = OwnDict(b=2), trapped_class("TrappedName", (str,))("enum")
cycle = {"plain": [1, 2]}
cycle["self"] = cycle
app.registered = {
    "trapped": Trapped(), "trapped_dict": TrappedDict(a=1), "trapped_list": TrappedList([Trapped()]), "trapped_str": TrappedStr("text"),
    "trapped_int": TrappedInt(7), "plain": Plain(), "with_meta": WithMeta(), "meta_class": WithMeta, "lazy": Lazy(), "cycle": cycle,
    "mixed": [Trapped(), {"k": Trapped()}, (TrappedStr("x"),)], "ran": ran, "Trapped": Trapped, "keyed": {1: "one"}, "module": types,
    "own": OwnDict(a=1, _name="x"), "odd": odd, "partial": functools.partial(odd, Trapped()), "Odd": type("Odd", (), {"__repr__": odd})(),
}
app.registered["keyed"][type("Key", (), {"__hash__": lambda self: 2, "__eq__": trap("key eq")})()] = 2
ran.clear()
'''


NAMES = [
    *("trapped", "trapped_dict", "trapped_list", "trapped_str", "trapped_int", "plain", "with_meta", "meta_class", "lazy", "cycle"),
    *("mixed", "Trapped", "keyed", "module", "own", "odd", "partial", "Odd"),
]


@pytest.mark.parametrize("setting", ["", "app.readonly = True\n", "app.readonly = app.allow_code = True\n"])
def test_looking_runs_none_of_the_apps_code(run, setting):
    app = run(TRAPPED + setting)
    for name in NAMES:
        assert app.ask("inspect", path=name, depth=3).json["type"], name
        assert app.ask("inspect", path=name, full=True).json
        app.ask("source", path=name)
        for end in (".", "['", "[", "("):
            app.ask("complete", name + end)
    assert {"trapped", "plain"} <= {entry["name"] for entry in app.ask("inspect").json["variables"]}
    for path in (
        "trapped.prop",
        "trapped.cached",
        "trapped['x']",
        "lazy.anything",
        "plain.doubled",
        "trapped.__class__",
        "trapped_dict['b']",
    ):
        assert app.ask("inspect", path=path)["kind"] == "needs_code", path
    app.ask("stacks")
    assert app.ask("inspect", path="ran").json["length"] == 0


def test_what_would_need_code_is_named_and_not_run(run):
    found = run(TRAPPED).ask("inspect", path="plain", depth=1).json
    assert found["preview"] == "<Plain object>"
    assert found["preview_error"] == "it needs the app's own code, which is only run when that is asked for"
    assert found["properties"] == ["doubled", "broken"]
    assert [attribute["name"] for attribute in found["attributes"]] == ["a", "extra"]


def test_cycles_and_depth(run):
    found = run(TRAPPED).ask("inspect", path="cycle", depth=8).json
    assert found["items"][1]["cycle"] and found["items"][0]["items"][1]["preview"] == "2"


@pytest.mark.parametrize("setting", ["", "app.readonly = app.allow_code = True\n", "app.invoker = lambda function: function()\n"])
def test_asked_for_properties_and_reprs_are_run(run, setting):
    app = run(TRAPPED + setting)
    found = app.ask("inspect", path="plain", run=True).json
    assert found["preview"] == "Plain!"
    parts = {part["name"]: part for part in found["attributes"]}
    assert parts["doubled"]["preview"] == "2" and parts["doubled"]["computed"]
    assert parts["broken"]["preview_error"] == "ValueError: broken"
    assert parts["extra"]["preview_error"] == "SystemExit: __repr__"
    assert app.ask("inspect", path="plain.doubled", run=True).json["preview"] == "2"
    assert app.ask("inspect", path="lazy.anything", run=True).json["preview"] == "'anything'"
    done = app.ask("inspect", path="plain.broken", run=True)
    assert (done["refused"], done["kind"]) == ("plain.broken raised ValueError: broken", "raised")
    assert app.ask("inspect", path="plain", run=True, full=True).json["value"] == "Plain!"


def test_a_read_only_app_refuses_what_runs_code(run):
    app = run(TRAPPED + "app.readonly = True\napp.screenshot_fn = lambda: b'\\xff\\xd8\\xff'\napp.winshot_fn = print")
    for done in (
        app.execute("1"),
        app.execute("plain.a = 2", path="plain.a"),
        app.ask("screenshot", "code"),
        app.ask("inspect", path="plain", run=True),
    ):
        assert done["kind"] == "readonly" and done["refused"].startswith("this app is read-only and runs no ") and done["hint"]
    assert app.ask("screenshot")["mime"] == "image/jpeg"
    assert app.ask("inspect", path="setattr(plain, 'a', 3)")["kind"] == "bad_path"
    assert app.ask("inspect", path="plain.a").json["preview"] == "1"


def test_completion_from_the_live_names(run):
    app = run(TRAPPED)
    app.execute("mine = plain")
    found = app.ask("complete", "mine.dou", client="k3n7").json
    assert [match["text"] for match in found["matches"]] == ["doubled"]
    assert "plain" in [match["text"] for match in app.ask("complete", "pl").json["matches"]]


def test_a_class_in_a_long_file_is_found_without_parsing_all_of_it(run, tmp_path):
    filler = "".join(f"value_{number} = {number}\n" for number in range(60_000))
    wanted = "@decorated\nclass K:\n    x = 1\n    def m(self):\n        return 1\n"
    (tmp_path / "long_module.py").write_text(f"decorated = lambda cls: cls\nclass K: pass\n{filler}{wanted}class L(K): pass\n")
    app = run(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport long_module\napp.registered = {{'m': long_module}}")
    found = app.ask("source", path="m.K").json
    assert found["source"] == wanted
    assert app.ask("source", path="m.L").json["source"] == "class L(K): pass\n"


HUGE = """
import array
app.registered = {
    "numbers": array.array("d", [1.5]) * 5_000_000, "letters": array.array("u", "ab"), "none": array.array("i"),
    "far": range(10**30), "text": "x" * 50_000_000, "number": 10**100_000, "empty": {},
}
app.registered["table"] = {app.registered["text"]: 1, "a": 2}
"""


def test_huge_values_are_told_of_in_few_words(run):
    app = run(HUGE)
    assert app.ask("inspect", path="numbers", max_items=4).json["preview"] == "array('d', [1.5, 1.5, 1.5, … 4999996 more, 1.5])"
    assert app.ask("inspect", path="letters").json["preview"] == "array('u', 'ab')"
    assert app.ask("inspect", path="none").json["preview"] == "array('i')"
    assert app.ask("inspect", path="far").json["preview"] == f"range(0, {10**30})"
    for path in ("table['b']", "table[number]", "far[text]", "numbers[text]", "empty[text]"):
        done = app.ask("inspect", path=path)
        assert (done["kind"], len(done["refused"]) < 400) == ("no_such_item", True), done.fields
    assert app.ask("inspect", path="table[text]").json["preview"] == "1"


def test_an_app_is_never_forked(run):
    app = run("import os\ndef fork(): os.write(2, b'forked')\n" + TRAPPED + "\nos.register_at_fork(before=fork)")
    for name in NAMES:
        app.ask("inspect", path=name, depth=2)
        app.ask("inspect", path=name, full=True)
        app.ask("complete", f"{name}[")
    app.process.stdin.close()
    app.process.stdin = None
    assert app.ended()[1] == ""


# Stacks.

THREADS = """
import threading
class Hidden:
    def __repr__(self): raise SystemExit
def outer(count):
    secret = Hidden()
    inner([count, "text"])
def inner(data):
    inside.set()
    gate.wait()
inside, gate = threading.Event(), threading.Event()
thread = threading.Thread(target=outer, args=(5,), name="worker-5")
thread.start()
inside.wait()
app.registered = {"gate": gate}
threading.Thread(target=lambda: (wait(), gate.set()), daemon=True, name="waits").start()
gate.wait()
"""


def test_stacks_of_threads_with_their_locals(run):
    app = run(THREADS)
    found = app.ask("stacks").json
    threads = {thread["name"]: thread for thread in found["threads"]}
    assert found["threads"][0]["name"] == "MainThread"
    assert not any("pylair" in name for name in threads)
    frames = [frame for frame in threads["worker-5"]["frames"] if frame["file"] == "<string>"]
    assert [frame["function"] for frame in frames] == ["inner", "outer"]
    assert frames[0]["locals"] == [{"name": "data", "value": "[5, 'text']"}]
    assert frames[1]["locals"] == [{"name": "count", "value": "5"}, {"name": "secret", "value": "<Hidden object>"}]
    assert frames[0]["line"] > 0
    without = app.ask("stacks", locals=False).json
    assert all("locals" not in frame for thread in without["threads"] for frame in thread["frames"])


def test_values_that_a_function_has_forgotten_are_not_kept_by_a_look_at_its_stack(run, version):
    app = run("""
        import queue, threading, weakref
        class Big: pass
        told, done = queue.Queue(), queue.Queue()
        def inner():
            locals()["extra"] = 1
            data = Big()
            app.registered["ref"] = weakref.ref(data)
            done.put(0)
            told.get()
            del data
            done.put(1)
            told.get()
            done.put(sorted(locals()))
        app.registered.update(told=told, done=done)
        threading.Thread(target=inner, daemon=True).start()
    """)
    app.execute("done.get()")
    frames = [frame for thread in app.ask("stacks").json["threads"] for frame in thread["frames"]]
    (frame,) = [frame for frame in frames if frame["function"] == "inner"]
    assert {"name": "data", "value": "<Big object>"} in frame["locals"]
    assert app.execute("told.put(0); done.get(); ref() is None").result == "True"
    # What was put into the dictionary stays there up to 3.12, as if nobody had looked.
    assert app.execute("told.put(0); done.get()").result == ("['extra']" if version < (3, 13) else "[]")


def test_a_running_call_is_among_the_stacks_without_our_frames(run):
    app = run(THREADS)
    number = app.begin_execute("def wait_here():\n    print('begun')\n    gate.wait()\nwait_here()")
    app.until_printed(number, "begun")
    functions = [
        [frame["function"] for frame in thread["frames"] if frame["file"].startswith("<")] for thread in app.ask("stacks").json["threads"]
    ]
    assert ["wait_here", "<module>"] in functions


TASKS = """
import asyncio, threading
async def leaf(): await gate.wait()
async def middle(): await leaf()
async def gathers():
    a, b = asyncio.ensure_future(middle()), asyncio.ensure_future(leaf())
    name(a, "a"); name(b, "b")
    await asyncio.gather(a, b)
async def waits(task): await asyncio.wait([task])
async def direct(task): await task
async def limited(task): await asyncio.wait_for(task, 3600)
def name(task, text):
    task.set_name(text)
    return task
async def main():
    global gate
    gate = asyncio.Event()
    tasks = [name(asyncio.ensure_future(gathers()), "gathers")]
    c = name(asyncio.ensure_future(leaf()), "c")
    tasks += [name(asyncio.ensure_future(made), text) for made, text in ((waits(c), "waits"), (direct(c), "direct"))]
    d = name(asyncio.ensure_future(leaf()), "d")
    tasks += [name(asyncio.ensure_future(limited(d)), "limited")]
    if hasattr(asyncio, "TaskGroup"):
        async def grouped():
            async with asyncio.TaskGroup() as group:
                name(group.create_task(leaf()), "e")
        tasks += [name(asyncio.ensure_future(grouped()), "grouped")]
    for _ in range(10): await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    threading.Thread(target=lambda: (wait(), loop.call_soon_threadsafe(gate.set)), daemon=True).start()
    await asyncio.gather(*tasks)
asyncio.run(main())
"""


def test_tasks_and_who_waits_for_whom(run, version):
    app = run(TASKS)
    found = {task["name"]: task for task in app.ask("stacks").json["tasks"]}
    names = {task["id"]: name for name, task in found.items()}

    def linked(name, which):
        return sorted(names[number] for number in found[name][which])

    assert linked("gathers", "awaits") == ["a", "b"]
    assert linked("a", "awaited_by") == ["gathers"]
    assert linked("waits", "awaits") == linked("direct", "awaits") == ["c"]
    assert linked("c", "awaited_by") == ["direct", "waits"]
    assert linked("limited", "awaits") == ["d"]
    if version >= (3, 11):
        assert linked("e", "awaited_by") == ["grouped"]
    assert [frame["function"] for frame in found["a"]["frames"]][-2:] == ["leaf", "middle"]
    assert (found["a"]["coroutine"], found["a"]["state"]) == ("middle", "waiting")


def test_tasks_of_loops_in_other_threads(run):
    app = run(
        """
        import asyncio, threading
        async def service(): await asyncio.Event().wait()
        async def main():
            task = asyncio.ensure_future(service())
            task.set_name("service")
            await asyncio.sleep(0)
            inside.set()
            await task
        inside = threading.Event()
        threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
        inside.wait()
        """
    )
    assert "service" in [task["name"] for task in app.ask("stacks").json["tasks"]]
