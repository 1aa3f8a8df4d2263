"""What cells show: display(), results with rich forms, their order and bounds; files that cells made; IPython's syntax.

Nothing here needs a package. Figures, images and tables of the real libraries are in test_rich.py.
"""

from __future__ import annotations

import base64
import os
import signal
import struct
import textwrap
import time
import zlib

import pytest
from host import FORCE_SIGNAL, Session, run

CLOCK_REALTIME_COARSE = 5


@pytest.fixture
def cwd(tmp_path):
    return str(tmp_path)


def png(width: int, height: int, noise: int = 0) -> bytes:
    """A PNG of this size, with so many bytes in it that nobody reads."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"\0" * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"noIs", b"x" * noise)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def define(session, name: str, **methods: object) -> None:
    """A class whose methods return these values."""
    body = "\n".join(f"    def {method}(self): return {value!r}" for method, value in methods.items())
    session.execute(f"class {name}:\n{body or '    pass'}")


def test_a_result_with_a_rich_form_is_shown_and_has_its_text(session):
    define(session, "Odd", _repr_html_="<b>odd</b>", __repr__="odd text")
    done, (shown,) = run(session, "Odd()")
    assert done["result"] == "odd text"
    assert shown.all == [("text/html", b"<b>odd</b>")]
    assert shown.inline is None
    assert shown.title == "Odd"


def test_images_come_first_and_inline(session):
    picture = png(3, 2)
    methods = {"_repr_png_": picture, "_repr_svg_": "<svg/>", "_repr_html_": "<b>", "_repr_json_": {"a": [1]}}
    define(session, "Rich", **methods, _repr_markdown_="*m*", _repr_latex_="$x$")
    _, (shown,) = run(session, "Rich()")
    assert shown.mimes == ["image/png", "image/svg+xml", "text/html", "application/json", "text/markdown", "text/latex"]
    assert shown.inline == ("image/png", picture)
    assert shown.parts["application/json"] == b'{"a": [1]}'


@pytest.mark.parametrize("takes", ["self, include=None, exclude=None", "self, include, exclude, **more", "self"])
def test_mimebundles(session, takes):
    picture = png(3, 2)
    bundle = {"text/plain": "plain", "image/png": base64.encodebytes(picture).decode(), "application/vnd.x+json": {"é": None}, 5: "x"}
    session.execute(f"class Bundle:\n    def _repr_mimebundle_({takes}): return {bundle!r}, {{'image/png': {{'width': 3}}}}")
    done, (shown,) = run(session, "Bundle()")
    assert done["result"] == "plain"
    assert shown.all == [("image/png", picture), ("application/vnd.x+json", '{"é": null}'.encode())]


def test_display_shows_in_the_middle_and_prints_what_is_plain(session):
    define(session, "Odd", _repr_html_="<b>", __repr__="odd")
    done, (shown,) = run(session, "print('a'); display(Odd(), 5, 'text'); print('b')")
    assert done["result"] is None
    assert shown.all == [("text/html", b"<b>"), ("text/plain", b"odd")]
    assert shown.inline == ("text/plain", b"odd")
    assert session.text() == "a\n5\ntext\nb\n"


def test_markdown_is_read_by_models(session):
    define(session, "Text", _repr_markdown_="# hello")
    _, (shown,) = run(session, "Text()")
    assert shown.inline == ("text/markdown", b"# hello")


def test_display_is_a_builtin_that_can_be_shadowed(session):
    assert session.result("'display' in globals(), display.__module__") == "(False, 'builtins')"
    done = session.execute("display = lambda value: value + 1\ndisplay(1)")
    assert (done["result"], done["new"]) == ("2", ["display"])
    session.execute("del display")
    assert session.result("callable(display)") == "True"


def test_display_takes_the_options_of_ipython(session):
    _, shown = run(session, "display({'text/html': '<i>', 'text/plain': 'i'}, raw=True, metadata={})")
    assert shown[0].all == [("text/html", b"<i>"), ("text/plain", b"i")]
    assert shown[0].inline == ("text/plain", b"i")
    run(session, "handle = display(1, display_id=True, clear=True)\nhandle.update(2)")
    assert session.text() == "1\n2\n"


def test_order_is_kept_with_both_streams(session):
    define(session, "Odd", _repr_html_="<b>")
    code = """
        import sys
        for number in range(15):
            print('out', number, 'x' * 3000)
            print('err', number, file=sys.stderr)
            display(Odd())
            print('after', number)
        """
    _, shown = run(session, code)
    for number, frame in enumerate(shown):
        assert f"out {number} " in frame.before
        assert f"err {number}\n" in frame.before
        assert f"after {number}\n" not in frame.before
    assert len(shown) == 15


@pytest.mark.parametrize("problem", ["raise ValueError('no\\nway')", "raise SystemExit", "return 5", "raise KeyboardInterrupt"])
def test_methods_that_fail_cost_their_form_and_a_note(session, problem):
    session.execute(f"class Bad:\n    def _repr_html_(self): {problem}\n    def _repr_svg_(self): return '<svg/>'")
    done, (shown,) = run(session, "Bad()")
    assert shown.mimes == ["image/svg+xml"]
    assert done["result"].startswith("<__main__.Bad object")
    assert len(done["notes"]) == 1
    assert "failed" in done["notes"][0]
    assert "\n" not in done["notes"][0]


def test_forms_that_are_not_there_are_no_failure(session):
    session.execute("class Shy:\n    def _repr_html_(self): return None\n    def _repr_svg_(self): raise NotImplementedError")
    done, shown = run(session, "Shy()")
    assert (shown, "notes" in done) == ([], False)
    done, shown = run(session, "Shy")
    assert (shown, done["result"]) == ([], "<class '__main__.Shy'>")


@pytest.mark.parametrize(
    "code",
    [
        "class Proxy:\n    __class__ = property(lambda self: 1 / 0)\nProxy()",
        "class Proxy:\n    def __getattribute__(self, name): 1 / 0\n    def __repr__(self): return 'proxy'\nProxy()",
        "class Meta(type):\n    def __getattr__(self, name): 1 / 0\nclass Odd(metaclass=Meta): pass\nOdd()",
        "class Odd:\n    __slots__ = ()\n    _repr_html_ = 5\nOdd()",
    ],
)
def test_odd_values_have_a_result(session, code):
    done, shown = run(session, code)
    assert done["result"]
    assert shown == []


def test_attributes_made_up_on_the_fly_are_no_forms(session):
    done, shown = run(session, "from unittest.mock import MagicMock\nMagicMock()")
    assert (shown, "notes" in done) == ([], False)


def test_values_that_show_themselves(session):
    session.execute("class Own:\n    def __repr__(self): return 'own'\n    def _ipython_display_(self): print('shown by itself')")
    assert run(session, "Own()")[0]["result"] == "own"
    assert session.text() == "shown by itself\n"
    run(session, "display(Own())")
    assert session.text() == "shown by itself\n"
    session.execute("class Both(Own):\n    def _repr_html_(self): return '<b>'")
    assert run(session, "Both()")[1][0].mimes == ["text/html"]


def test_large_images_without_pil_are_given_but_not_inline(session):
    define(session, "Wide", _repr_png_=png(1601, 2))
    define(session, "Heavy", _repr_png_=png(2, 2, 700_000))
    for name in ("Wide", "Heavy"):
        _, (shown,) = run(session, f"{name}()")
        assert shown.mimes == ["image/png"]
        assert shown.inline is None


@pytest.mark.parametrize(
    ("method", "data", "said"),
    [
        ("_repr_png_", b"no image", "its 8 bytes are not a PNG image"),
        ("_repr_png_", png(3, 2)[:-20], "damaged or cut off"),
        ("_repr_png_", png(3, 2).replace(b"IDAT", b"IDAX"), "damaged or cut off"),
        ("_repr_png_", b"", "it is empty"),
        ("_repr_jpeg_", png(3, 2), "bytes are not a JPEG image"),
    ],
)
def test_what_is_no_image_is_left_out_and_noted(session, method, data, said):
    define(session, "Wrong", **{method: data}, _repr_html_="<b>", __repr__="wrong")
    done, (shown,) = run(session, "display(Wrong())")
    assert shown.mimes == ["text/html", "text/plain"]
    (note,) = done["notes"]
    assert note.startswith(f"the image/{method.split('_')[2]} form of Wrong was left out: ") and note.endswith(said)


def test_the_text_is_left_out_beside_a_form_that_is_shown(session):
    define(session, "Picture", _repr_png_=png(3, 2))
    define(session, "Text", _repr_markdown_="# m")
    _, shown = run(session, "display(Picture(), Text()); display({'text/plain': 'p', 'text/markdown': 'm'}, raw=True)")
    assert [frame.mimes for frame in shown] == [["image/png"], ["text/markdown"], ["text/markdown"]]
    _, (shown,) = run(session, "display({'text/plain': 'p'}, raw=True)")
    assert shown.inline == ("text/plain", b"p")


def test_no_more_than_twenty_displays_a_cell(session):
    define(session, "Odd", _repr_html_="<b>")
    done, shown = run(session, "for _ in range(25): display(Odd())")
    assert len(shown) == 20
    assert done["notes"] == ["the cell showed more than 20 values; the others are given as text only"]
    assert session.text().count("Odd object") == 5
    assert len(run(session, "display(Odd())")[1]) == 1


def test_parts_and_frames_are_bounded(session):
    session.execute(
        "class Big:\n    def __init__(self, *sizes): self.sizes = sizes\n"
        "    def _repr_mimebundle_(self): return {f'x/{n}': b'x' * (size << 20) for n, size in enumerate(self.sizes)}"
    )
    done, (shown,) = run(session, "Big(20, 33, 20, 20)")
    assert [len(data) >> 20 for _, data in shown.all] == [20, 20]
    assert done["notes"] == [
        "a x/1 form of 33 MB is too large to be shown and was left out",
        "a x/3 form of 20 MB is too large to be shown and was left out",
    ]
    done, shown = run(session, "Big(40)")
    assert (shown, len(done["notes"])) == ([], 1)
    done, _ = run(session, "display({'application/x': b'x' * (33 << 20), 'x/0': 'x'}, raw=True)")
    assert done["notes"] == ["an application/x form of 33 MB is too large to be shown and was left out"]


def test_threads_show_in_the_cell_that_waits_for_them(session):
    define(session, "Odd", _repr_html_="<b>")
    _, shown = run(
        session,
        """
        import threading
        threads = [threading.Thread(target=lambda: [display(Odd()) for _ in range(2)]) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        """,
    )
    assert len(shown) == 8


def test_a_forked_child_prints_instead(session):
    define(session, "Odd", _repr_html_="<b>", __repr__="odd")
    _, shown = run(session, "import os\nif os.fork() == 0:\n    display(Odd())\n    os._exit(0)\nos.wait()\ndisplay(Odd())")
    assert len(shown) == 1
    assert session.text() == "odd\n"


def test_display_in_a_rolled_back_session(session):
    define(session, "Odd", _repr_html_="<b>")
    frozen = session.checkpoint()
    session.rollback(frozen)
    assert len(run(session, "display(Odd())")[1]) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, FORCE_SIGNAL])
def test_rendering_can_be_interrupted(session, number):
    session.execute("import time\nclass Slow:\n    def _repr_html_(self):\n        print('ready')\n        while True: time.sleep(0.01)")
    for code in ("Slow()", "display(Slow())"):
        session.begin(code)
        session.wait_for_output(b"ready")
        session.signal(number)
        done, shown = session.finish()
        assert (done["outcome"], shown) == ("interrupted", [])
        assert "pylair" not in done["error"]["traceback"]
    assert session.result("1") == "1"


@pytest.mark.parametrize("number", [signal.SIGINT, FORCE_SIGNAL])
def test_a_signal_in_the_middle_of_a_frame_leaves_it_whole(session, number):
    """The pipe is full, so the worker is inside the frame when the signal comes."""
    session.execute("class Big:\n    def _repr_html_(self): return 'x' * 5_000_000")
    session.begin("print('ready')\nwhile True:\n    display(Big())")
    session.wait_for_output(b"ready")
    session.wait_for_replies()
    session.signal(number)
    done, shown = session.finish()
    assert done["outcome"] == "interrupted"
    assert [len(frame.parts["text/html"]) for frame in shown] == [5_000_000]
    assert session.result("1") == "1"


def test_a_handler_that_raises_in_the_middle_of_a_frame_leaves_it_whole(session):
    session.execute(
        "import signal\nclass Big:\n    def _repr_html_(self): return 'x' * 5_000_000\n"
        "def late(*args): raise TimeoutError('late')\nsignal.signal(signal.SIGALRM, late)"
    )
    session.begin("print('ready')\ndisplay(Big())")
    session.wait_for_output(b"ready")
    session.wait_for_replies()
    session.signal(signal.SIGALRM)
    done, shown = session.finish()
    assert done["error"]["type"] == "TimeoutError"
    assert [len(frame.parts["text/html"]) for frame in shown] == [5_000_000]


def test_a_storm_of_signals_never_tears_a_frame(session):
    session.execute("class Medium:\n    def _repr_html_(self): return 'x' * 100_000\nvalue = Medium()")
    outcomes = set()
    for number in range(150):
        session.begin("for _ in range(3): display(value)\nvalue")
        if number % 2:
            session.wait_for_replies()
        session.signal(FORCE_SIGNAL if number % 3 == 0 else signal.SIGINT)
        done, shown = session.finish()
        outcomes.add(done["outcome"])
        assert all(len(frame.parts["text/html"]) == 100_000 for frame in shown)
    assert outcomes <= {"ok", "interrupted"}
    session.execute("pass")
    assert session.result("1") == "1"


def fake_package(tmp_path, **modules: str) -> None:
    for name, text in modules.items():
        path = tmp_path.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in list(path.relative_to(tmp_path).parents)[:-1]:
            (tmp_path / parent / "__init__.py").touch()
        path.write_text(textwrap.dedent(text))


def test_ipythons_display_is_ours(session, tmp_path):
    functions = "def display(*objs, **kw): print('theirs')\ndef publish_display_data(data, metadata=None): print('theirs')\n"
    fake_package(
        tmp_path,
        IPython__core__display_functions=functions,
        IPython__display="from IPython.core.display_functions import *\nclass HTML:\n    def _repr_html_(self): return '<b>'",
    )
    _, shown = run(session, "from IPython.display import display as show, HTML, publish_display_data\nshow(HTML())")
    assert [frame.mimes for frame in shown] == [["text/html", "text/plain"]]
    _, shown = run(session, "publish_display_data({'text/html': '<p>'}, metadata={})")
    assert shown[0].all == [("text/html", b"<p>")]
    assert session.text() == ""


def test_matplotlib_draws_without_windows(template, tmp_path):
    for given, expected in ((None, "Agg"), ("SVG", "SVG"), ("module://matplotlib_inline.backend_inline", "Agg")):
        session = Session(template)
        env = {"PATH": os.defpath, **({} if given is None else {"MPLBACKEND": given})}
        session.start(env=env)
        assert session.result("import os; os.environ['MPLBACKEND']") == repr(expected)
        session.close()


def test_an_import_that_fails_can_be_repeated(session, tmp_path):
    fake_package(tmp_path, matplotlib__pyplot="import nowhere")
    assert session.execute("import matplotlib.pyplot")["error"]["type"] == "ModuleNotFoundError"
    (tmp_path / "matplotlib" / "pyplot.py").write_text("def show(): print('theirs')\n# done")
    run(session, "import importlib; importlib.invalidate_caches()\nimport matplotlib.pyplot as plt\nplt.show()")
    assert session.text() == ""
    run(session, "importlib.reload(plt)\nplt.show()")
    assert session.text() == ""


def test_files_that_a_cell_made(session, tmp_path):
    def files(code: str) -> list:
        return run(session, code)[0].get("files", [])

    old = tmp_path / "old.txt"
    old.write_text("old")
    # The clock that files are stamped with goes in steps.
    while time.clock_gettime_ns(CLOCK_REALTIME_COARSE) <= old.stat().st_ctime_ns:
        pass
    assert files("import os\nfor name in ('out', 'node_modules', '__pycache__', '.hidden'): os.mkdir(name)") == []
    assert files("open('a.csv', 'w').write('abc')") == [{"path": "a.csv", "bytes": 3}]
    assert files("open('out/b.csv', 'w').write('abcd')") == [{"path": "out/b.csv", "bytes": 4}]
    for hidden in ("node_modules", "__pycache__", ".hidden"):
        assert files(f"open('{hidden}/c', 'w').close()") == []
    assert files("open('new', 'w').write('xy')\nos.replace('new', 'out/b.csv')") == [{"path": "out/b.csv", "bytes": 2}]
    assert files("import subprocess; subprocess.run(['sh', '-c', 'echo hi > by_child'])") == [{"path": "by_child", "bytes": 3}]
    assert files("os.remove('a.csv')") == []
    assert files("os.mkdir('late'); open('late/d', 'w').close(); os.symlink('d', 'late/link')") == [{"path": "late/d", "bytes": 0}]
    assert files("open('late/e', 'w').close(); os.chdir('late')") == [{"path": "e", "bytes": 0}]
    assert files("1 + 1") == []


def test_files_are_told_when_the_cell_raised(session):
    done = session.execute("open('a', 'w').close()\n1 / 0")
    assert done["files"] == [{"path": "a", "bytes": 0}]


def test_many_files_are_cut(session):
    done, _ = run(session, "for n in range(60): open(f'{n:02}', 'w').close()")
    assert len(done["files"]) == 50
    assert done["notes"] == ["the cell made 60 files; 50 of them are listed"]


def test_a_huge_directory_is_not_listed(session, tmp_path):
    for number in range(5001):
        (tmp_path / str(number)).touch()
    done, _ = run(session, "open('new', 'w').close()")
    assert "files" not in done
    assert done["notes"] == ["files that cells make are not listed: the working directory has over 5000 entries"]
    done, _ = run(session, "open('new2', 'w').close()")
    assert "notes" not in done


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("%time x", "perf_counter"),
        ("%%timeit\nx", "timeit"),
        ("x = 1\n%timeit x", "timeit"),
        ("%pip install requests", "install_packages"),
        ("!pip install requests", "install_packages"),
        ("!ls -l", "subprocess.run"),
        ("files = !ls", "subprocess.run"),
        ("%matplotlib inline", "figures"),
        ("%run script.py", "run_file"),
        ("%frobnicate", "plain Python"),
        ("?abs", "path abs"),
        ("abs?", "path abs"),
        ("os.path??", "path os.path"),
    ],
)
def test_ipythons_syntax_is_an_error_with_a_hint(session, code, hint):
    done = session.execute(code)
    assert done["outcome"] == "raised"
    assert done["error"]["type"] == "SyntaxError"
    assert len(done["notes"]) == 1
    assert hint in done["notes"][0]


@pytest.mark.parametrize("code", ["x = = 1", "x !", "print 1", "a ? b : c", "'''!ls", "compile('%time', 'x', 'exec')"])
def test_other_errors_have_no_hint(session, code):
    done = session.execute(code)
    assert done["outcome"] == "raised"
    assert "notes" not in done


@pytest.mark.parametrize(
    "path", ["x", "x.y", "d['a']", "d[-1]", "d[1:2, ..., None]", "a.b[0].c['x']", "d[k]", "d[k.x]", "d[b'x']", "é.ö", "d['#']"]
)
def test_paths_are_executed(session, path):
    session.execute("x = 1")
    assert "refused" not in session.ask("execute", b"x", cell=1, path=path)


@pytest.mark.parametrize(
    "path",
    ["", "f()", "x + 1", "x; y", "d[f()]", "x.y()", "d[x for x in y]", "d[f'{x}']", "x=1", "(lambda: x)"],
)
def test_what_is_no_path_is_refused(session, path):
    done = session.ask("execute", b"print('ran')", cell=1, path=path)
    assert "path" in done["refused"]
    assert done["kind"] == "bad_path"
    assert session.text() == ""
