"""What a pytest run reports: every test, as it is, with the evidence of each failure."""

from __future__ import annotations

import importlib.util
import os
import stat
import subprocess
import sys

import pytest
from runs import fields_of, needs


@pytest.fixture
def run(place):
    """Runs one of the projects, with a daemon that answers."""
    place.listen()
    return lambda name, *arguments, **options: place.run(place.project(name), *arguments, **options)


def check(record, name):
    """Whether a record has the fields that the daemon reads, and all that it needs."""
    known = fields_of(name)
    assert set(record) - {"ev"} <= set(known), f"{name}: {set(record) - set(known)}"
    missing = {field for field, needed in known.items() if needed} - set(record)
    assert not missing, f"{name}: {missing}"


def test_records_have_the_fields_that_the_daemon_reads(run):
    ran = run("assertion")
    kinds = [record["ev"] for record in ran.records]
    assert (kinds[0], kinds[-1]) == ("run", "end")
    assert sorted(kinds) == ["code", "end", "run", "test", "test", "test"]
    for record in ran.records:
        check(record, {"run": "Began", "code": "Code", "test": "Tested", "end": "Ended"}[record["ev"]])
    assert len({record["run"] for record in ran.records}) == 1
    begun = ran.records[0]
    check(begun["project"], "Project")
    assert begun["project"]["name"] == "assertion"
    assert begun["python"] == "{}.{}.{}".format(*sys.version_info[:3])
    assert begun["packages"]["pytest"] == begun["pytest"] == pytest.__version__
    failure = ran.failure("test_discount_of_a_small_sum")
    check(failure, "Evidence")
    check(failure["exception"], "Exception")
    for frame in failure["frames"]:
        check(frame, "Frame")
        check(frame["source"], "Lines")
        for value in frame["locals"]:
            check(value, "Local")
    assert ran.records[-1]["exit_code"] == ran.status == 1


def test_an_assertion(run):
    ran = run("assertion")
    assert ran.outcomes() == [
        ("test_discount_is_a_percentage", "call", "passed"),
        ("test_total", "call", "passed"),
        ("test_discount_of_a_small_sum", "call", "failed"),
    ]
    record = ran.test("test_discount_of_a_small_sum")
    assert (record["file"], record["line"], record["attempt"]) == ("test_cart.py", 13, 1)
    assert record["seconds"]["call"] > 0
    failure = record["failure"]
    assert failure["exception"]["type"] == "AssertionError"
    assert failure["exception"]["message"].startswith("assert 40 == ")
    (frame,) = failure["frames"]
    assert (frame["file"], frame["line"], frame["function"], frame["in_app"]) == ("test_cart.py", 15, "test_discount_of_a_small_sum", True)
    assert frame["source"]["lines"][frame["line"] - frame["source"]["first"]].strip() == "assert total([price], discount=10) == price * 0.9"
    assert frame["locals"] == [{"name": "price", "type": "int", "value": "50"}]
    assert "AssertionError" in failure["text"]


def test_errors_around_a_test(run):
    ran = run("fixture_error")
    record = ran.test("test_rows")
    assert (record["phase"], record["outcome"]) == ("setup", "error")
    failure = record["failure"]
    assert failure["exception"] == {"type": "ConnectionError", "message": "nobody listens on db.example:5432"}
    assert [frame["function"].rpartition(".")[2] for frame in failure["frames"]] == ["connect", "database"]
    assert "db.example:5432" in failure["frames"][0]["locals"][0]["value"]
    unknown = ran.failure("test_unknown_fixture")
    assert "databse" in unknown["text"]


def test_a_teardown_that_fails_is_reported_beside_the_test(run):
    ran = run("teardown_error")
    assert ran.outcomes() == [
        ("test_passes", "call", "passed"),
        ("test_passes", "teardown", "error"),
        ("test_fails_too", "call", "failed"),
        ("test_fails_too", "teardown", "error"),
    ]
    assert ran.failure("test_passes", phase="teardown")["exception"]["message"] == "the connection was closed twice"


def test_what_cannot_be_collected(run):
    ran = run("collection_error", "--continue-on-collection-errors")
    assert ("test_works", "call", "passed") in ran.outcomes()
    limit = ran.test("test_limit.py")
    assert (limit["phase"], limit["outcome"]) == ("collect", "error")
    assert limit["failure"]["exception"]["type"] == "ValueError"
    assert [frame["file"] for frame in limit["failure"]["frames"]] == ["settings.py", "test_limit.py"]
    assert ran.failure("test_syntax.py")["exception"]["type"] == "SyntaxError"


def test_a_missing_import(run):
    failure = run("missing_import").failure("test_report.py")
    assert failure["exception"] == {"type": "ModuleNotFoundError", "message": "No module named 'no_such_plotting_library'"}
    assert failure["frames"][0]["file"] == "report.py"


def test_a_wrong_mock_path(run):
    ran = run("wrong_mock_path")
    real = ran.failure("test_patched_where_it_is_not_used")
    assert [(frame["file"], frame["in_app"]) for frame in real["frames"]] == [
        ("payment.py", True),
        ("shop.py", True),
        ("test_shop.py", True),
    ]
    absent = ran.failure("test_patched_name_that_is_not_there")
    assert absent["exception"]["type"] == "AttributeError"
    assert [frame["in_app"] for frame in absent["frames"]][-1] is True
    assert not any(frame["in_app"] for frame in absent["frames"][:-1])
    # Libraries have no locals in the report.
    assert not any("locals" in frame for frame in absent["frames"][:-1])


def test_a_changed_signature(run):
    failure = run("changed_signature").failure("test_notify")
    assert failure["exception"]["type"] == "TypeError"
    assert "send()" in failure["exception"]["message"]
    assert [frame["function"] for frame in failure["frames"]] == ["notify", "test_notify"]


def test_none_where_a_value_was_expected(run):
    failure = run("none_value").failure("test_unknown_account")
    assert failure["exception"]["type"] == "AttributeError"
    assert {"name": "account", "type": "NoneType", "value": "None"} in failure["frames"][0]["locals"]


def test_marks_are_what_they_are(run):
    ran = run("marks")
    told = [(record["nodeid"].rpartition("::")[2], record["phase"], record["outcome"], record.get("reason")) for record in ran.tests]
    assert told == [
        ("test_expected", "call", "xfailed", "not written yet"),
        ("test_unexpected_pass", "call", "xpassed", "thought to be broken"),
        ("test_strict", "call", "failed", None),
        ("test_skipped", "setup", "skipped", "no network here"),
        ("test_skips_itself", "call", "skipped", "not today"),
        ("test_not_run", "setup", "xfailed", "[NOTRUN] ends the process"),
    ]
    assert "[XPASS(strict)] must not pass" in ran.failure("test_strict")["exception"]["message"]
    assert ran.test("test_skipped")["markers"] == ["skip"]
    assert [record["nodeid"] for record in ran.tests if "failure" in record] == ["test_marks.py::test_strict"]


def test_parameters_and_markers(run):
    ran = run("parameters")
    record = ran.test("test_words[3-drei]")
    assert record["params"] == {"number": "3", "word": "'drei'"}
    assert "markers" not in record
    point = ran.test("test_point[point0]")
    assert point["params"] == {"point": "<test_parameters.Point object x=1 y=2>"}
    assert point["markers"] == ["slow"]


def test_unittest_classes(run):
    ran = run("unittest_classes")
    assert sorted(ran.outcomes()) == [
        ("test_deposit", "call", "passed"),
        ("test_known", "call", "xfailed"),
        ("test_later", "call" if ran.test("test_later")["phase"] == "call" else "setup", "skipped"),
        ("test_never", "call", "failed"),
        ("test_withdraw", "call", "failed"),
    ]
    failure = ran.failure("test_withdraw")
    assert failure["exception"]["message"] == "7 != 6"
    own = [frame for frame in failure["frames"] if frame["in_app"]]
    assert "balance=7" in own[0]["locals"][0]["value"]


@pytest.mark.skipif(
    int(pytest.__version__.split(".")[0]) < 9 and importlib.util.find_spec("pytest_subtests") is None,
    reason="subtests are in pytest since 9, before in pytest-subtests",
)
def test_subtests(run):
    ran = run("subtests")
    told = [(record.get("subtest"), record["outcome"]) for record in ran.tests]
    assert told[:3] == [("[odd] (number=0)", "passed"), ("[odd] (number=1)", "failed"), ("[odd] (number=2)", "passed")]
    failure = ran.failure("test_numbers", subtest="[odd] (number=1)")
    assert {"name": "number", "type": "int", "value": "1"} in failure["frames"][0]["locals"]


def test_chains_and_groups(run):
    ran = run("chains")
    cause = ran.failure("test_cause")
    assert (cause["exception"]["type"], cause["exception"]["module"]) == ("NotLoaded", "loading")
    (link,) = cause["chain"]
    assert (link["relation"], link["exception"]["type"]) == ("cause", "ValueError")
    assert [frame["function"] for frame in link["frames"]] == ["parse", "load"]
    (context,) = ran.failure("test_context")["chain"]
    assert context["relation"] == "context"
    deep = ran.failure("test_recursion")
    assert deep["exception"]["type"] == "RecursionError"
    assert len(deep["frames"]) == 40
    assert "frames" in deep["cut"]
    if sys.version_info >= (3, 11):
        group = ran.failure("test_group")
        assert [(link["relation"], link["exception"]["type"]) for link in group["chain"]][:2] == [("group", "NotLoaded")] * 2


def test_what_cannot_be_printed(run):
    ran = run("unprintable")
    failure = ran.failure("test_locals")
    values = {value["name"]: value["value"] for value in failure["frames"][0]["locals"]}
    assert values["raises"] == "<test_unprintable.Raises object number=7>"
    assert values["exits"] == "<test_unprintable.Exits object>"
    assert values["hides"] == "<test_unprintable.Hides object>"
    assert values["hangs"] == "<test_unprintable.Hangs object>"
    assert values["half"] == "'\\ud800 and text'"
    assert "PRINTED" not in failure.get("stdout", "")
    assert ran.failure("test_exception")["exception"]["message"] == "<str() of the exception failed: RuntimeError>"
    assert ran.status == 1


def test_everything_is_cut(run, place):
    # pytest's own summary takes long over such a line.
    ran = run("huge", "--tb=line", "-rN")
    output = ran.failure("test_output")
    assert {"stdout", "log"} <= set(output["cut"])
    assert len(output["stdout"]) < 40_000
    message = ran.failure("test_message")
    assert "characters left out" in message["exception"]["message"]
    assert {"message", "text"} <= set(message["cut"])
    assert max(size for _, _, size in place.daemon.requests) < 300_000
    assert ran.of("end")


def test_exits_and_interrupts(run):
    ran = run("exits")
    assert ran.failure("test_exit")["exception"] == {"type": "SystemExit", "message": "3"}
    (end,) = ran.of("end")
    assert (end["exit_code"], end["not_run"]) == (2, 2)
    assert end["note"] == "KeyboardInterrupt in test_exits.py::test_interrupt"
    assert ("test_after", "call", "passed") not in ran.outcomes()


def test_stopping_at_the_first_failure(run):
    ran = run("stops", "-x")
    assert [name for name, _, _ in ran.outcomes()] == ["test_first", "test_second"]
    assert ran.of("end")[0]["not_run"] == 2


def test_last_failed(place):
    place.listen()
    project = place.project("stops")
    place.run(project, "-p", "cacheprovider")
    place.daemon.records.clear()
    ran = place.run(project, "-p", "cacheprovider", "--lf")
    assert ran.outcomes() == [("test_second", "call", "failed"), ("test_fourth", "call", "failed")]
    assert ran.of("end")[0]["not_run"] == 0


def test_output_and_logs(place):
    place.listen()
    project = place.write(
        """
        import logging, sys

        def test_it():
            print("to stdout")
            print("to stderr", file=sys.stderr)
            logging.getLogger("shop").warning("sold out")
            assert False
        """
    )
    failure = place.run(project).failure("test_it")
    assert (failure["stdout"], failure["stderr"]) == ("to stdout\n", "to stderr\n")
    assert "sold out" in failure["log"]


@needs("pytest_rerunfailures")
def test_reruns_are_tries_of_their_own(run):
    ran = run("flaky", "--reruns=0")
    told = [(record["nodeid"].rpartition("::")[2], record["attempt"], record["outcome"]) for record in ran.tests]
    assert told == [
        ("test_second_time", 1, "rerun"),
        ("test_second_time", 2, "passed"),
        ("test_never", 1, "rerun"),
        ("test_never", 2, "failed"),
    ]
    assert ran.failure("test_never", attempt=1)["exception"]["type"] == "TimeoutError"
    # Only what failed in the end.
    assert len(ran.closing()) == 1


@needs("xdist")
@pytest.mark.parametrize("installed", [True, False])
def test_workers_of_xdist_report_through_the_first_process(run, place, installed):
    ran = run("parameters", "-n2", installed=installed)
    assert len(ran.tests) == 4
    record = ran.test("test_words[3-drei]")
    assert record["params"] == {"number": "3", "word": "'drei'"}
    assert record["worker"] in ("gw0", "gw1")
    assert record["at"]
    failure = record["failure"]
    assert failure["frames"][0]["locals"][0] == {"name": "number", "type": "int", "value": "3"}
    assert failure["frozen"] == {"why_not": "the test ran in a worker of xdist"}
    assert failure["occurrence"].startswith(record["run"])
    assert len({record["run"] for record in ran.records}) == 1
    assert ran.of("run")[0]["workers"] == 2
    assert ran.of("end")[0]["not_run"] == 0
    assert ran.of("code")[0]["hash"] == place.run(place.projects / "parameters").of("code")[-1]["hash"]


@needs("xdist")
def test_a_worker_that_crashes(place):
    place.listen()
    project = place.write("import os\ndef test_it(): os._exit(3)\ndef test_other(): pass\n")
    ran = place.run(project, "-n2")
    assert ran.failure("test_it")["exception"]["type"] == "Crashed"
    assert ran.test("test_other")["outcome"] == "passed"


# The daemon, and what happens without one.


def test_batches_go_to_the_daemon(run, place):
    run("assertion")
    for request, fields, _ in place.daemon.requests:
        assert request == f"POST /api/runs/{place.daemon.records[0]['run']}/records HTTP/1.1"
        assert fields["content-type"] == "application/x-ndjson"
    # The beginning, the failure, the rest, the end.
    assert 3 <= len(place.daemon.requests) <= 5
    assert not place.spool_files()


def test_closing_lines_name_each_failure(run):
    ran = run("assertion")
    (line,) = ran.closing()
    number = f"f{ran.failure('test_discount_of_a_small_sum')['occurrence'][-4:]}"
    assert line == (f"pylair: {number} test_cart.py::test_discount_of_a_small_sum  AssertionError  (new; pylair failures show {number})")
    assert ran.output.index(line) > ran.output.index("short test summary info")


def test_many_closing_lines_end_with_what_shows_the_rest(place):
    place.listen()
    project = place.write("import pytest\n@pytest.mark.parametrize('n', range(205))\ndef test_it(n): assert n < 0\n")
    lines = place.run(project).closing()
    assert len(lines) == 201
    assert lines[-1] == f"pylair: and 5 more; pylair failures list --project {project} --limit 1000"


def test_failures_of_one_cause_are_one_closing_line(place):
    place.listen().groups = ("test_it.py::test_it",)
    project = place.write(
        "import pytest\n@pytest.mark.parametrize('n', range(60))\ndef test_it(n): assert n < 0\ndef test_other(): 1 / 0\n"
    )
    many, one = place.run(project).closing()
    number = many.split()[1]
    assert many == (
        f"pylair: {number} test_it.py::test_it[0]  AssertionError  (new; one of 60 failures in group g8d0; pylair failures show {number})"
    )
    assert "test_other  ZeroDivisionError  (new; pylair failures show" in one


def test_a_run_says_what_it_resolved_and_what_not(place):
    about = {
        "group": "g8d0",
        "failures": 1,
        "id": "k3n7q2",
        "test": "test_a.py::test_x",
        "type": "KeyError",
        "status": "resolved",
        "occurrences": 1,
    }
    many = {**about, "failures": 60, "id": "m4p8"}
    alone = {**about, "id": "z1", "note": "it passed in run r, by itself, which shows nothing"}
    place.listen().settled = {"resolved": [about, many], "not_resolved": [alone]}
    assert place.run(place.write("def test_it(): pass\n")).closing() == [
        "pylair: this run resolved k3n7q2 test_a.py::test_x  KeyError",
        "pylair: this run resolved 60 failures in group g8d0, such as m4p8 test_a.py::test_x  KeyError",
        "pylair: this run did not resolve z1 test_a.py::test_x  KeyError: it passed in run r, by itself, which shows nothing",
    ]


@pytest.mark.parametrize("arguments", [("-k", "not none"), ("-p", "no:terminal"), ("-p", "no:terminal", "-s")], ids=str)
def test_closing_lines_without_a_summary(place, arguments):
    place.listen()
    project = place.write(
        """
        import pytest

        def test_it():
            assert not pytest

        def test_last():
            pytest.exit("enough", returncode=7)
        """
    )
    ran = place.run(project, *arguments)
    assert ran.status == 7
    (line,) = ran.closing()
    assert "test_it.py::test_it  AssertionError" in line


def test_a_conftest_that_raises_before_pytest_has_begun(place):
    place.listen()
    project = place.write("def test_it(): pass\n")
    place.write("LEVEL = 3\n\ndef check(level):\n    return LEVEL / (level - 3)\n\ncheck(3)\n", "conftest.py")
    for installed in (True, False):
        ran = place.run(project, installed=installed)
        assert ran.status == 4
        failure = ran.failure("conftest.py", phase="collect", outcome="error")
        assert failure["exception"] == {"type": "ZeroDivisionError", "message": "division by zero"}
        assert [(frame["function"], frame["line"]) for frame in failure["frames"]] == [("check", 4), ("<module>", 6)]
        assert failure["text"].splitlines()[-1] == "ZeroDivisionError: division by zero"
        assert {"name": "level", "type": "int", "value": "3"} in failure["frames"][0]["locals"]
        assert ran.of("end")[0]["exit_code"] == 4
        assert ran.closing() == [ran.output.splitlines()[-1]], "it comes last"
        place.daemon.records.clear()
    assert place.run(project, "-p", "no:pylair", installed=False).records == []
    assert place.run(project, PYLAIR_TEST="0").records == []


def test_a_conftest_further_below_is_told_by_what_it_raised(place):
    place.listen()
    project = place.write("def test_it(): pass\n")
    below = project / "tests" / "below"
    below.mkdir(parents=True)
    (below / "conftest.py").write_text("values = {}\nvalues['absent']\n")
    (below / "test_more.py").write_text("def test_more(): pass\n")
    (failed,) = [record for record in place.run(project).tests if "failure" in record]
    assert (failed["phase"], failed["failure"]["exception"]["type"]) == ("collect", "KeyError")
    assert [(frame["file"], frame["line"]) for frame in failed["failure"]["frames"]] == [("tests/below/conftest.py", 2)]


def assert_whole(records):
    """What code it is comes as soon as it is known."""
    told = [record["ev"] for record in records]
    assert (told[0], told[-1], sorted(told)) == ("run", "end", ["code", "end", "run", "test", "test", "test"])


def test_without_a_daemon_results_are_spooled(place):
    ran = place.run(place.project("assertion"))
    assert_whole(ran.records)
    (file,) = place.spool_files()
    assert file.name == f"{ran.records[0]['run']}.jsonl"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert ran.closing() == []
    assert ran.status == 1


def test_a_daemon_that_dies_loses_nothing(place):
    place.listen(dies_after=1)
    ran = place.run(place.project("assertion"))
    assert_whole(place.spooled())
    assert ran.status == 1


@pytest.mark.parametrize("status", ["500 Internal Server Error", "503 Service Unavailable"])
def test_a_daemon_that_refuses_loses_nothing(place, status):
    place.listen(status=status)
    place.run(place.project("assertion"))
    assert len([record for record in place.spooled() if record["ev"] == "test"]) == 3
    assert len(place.daemon.requests) == 1


def test_a_daemon_that_says_nothing_is_given_up(place):
    place.listen(silent=True)
    ran = place.run(place.project("stops"))
    assert len(place.daemon.requests) == 1
    assert [record["ev"] for record in place.spooled()][-1] == "end"
    assert ran.status == 1


ENDS = """
import os, pytest

def test_wrong():
    assert not os

@pytest.mark.parametrize("number", range(3))
def test_passes(number):
    pass

@pytest.mark.skip
def test_skipped():
    pass

def test_end():
    os.{how}
"""


@pytest.mark.parametrize("how", ["_exit(3)", "kill(os.getpid(), 9)"])
@pytest.mark.parametrize("daemon", [{}, {"silent": True}, {"dies_after": 0}, None])
def test_what_failed_is_kept_before_the_next_test_begins(place, how, daemon):
    if daemon is not None:
        place.listen(**daemon)
    # Time enough for what passed to be kept too, where it is not noted in memory.
    text = ENDS.replace("{how}", how).replace("def test_end():", "def test_end():\n    import time; time.sleep(0.05)")
    ran = place.run(place.write(text))
    assert ran.status in (3, -9)
    outcomes = {record["nodeid"].partition("::")[2]: record["outcome"] for record in ran.tests}
    assert outcomes["test_wrong"] == "failed"
    assert "test_end" not in outcomes
    if daemon is None or "silent" in daemon:
        assert place.spooled()[0]["ev"] == "run"


def test_what_passed_is_noted_where_somebody_waits_for_it(place):
    place.listen()
    memory = os.memfd_create("now", 0)
    os.ftruncate(memory, 4100 + 1000)
    text = ENDS.replace("{how}", "_exit(3)").replace("range(3)", "range(100)")
    ran = place.run(place.write(text), pass_fds=(memory,), PYLAIR_TEST_NOW=str(memory))
    data = os.pread(memory, 5100, 0)
    os.close(memory)
    assert data.partition(b"\0")[0] == b"test_it.py::test_end"
    used = int.from_bytes(data[4096:4100], sys.byteorder)
    noted = data[4100 : 4100 + used].decode().split("\0")[:-1]
    recorded = [record["nodeid"] for record in ran.tests if record["outcome"] == "passed"]
    assert recorded + noted == [f"test_it.py::test_passes[{number}]" for number in range(100)]


def test_a_test_that_closes_all_descriptors_harms_nothing(place):
    place.listen()
    text = """
        import os

        def test_closes():
            os.closerange(3, 65536)
            try:
                for _ in range(1100):
                    os.open("mine.txt", os.O_RDWR | os.O_CREAT)
            except OSError:
                # As many as there may be.
                os.closerange(3, 50)

        def test_wrong():
            assert not os

        def test_end():
            os._exit(3)
        """
    project = place.write(text)
    ran = place.run(project)
    assert {record["nodeid"].partition("::")[2] for record in ran.tests} >= {"test_wrong"}
    assert (project / "mine.txt").read_bytes() == b""


def test_a_spool_that_cannot_be_written_is_said_and_harms_nothing(place):
    (place.home / "state").write_text("in the way")
    ran = place.run(place.project("assertion"))
    assert ran.closing() == [f"pylair: the results of this run could not be kept: {place.home}/state/spool: Not a directory"]
    assert ran.status == 1


# Being there.


def test_nothing_needs_to_be_installed(run):
    ran = run("assertion", installed=False)
    assert len(ran.tests) == 3
    assert len(ran.closing()) == 1
    assert "PytestAssertRewriteWarning" not in ran.output


def test_both_ways_at_once_report_once(run):
    ran = run("assertion", "-p", "pylair.pytest_plugin", installed=False, PYTHONPATH=os.path.dirname(os.path.dirname(__file__)))
    assert len(ran.of("run")) == 1
    assert len(ran.tests) == 3
    assert len(ran.closing()) == 1


@pytest.mark.parametrize(("arguments", "env"), [(["-p", "no:pylair"], {}), ([], {"PYLAIR_TEST": "0"}), (["--collect-only"], {})])
def test_it_can_be_switched_off(run, place, arguments, env):
    run("assertion", *arguments, installed=False, **env)
    assert place.daemon.requests == []
    assert place.spool_files() == []


def test_a_pytest_below_a_test_is_not_reported(place):
    place.listen()
    project = place.write(
        """
        import subprocess, sys, os

        def test_it(tmp_path):
            (tmp_path / "test_inner.py").write_text("def test_inner(): assert 0")
            command = [sys.executable, "-m", "pytest", "-p", "pylair.pytest_plugin"]
            assert subprocess.run(command, cwd=tmp_path).returncode == 1
        """
    )
    ran = place.run(project)
    assert ran.outcomes() == [("test_it", "call", "passed")]
    assert not place.spool_files()


def test_a_test_that_replaces_half_the_world(place):
    """There is no time, and nothing can be opened or started when the failure is reported."""
    place.listen(freeze=1)
    project = place.write(
        """
        import builtins, json, linecache, os, socket, subprocess, time
        import pytest

        def refuse(*_, **__):
            raise AssertionError("not in this test")

        @pytest.fixture
        def strange(monkeypatch):
            for module, names in ((time, "time monotonic process_time"), (os, "open write pipe fork getpid"),
                                  (builtins, "open"), (socket, "socket"), (subprocess, "Popen"),
                                  (json, "dumps loads"), (linecache, "open")):
                for name in names.split():
                    monkeypatch.setattr(module, name, refuse, raising=False)

        def test_it(strange):
            number = 7
            assert number == 8
        """
    )
    ran = place.run(project, "--tb=no")
    assert ran.failure("test_it")["exception"]["type"] == "AssertionError"
    assert ran.of("end")[0].get("note") is None
    assert ran.closing()[0].startswith("pylair: f")


def test_a_child_of_a_test_reports_nothing(place):
    place.listen()
    project = place.write(
        """
        import os

        def test_it():
            if os.fork() == 0:
                raise SystemExit("the child goes on with the tests")
            os.wait()

        def test_next():
            assert os.getpid() == 0
        """
    )
    ran = place.run(project)
    pids = {record["pid"] for record in ran.of("run")}
    assert len(pids) == 1
    assert sorted(ran.outcomes()) == [("test_it", "call", "passed"), ("test_next", "call", "failed")]
    assert len(ran.of("end")) == 1


# The code that is tested.


def git(project, *arguments):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "init.defaultBranch=trunk", *arguments]
    return subprocess.run(command, cwd=project, check=True, capture_output=True, text=True).stdout


def test_the_state_of_git(place):
    place.listen()
    project = place.project("assertion")
    # However busy the machine is.
    patient = "def pytest_sessionstart():\n    import sys\n    sys.modules['_pylair.reporting']._GIT_SECONDS = 60.0\n"
    (project / "conftest.py").write_text(patient)
    git(project, "init")
    git(project, "add", ".")
    git(project, "commit", "-m", "first")
    git(project, "remote", "add", "origin", "https://ann:secret@git.example/shop.git")

    def code():
        place.daemon.records.clear()
        return place.run(project).of("code")[0]

    clean = code()
    assert (clean["how"], clean["branch"], clean["dirty"], clean["changed"]) == ("git", "trunk", False, [])
    assert len(clean["commit"]) == 40
    assert git(project, "show", "-s", "--format=%cI").strip() == clean["committed"]
    assert place.daemon.records[0]["project"]["remote"] == "https://git.example/shop.git"
    assert code()["hash"] == clean["hash"]
    (project / "cart.py").write_text((project / "cart.py").read_text() + "# changed\n")
    changed = code()
    assert (changed["dirty"], changed["changed"]) == (True, ["cart.py"])
    (project / "extra.py").write_text("x = 1\n")
    extra = code()
    assert sorted(extra["changed"]) == ["cart.py", "extra.py"]
    # The same code is the same before and after it is committed, and with another commit message.
    git(project, "add", ".")
    git(project, "commit", "-m", "second")
    assert code()["hash"] == extra["hash"]
    git(project, "commit", "--amend", "-m", "again")
    committed = code()
    assert (committed["hash"], committed["other"]) == (extra["hash"], extra["other"]) and committed["commit"] != extra["commit"]
    # A note is not code, whether git tracks it or not, and neither is what a test left.
    seen = {extra["other"]}
    for name in ("NOTES.txt", "docs/todo.md", "left.sqlite3", "out.json"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("buy milk\n")
        noted = code()
        assert noted["hash"] == extra["hash"] and noted["other"] not in seen, name
        seen.add(noted["other"])
    git(project, "add", "NOTES.txt", "docs")
    git(project, "commit", "-m", "notes")
    assert (code()["hash"], code()["other"]) == (extra["hash"], noted["other"])
    (project / "cart.py").unlink()
    assert code()["hash"] not in (clean["hash"], extra["hash"])
    git(project, "checkout", "cart.py")
    # What a run writes is no code.
    (project / "results.xml").write_text('<?xml version="1.0"?><testsuites><testsuite name="pytest"/></testsuites>')
    assert code()["hash"] == extra["hash"]
    (project / "extra.py").write_text("x = 2\n")
    assert len({clean["hash"], changed["hash"], extra["hash"], code()["hash"]}) == 4


def test_the_code_without_git(place):
    place.listen()
    project = place.project("assertion")
    first = place.run(project).of("code")[0]
    assert (first["how"], first.get("commit")) == ("files", None)
    assert place.run(project).of("code")[-1]["hash"] == first["hash"]
    # Whatever part of the tests is run.
    (project / "test_more.py").write_text("def test_more(): pass\n")
    both = place.run(project).of("code")[-1]["hash"]
    assert place.run(project, "test_more.py").of("code")[-1]["hash"] == both != first["hash"]
    (project / "cart.py").write_text((project / "cart.py").read_text() + "# changed\n")
    assert place.run(project).of("code")[-1]["hash"] not in (first["hash"], both)
