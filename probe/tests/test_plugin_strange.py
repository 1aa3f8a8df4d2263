"""Tests that do what tests should not, and a daemon or a disk that fails: the run is as it would be, and its record is right."""

from __future__ import annotations

from runs import needs


def outcomes(output):
    """pytest's own last words, without the time."""
    return output.strip().splitlines()[-1].split(" in ")[0].strip("= ")


def same_with_and_without(place, project, *arguments, **env):
    """The run with the plugin, which ended as it does without."""
    without = place.run(project, *arguments, PYLAIR_TEST="0", **env)
    ran = place.run(project, *arguments, **env)
    assert ran.status == without.status, ran.output
    last = [line for line in ran.output.splitlines() if not line.startswith("pylair: ")]
    assert outcomes("\n".join(last)) == outcomes(without.output)
    assert ran.of("end")[0].get("note") is None
    return ran


def test_a_test_that_closes_the_standard_streams(place):
    place.listen(freeze=5)
    project = place.write(
        """
        import os

        def test_it():
            kept = 7
            for fd in (0, 1, 2):
                os.close(fd)
            assert kept == 8

        def test_after():
            print("still printing")
        """
    )
    ran = same_with_and_without(place, project)
    assert ran.outcomes() == [("test_it", "call", "failed"), ("test_after", "call", "passed")]
    assert "pid" in ran.failure("test_it")["frozen"]


def test_a_test_whose_directory_is_gone(place):
    place.listen(freeze=5)
    project = place.write(
        """
        import os

        def test_it(tmp_path):
            os.chdir(tmp_path)
            os.rmdir(tmp_path)
            exec(compile("raise ValueError(1)", "generated.py", "exec"))

        def test_after():
            assert os.sep == "?"
        """
    )
    ran = place.run(project)
    failure = ran.failure("test_it")
    assert failure["exception"]["type"] == "ValueError"
    assert [frame["file"] for frame in failure["frames"]] == ["generated.py", "test_it.py"]
    assert ran.failure("test_after")["exception"]["type"] == "AssertionError"
    assert "pid" in failure["frozen"]


def test_a_home_that_is_relative_stays_where_it_was(place):
    project = place.write(
        """
        def test_it(tmp_path, monkeypatch):
            monkeypatch.chdir(tmp_path)
            assert 0
        """
    )
    place.run(project, PYLAIR_HOME="home")
    assert len(list((project / "home" / "state" / "spool").glob("*.jsonl"))) == 1


def test_a_test_that_ends_the_process(place):
    place.listen()
    project = place.write(
        """
        import os

        def test_fails():
            assert 0

        def test_ends():
            os._exit(7)
        """
    )
    ran = place.run(project)
    assert ran.status == 7
    # What failed was told at once; the run has no end.
    assert ran.failure("test_fails")["exception"]["type"] == "AssertionError"
    assert ran.of("end") == []


def test_chains_that_end_where_they_began(place):
    place.listen()
    project = place.write(
        """
        def test_it():
            first, second, third = ValueError("first"), KeyError("second"), OSError("third")
            first.__cause__, second.__context__, third.__cause__ = second, third, first
            raise first

        class Odd(Exception):
            __cause__ = property(lambda self: self)
            __context__ = property(lambda self: self)

        def test_itself():
            raise Odd
        """
    )
    ran = place.run(project)
    links = [(link["relation"], link["exception"]["type"]) for link in ran.failure("test_it")["chain"]]
    assert links == [("cause", "KeyError"), ("context", "OSError")]
    assert ran.failure("test_itself")["exception"]["type"] == "Odd"


def test_a_test_that_takes_the_garbage_collector_and_the_signals(place):
    place.listen(freeze=5)
    project = place.write(
        """
        import gc, signal, sys

        def test_it():
            gc.disable()
            gc.set_threshold(1)
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
            sys.setrecursionlimit(120)
            assert 0

        def test_after():
            sys.setrecursionlimit(1000)
        """
    )
    ran = same_with_and_without(place, project)
    assert ran.failure("test_it")["exception"]["type"] == "AssertionError"


def test_a_disk_that_is_full_is_said_and_harms_nothing(place):
    project = place.write(
        """
        import pytest

        @pytest.mark.parametrize("number", range(30))
        def test_it(number):
            assert number
        """
    )
    # A limit on the size of files is a full disk to who writes one.
    place.write("import resource, signal\nresource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n", "conftest.py")
    ran = place.run(project)
    assert ran.status == 1
    assert "1 failed, 29 passed" in ran.output
    assert ran.closing()[-1].startswith("pylair: the results of this run could not be kept: ")


def test_what_was_sent_before_the_daemon_died_is_not_lost(place):
    place.listen(dies_after=2)
    project = place.write("import pytest\n@pytest.mark.parametrize('n', range(30))\ndef test_it(n): assert n % 10\n")
    place.run(project)
    known = {record["nodeid"] for record in [*place.daemon.records, *place.spooled()] if record["ev"] == "test"}
    assert len(known) == 30
    # The spool can be taken in alone: it begins with the run.
    assert place.spooled()[0]["ev"] == "run"
    assert place.spooled()[-1]["ev"] == "end"


@needs("xdist")
def test_what_workers_of_xdist_cannot_collect_is_told_once(place):
    place.listen()
    ran = place.run(place.project("collection_error"), "-n2")
    errors = [record for record in ran.tests if record["phase"] == "collect"]
    assert sorted(record["nodeid"] for record in errors) == ["test_limit.py", "test_syntax.py"]
    assert ran.failure("test_limit.py")["exception"]["type"] == "ValueError"


def test_subtests_of_unittest(place):
    place.listen()
    project = place.write(
        """
        import unittest

        class NumbersTest(unittest.TestCase):
            def test_numbers(self):
                for number in range(3):
                    with self.subTest("odd", number=number):
                        self.assertNotEqual(number, 1)
        """
    )
    ran = place.run(project)
    assert ran.status == 1
    failures = [record["failure"] for record in ran.tests if "failure" in record]
    assert "1 == 1" in failures[0]["exception"]["message"]


def test_many_that_pass_are_all_told(place):
    """More than are told of at once, with one that fails, one that is skipped and one with a parameter among them."""
    place.listen()
    body = "".join(f"def test_{number}(): pass\n" for number in range(650))
    body += "import pytest\n@pytest.mark.slow\n@pytest.mark.parametrize('word', ['\\u00fc', 'b'])\ndef test_param(word): pass\n"
    body += "def test_fails(): assert 0\n@pytest.mark.skip\ndef test_skipped(): pass\n" + body.replace("test_", "test_again_")
    ran = place.run(place.write(body))
    assert len(ran.tests) == len({record["nodeid"] for record in ran.tests}) == 1306
    record = ran.test("::test_649")
    assert (record["outcome"], record["phase"], record["attempt"]) == ("passed", "call", 1)
    assert (record["file"], record["line"]) == ("test_it.py", 650)
    assert record["at"].endswith("Z")
    assert set(record["seconds"]) == {"setup", "call", "teardown"}
    assert ran.test("::test_param[b]")["params"] == {"word": "'b'"}
    assert ran.test("::test_param[b]")["markers"] == ["slow"]
    assert ran.of("end")[0]["not_run"] == 0
    order = [record["nodeid"].rpartition("::")[2] for record in ran.tests]
    assert order.index("test_649") < order.index("test_fails") < order.index("test_again_0")


def test_copies_are_capped():
    from pylair import freezing

    freezer = freezing.Freezer("r", "/nowhere", {}, False)
    freezer._made = freezing.MAX_COPIES
    refused = freezer.freeze("r-1", "t", ValueError(), [], 10)
    assert refused == f"{freezing.MAX_COPIES} copies were made of this run, which took 0.0 s of it"


def test_a_debugger_comes_after_the_evidence(place):
    place.listen()
    project = place.write("def test_it():\n    number = 3\n    assert number == 4\n\ndef test_after(): pass\n")
    (project / "typed").write_text("p number + 10\nq\n")
    with open(project / "typed") as typed:
        ran = place.run(project, "--pdb", stdin=typed)
    assert "\n13\n" in ran.output.replace("(Pdb) ", "\n")
    assert ran.failure("test_it")["frames"][0]["locals"] == [{"name": "number", "type": "int", "value": "3"}]
    (end,) = ran.of("end")
    assert (end["exit_code"], end["not_run"]) == (2, 1)


def test_values_are_not_asked_for_their_class(place):
    """A name of a module whose every attribute warns, where warnings are errors."""
    place.listen()
    project = place.write(
        """
        import warnings

        class Strange:
            def __getattribute__(self, name):
                warnings.warn("do not use this", DeprecationWarning)
                return super().__getattribute__(name)

        old, new = Strange(), 7
        raise ValueError("stop")
        """
    )
    (project / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    ran = place.run(project)
    assert "not everything of this run was recorded" not in ran.output
    failure = ran.failure("test_it.py")
    assert (failure["exception"]["type"], failure["exception"]["message"]) == ("ValueError", "stop")
    assert [local["name"] for local in failure["frames"][0]["locals"]] == ["old", "new"]
