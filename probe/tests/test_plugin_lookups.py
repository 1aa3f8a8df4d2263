"""What is recorded so that explanations can be checked: the working directory, files of modules, what a missing name was looked up in."""

from __future__ import annotations

import os
import sys

import pytest
from runs import needs


def told(place, text, *more):
    """The evidence of the one failure of a file."""
    for name, content in more:
        place.write(content, name)
    project = place.write(text)
    failures = [test["failure"] for test in place.run(project).tests if test.get("failure")]
    assert len(failures) == 1
    return failures[0]


def test_the_directory_that_a_test_went_to(place):
    place.listen()
    evidence = told(place, "def test_it(tmp_path, monkeypatch):\n    monkeypatch.chdir(tmp_path)\n    open('data.csv')\n")
    assert evidence["cwd"].endswith("test_it0")


def test_modules_have_the_files_they_were_imported_from(place):
    place.listen()
    (place.projects / "written" / "src").mkdir(parents=True)
    (place.projects / "written" / "lib").mkdir()
    place.write("kind = 'source'\n", "src/shop.py")
    place.write("kind = 'imported'\n", "lib/shop.py")
    project = place.write("import sys\nsys.path.insert(0, 'lib')\nimport shop\n\ndef test_it():\n    assert shop.kind == 'source'\n")
    failure = place.run(project).failure("test_it")
    assert failure["modules"]["shop"] == {"file": "lib/shop.py"}
    assert failure["modules"]["test_it"] == {"file": "test_it.py"}


def test_an_attribute_that_only_an_uncalled_method_assigns_is_not_there(place):
    place.listen()
    evidence = told(
        place,
        """
        class TestIt:
            def prepare(self):
                self.G = 1

            def test_it(self):
                self.other = 1
                self.G
        """,
    )
    lookup = evidence["exception"]["lookup"]
    assert (lookup["name"], lookup["owner"], lookup["of"]) == ("G", "instance", "test_it.TestIt")
    assert {"other", "prepare", "test_it"} <= set(lookup["names"])
    assert "G" not in lookup["names"]


@pytest.mark.skipif(sys.version_info < (3, 10), reason="the exception does not name its object")
def test_a_slot_without_a_value_is_not_there(place):
    place.listen()
    evidence = told(place, "class A:\n    __slots__ = ('x', 'y')\n\ndef test_it():\n    a = A()\n    a.y = 1\n    a.x\n")
    assert evidence["exception"]["lookup"]["names"] == ["y"]


@pytest.mark.parametrize("line", ["from shop import tax", "import shop; shop.tax"])
def test_names_of_the_module_that_was_imported(place, line):
    place.listen()
    evidence = told(place, f"def test_it():\n    {line}\n", ("shop.py", "def taxes():\n    pass\n"))
    lookup = evidence["exception"]["lookup"]
    assert (lookup["name"], lookup["owner"], lookup["of"], lookup["names"]) == ("tax", "module", "shop", ["taxes"])


def test_modules_of_a_package_that_has_not_the_one(place):
    place.listen()
    (place.projects / "written" / "shop").mkdir(parents=True)
    place.write("", "shop/__init__.py")
    place.write("", "shop/taxes.py")
    evidence = told(place, "def test_it():\n    import shop.tax\n")
    lookup = evidence["exception"]["lookup"]
    assert (lookup["name"], lookup["owner"], lookup["of"], lookup["names"]) == ("tax", "package", "shop", ["taxes"])


def test_names_of_the_frame(place):
    place.listen()
    evidence = told(place, "LIMIT = 1\n\ndef test_it():\n    own = 1\n    return limit\n")
    lookup = evidence["exception"]["lookup"]
    assert (lookup["name"], lookup["owner"], lookup["of"]) == ("limit", "frame", "test_it")
    assert {"LIMIT", "own", "len"} <= set(lookup["names"])
    assert "limit" not in lookup["names"]


def test_an_exception_of_the_program_says_nothing_of_an_object(place):
    place.listen()
    evidence = told(place, "def test_it():\n    raise AttributeError('no such thing')\n")
    assert "lookup" not in evidence["exception"]


def test_packages_of_a_target_directory_count(place):
    place.listen()
    (place.projects / "written" / "deps" / "Simple_Json-3.19.1.dist-info").mkdir(parents=True)
    project = place.write("def test_it(): pass\n")
    packages = place.run(project, "-o", "pythonpath=deps").of("run")[0]["packages"]
    assert packages["pytest"] == pytest.__version__
    assert packages["simple-json"] == "3.19.1"


def test_the_whole_statement_is_kept_however_long_it_is(place):
    place.listen()
    values = "".join(f"        {number},\n" for number in range(20))
    evidence = told(place, f"def test_it():\n    a = 1\n    assert (\n        a\n    ) == [\n{values}    ], 'why'\n    a = 2\n")
    frame = evidence["frames"][0]
    assert frame["statement"] == [3, 26]
    lines = frame["source"]["lines"]
    at = 3 - frame["source"]["first"]
    assert (lines[at], lines[at + 23]) == ("    assert (", "    ], 'why'")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the interpreter does not know columns")
@pytest.mark.parametrize(
    ("line", "failing"),
    [
        ("f(a) + len(b.c.d)", "b.c.d"),
        ("a['ü']['b'] + 1", "a['ü']['b']"),
        ("f(1) + f(None) + 2", "f(1) + f(None)"),
    ],
)
def test_the_expression_that_failed(place, line, failing):
    place.listen()
    before = "from types import SimpleNamespace\ndef f(x): return x\n"
    evidence = told(place, f"{before}def test_it():\n    a = {{'ü': 1}}\n    b = SimpleNamespace(c=1)\n    {line}\n")
    assert evidence["frames"][0]["expression"] == failing


def test_where_the_compiler_stopped(place):
    place.listen()
    project = place.write("import other\n")
    place.write("x = 1\nexcept Exception, e:\n", "other.py")
    failure = place.run(project).tests[0]["failure"]
    assert failure["exception"]["syntax"] == {"file": "other.py", "line": 2, "text": "except Exception, e:"}


def test_names_that_the_module_has(place):
    place.listen()
    evidence = told(place, "import os\n\ndef test_it():\n    here = 1\n    assert [n for n in os.sep if len(n) == nothing(here)]\n")
    names = set(evidence["frames"][0]["globals"])
    assert {"os", "len"} <= names
    assert not names & {"here", "n", "nothing"}


def test_expected_and_got_of_doctests_are_kept(place):
    place.listen()
    text = '''
    def one():
        """
        >>> one()
        2
        >>> print("a"); print("b")
        a
        c
        """
        return 1

    def broken():
        """
        >>> 1 / 0
        1
        """
    '''
    ran = place.run(place.write(text, "shop.py"), "--doctest-modules", "--doctest-continue-on-failure")
    message = ran.failure("shop.py::shop.one")["exception"]["message"]
    assert "shop.py:4: `one()`\nExpected:\n    2\nGot:\n    1" in message
    assert "Expected:\n    a\n    c\nGot:\n    a\n    b" in message
    message = ran.failure("shop.py::shop.broken")["exception"]["message"]
    assert "`1 / 0`\nExpected:\n    1\nGot:\n    ZeroDivisionError: division by zero" in message


@needs("xdist")
def test_the_stack_of_a_worker_that_crashes_is_kept(place):
    place.listen()
    ran = place.run(place.write("import faulthandler\n\ndef test_it():\n    faulthandler._sigsegv()\n"), "-n2")
    failure = ran.failure("test_it")
    assert failure["exception"]["type"] == "Crashed"
    assert "Fatal" not in failure["exception"]["message"]
    assert "Fatal Python error: Segmentation fault" in failure["text"]
    assert "line 4 in test_it" in failure["text"]


def test_stacks_are_kept_before_a_timeout_ends_the_process(place):
    place.listen()
    # As pytest-timeout does it where signals do not reach.
    place.write("def dump_stacks(terminal):\n    print('+++ Timeout +++')\n", "pytest_timeout.py")
    project = place.write(
        """
        import os
        import pytest_timeout

        def test_it():
            pytest_timeout.dump_stacks(None)
            os._exit(1)
        """
    )
    fd = os.memfd_create("stacks")
    try:
        place.run(project, "-p", "pytest_timeout", pass_fds=(fd,), PYLAIR_TEST_STACKS=str(fd))
        stacks = os.pread(fd, 100_000, 0).decode()
    finally:
        os.close(fd)
    assert "line 6 in test_it" in stacks
