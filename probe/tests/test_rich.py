"""Figures, images and tables of the real libraries.

PYLAIR_TEST_RICH_PYTHON names an interpreter (of a virtual environment, say) that has numpy, pandas, matplotlib and pillow. Without it
these tests are skipped. polars and IPython are used if they are there.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
from typing import Iterator

import pytest
from host import FORCE_SIGNAL, Session, Template, run

RICH_PYTHON = os.environ.get("PYLAIR_TEST_RICH_PYTHON", "")

pytestmark = pytest.mark.skipif(not RICH_PYTHON, reason="PYLAIR_TEST_RICH_PYTHON names no Python with numpy, pandas, matplotlib and pillow")


@pytest.fixture(scope="module")
def interpreter() -> dict:
    """What `start` needs to know of it, and the executable that its template runs."""
    code = "import json, sys; print(json.dumps([sys._base_executable, sys.prefix, sys.base_prefix]))"
    base, prefix, base_prefix = json.loads(subprocess.run([RICH_PYTHON, "-c", code], capture_output=True, check=True).stdout)
    return {"base": base, "prefix": prefix if prefix != base_prefix else None}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Shared, so that matplotlib looks for fonts once. It does so here: where that takes long it says so on stderr."""
    home = tmp_path_factory.mktemp("home")
    env = {"PATH": os.defpath, "HOME": str(home)}
    subprocess.run([RICH_PYTHON, "-c", "import matplotlib.font_manager"], env=env, check=True, capture_output=True, timeout=300)
    return home


@pytest.fixture(scope="module")
def rich_template(interpreter) -> Iterator[Template]:
    template = Template(interpreter["base"])
    yield template
    template.close()


def start(template, interpreter, home, **fields) -> Session:
    session = Session(template)
    env = {"PATH": os.defpath, "HOME": str(home)}
    answer = session.start(executable=RICH_PYTHON, prefix=interpreter["prefix"], cwd=str(home), env=env, **fields)
    assert answer == {"ch": 1, "id": 1, "ev": "done", "ok": True}
    return session


@pytest.fixture
def session(rich_template, interpreter, home) -> Iterator[Session]:
    session = start(rich_template, interpreter, home)
    yield session
    session.close()


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG")
    return struct.unpack(">II", png[16:24])


def test_show_draws_open_figures_in_order_and_closes_them(session):
    code = """
        import matplotlib.pyplot as plt
        print('before')
        plt.figure(figsize=(2, 1)); plt.figure(figsize=(1, 2))
        plt.show()
        print('after')
        plt.get_fignums()
        """
    done, (wide, tall) = run(session, code)
    assert done["result"] == "[]"
    assert "notes" not in done
    assert (wide.title, tall.title) == ("Figure 1", "Figure 2")
    assert wide.inline[0] == tall.inline[0] == "image/png"
    assert size(wide.inline[1])[0] > size(wide.inline[1])[1]
    assert size(tall.inline[1])[0] < size(tall.inline[1])[1]
    assert wide.before == tall.before == "before\n"
    assert session.text() == "before\nafter\n"
    assert session.text(2) == ""


def test_figures_left_open_are_shown_at_the_end(session):
    _, shown = run(session, "from matplotlib import pyplot as plt\nplt.plot([1, 2])\nprint('last')")
    assert [frame.mimes for frame in shown] == [["image/png"]]
    assert shown[0].before == "last\n"
    session.begin("plt.plot([1]); 1 / 0")
    done, shown = session.finish()
    assert (done["outcome"], len(shown)) == ("raised", 1)
    assert session.result("plt.get_fignums()") == "[]"


def test_a_figure_as_value_is_shown_once(session):
    done, shown = run(session, "import matplotlib.pyplot as plt\nfigure, axes = plt.subplots()\nfigure")
    assert done["result"].startswith("<Figure size")
    assert [frame.inline[0] for frame in shown] == ["image/png"]
    _, shown = run(session, "figure, axes = plt.subplots()\ndisplay(figure)")
    assert len(shown) == 1
    _, shown = run(session, "from matplotlib.figure import Figure\nFigure()")
    assert (len(shown), shown[0].title) == (1, "Figure")


def test_large_figures_are_drawn_again(session):
    session.execute("import matplotlib.pyplot as plt, numpy as np")
    _, (shown,) = run(session, "plt.figure(figsize=(30, 10))")
    assert shown.mimes == ["image/png", "image/png"]
    assert 1200 < max(size(shown.all[0][1])) <= 1600
    assert max(size(shown.all[1][1])) > 2000
    assert shown.inline == shown.all[0]
    _, (noisy,) = run(session, "plt.figure(figsize=(10, 10)); plt.imshow(np.random.rand(1500, 1500)); plt.show()")
    assert len(noisy.inline[1]) <= 700_000 < len(noisy.all[1][1])


@pytest.mark.parametrize(("inches", "dpi"), [((300, 200), 100), ((60, 60), 200), ((40, 40), 200), ((1000, 2), 100)])
def test_huge_figures_are_drawn_with_fewer_dots_and_noted(session, inches, dpi):
    session.execute("import matplotlib.pyplot as plt, numpy as np")
    code = f"plt.figure(figsize={inches}, dpi={dpi}); plt.imshow(np.random.rand(2000, 2000), aspect='auto'); plt.show()"
    done, (huge,) = run(session, code)
    assert len(huge.all) == 1
    assert huge.inline
    (note,) = done["notes"]
    assert note.startswith(f"Figure 1 is {inches[0] * dpi} × {inches[1] * dpi} pixels large and was drawn with ")
    assert "fig.savefig(path)" in note


def test_a_figure_that_cannot_be_drawn_is_noted(session):
    done, shown = run(session, "import matplotlib.pyplot as plt\nplt.title('$\\\\nonsense{$'); plt.show(); plt.get_fignums()")
    assert (done["result"], shown) == ("[]", [])
    assert "drawing the figure failed: ValueError" in done["notes"][0]
    code = """
        from matplotlib.lines import Line2D
        class Unfinished(Line2D):
            def draw(self, renderer): raise NotImplementedError('later')
        plt.gca().add_line(Unfinished([0], [1]))
        """
    done, shown = run(session, code)
    assert (shown, done["notes"]) == ([], ["drawing the figure failed: NotImplementedError: later"])


def test_a_figure_that_cannot_be_drawn_in_full_is_shown_small(session):
    code = """
        import matplotlib.pyplot as plt
        figure = plt.figure(figsize=(20, 10))
        draw = figure.savefig
        def savefig(*args, dpi, **options):
            if dpi == figure.dpi: raise MemoryError('no room')
            draw(*args, dpi=dpi, **options)
        figure.savefig = savefig
        """
    done, (shown,) = run(session, code)
    assert shown.mimes == ["image/png"] and shown.inline
    assert done["notes"] == ["drawing the figure in full failed: MemoryError: no room"]


@pytest.mark.parametrize("number", [signal.SIGINT, FORCE_SIGNAL])
def test_an_interrupted_cell_does_not_wait_for_its_figures(session, number):
    session.execute("import matplotlib.pyplot as plt, time")
    session.begin("plt.plot([1])\nprint('ready')\nwhile True: time.sleep(0.01)")
    session.wait_for_output(b"ready")
    session.signal(number)
    done, shown = session.finish()
    assert (done["outcome"], shown) == ("interrupted", [])
    if number == signal.SIGINT:
        assert done["notes"] == ["1 open figure was closed without being drawn"]


def test_drawing_can_be_interrupted(session):
    session.execute(
        "import matplotlib.pyplot as plt, time\nfrom matplotlib.lines import Line2D\nclass Slow(Line2D):\n"
        "    def draw(self, renderer):\n        print('ready')\n        while True: time.sleep(0.01)"
    )
    for last in ("", "plt.show()"):
        session.begin("for _ in range(2): plt.figure(); plt.gca().add_line(Slow([0], [1]))\n" + last)
        session.wait_for_output(b"ready")
        session.signal(signal.SIGINT)
        done, shown = session.finish()
        assert (done["outcome"], shown) == ("interrupted", [])
        assert session.result("plt.get_fignums()") == "[]"


def test_preloaded_libraries(interpreter, home):
    preload = ["matplotlib.pyplot", "pandas"]
    template = Template(interpreter["base"], preload=preload, executable=RICH_PYTHON, prefix=interpreter["prefix"])
    try:
        assert "error" not in template.hello, template.hello
        session = start(template, interpreter, home, site=False)
        _, (shown,) = run(session, "import matplotlib.pyplot as plt\nplt.plot([1]); plt.show(); print('after')")
        assert (shown.inline[0], shown.before) == ("image/png", "")
        assert session.result("plt.get_backend().lower()") == "'agg'"
        session.close()
    finally:
        template.close()


def test_pil_images(session):
    code = "from PIL import Image\nImage.new('RGB', (40, 30), 'red')"
    done, (shown,) = run(session, code)
    assert "size=40x30" in done["result"]
    assert size(shown.inline[1]) == (40, 30)
    _, (shown,) = run(session, "Image.new('RGB', (4000, 2000), 'red')")
    assert size(shown.inline[1]) == (1600, 800)
    assert size(shown.all[1][1]) == (4000, 2000)
    _, (shown,) = run(session, "import os\nphoto = Image.frombytes('RGB', (1000, 1000), os.urandom(3_000_000))\ndisplay(photo)")
    assert shown.inline[0] == "image/jpeg"
    assert len(shown.inline[1]) <= 700_000
    _, (shown,) = run(session, "import io\ntransparent = photo.convert('RGBA'); transparent.putalpha(100); transparent")
    assert shown.inline[0] == "image/png"
    assert len(shown.inline[1]) <= 700_000


def test_images_that_have_no_form_are_noted(session):
    session.execute("from PIL import Image")
    for mode in ("F", "HSV"):
        done, shown = run(session, f"Image.new('{mode}', (4, 3))")
        assert shown == []
        assert any("convert" in note or "failed" in note for note in done["notes"])
    done, shown = run(session, "display(Image.new('RGB', (0, 3)))")
    assert shown == [] and done["notes"]
    assert "notes" not in run(session, "display(Image.new('CMYK', (4, 3)))")[0]


def test_jpeg_bytes_are_scaled(session):
    code = """
        from PIL import Image
        import io
        buffer = io.BytesIO(); Image.new('L', (3000, 1000)).save(buffer, 'JPEG')
        class Photo:
            def _repr_jpeg_(self): return buffer.getvalue()
        Photo()
        """
    _, (shown,) = run(session, code)
    assert shown.mimes == ["image/jpeg", "image/jpeg"]
    assert len(shown.inline[1]) < len(shown.all[1][1])


def test_data_frames_are_compact_tables(session):
    session.execute("import pandas as pd, numpy as np")
    done, (shown,) = run(session, "df = pd.DataFrame({'n': range(1000), 'x': np.linspace(0, 1, 1000), 'text': ['long ' * 50] * 1000}); df")
    lines = done["result"].splitlines()
    assert lines[0].startswith("DataFrame, 1000 rows × 3 columns: n int64, x float64, text ")
    assert len(lines) <= 60
    assert any(line.startswith("0 ") for line in lines)
    assert any(line.startswith("999 ") for line in lines)
    assert max(map(len, lines)) < 120
    assert shown.mimes == ["text/html"]
    assert shown.inline is None
    assert b"<table" in shown.parts["text/html"]
    assert shown.parts["text/html"].count(b"<tr") < 100
    _, (shown,) = run(session, "display(df)")
    assert shown.inline == ("text/plain", done["result"].encode())


@pytest.mark.parametrize(
    ("code", "first"),
    [
        ("pd.DataFrame({'a': [1]})", "DataFrame, 1 row × 1 column: a int64"),
        ("pd.DataFrame()", "DataFrame, 0 rows × 0 columns: no columns"),
        ("pd.DataFrame({'a': [1.5]}).iloc[:0]", "DataFrame, 0 rows × 1 column: a float64"),
        ("pd.Series([1, 2], name='s')", "Series s, 2 values: int64"),
        ("pd.Series(range(5000))", "Series, 5000 values: int64"),
        ("pd.DataFrame(np.zeros((5, 500)))", "DataFrame, 5 rows × 500 columns: 0 float64, "),
        (
            "pd.DataFrame(np.zeros((200, 4)), columns=pd.MultiIndex.from_product([['a', 'b'], [1, 2]]))",
            "DataFrame, 200 rows × 4 columns: ('a', 1)",
        ),
    ],
)
def test_tables_say_what_they_are(session, code, first):
    session.execute("import pandas as pd, numpy as np\npd.set_option('display.max_rows', None)")
    done, _ = run(session, code)
    lines = done["result"].splitlines()
    assert lines[0].startswith(first)
    assert len(lines) <= 60
    assert len(done["result"]) < 12_000
    assert "notes" not in done


def test_a_table_that_cannot_be_printed(session):
    code = "import pandas as pd\nclass Odd:\n    def __repr__(self): raise ValueError('no')\npd.DataFrame({'a': [Odd()]})"
    done, _ = run(session, code)
    assert "ValueError: no" in done["result"] + str(done.get("notes"))


def test_arrays_say_shape_and_dtype(session):
    session.execute("import numpy as np")
    assert session.result("np.arange(3)") == "array([0, 1, 2])  # shape (3,), dtype int64"
    assert session.result("np.zeros((100, 100))").endswith("\n# shape (100, 100), dtype float64")
    assert "shape" not in session.result("np.array(5)")


def test_polars_frames(session):
    if session.execute("import polars as pl")["outcome"] != "ok":
        pytest.skip("there is no polars")
    done, (shown,) = run(session, "pl.DataFrame({'a': range(1000)})")
    assert "(1_000, 1)" in done["result"]
    assert shown.mimes == ["text/html"]


def test_the_real_ipython(session):
    if session.execute("import IPython")["outcome"] != "ok":
        pytest.skip("there is no IPython")
    code = "from IPython.display import display, HTML, Image, Markdown\ndisplay(HTML('<b>'), Markdown('# m'))"
    _, (html, markdown) = run(session, code)
    assert html.parts["text/html"] == b"<b>"
    assert markdown.inline == ("text/markdown", b"# m")
    assert session.text() == ""


def test_inspecting_keeps_to_max_items(session):
    session.execute("import pandas as pd, numpy as np")
    session.execute(
        "df = pd.DataFrame(np.zeros((5, 30)), columns=[f'c{n}' for n in range(30)]); row = pd.Series(range(100)); a = np.arange(1000)"
    )
    for name, gap, last in (("df", 26, "'c29'"), ("row", 96, "99"), ("a", 996, 999)):
        found = session.look("inspect", path=name, max_items=4)
        assert [item["gap"] if "gap" in item else item["key"] for item in found["items"]][3:] == [gap, last]
        assert found["total_items"] == gap + 4 and found["more"]
    assert session.look("inspect", path="a", max_items=4)["preview"] == "[0, 1, …, 998, 999]"
    refused = session.look("inspect", path="df.c0", full=True, offset=1_000_000)
    assert refused["kind"] == "bad_request"
