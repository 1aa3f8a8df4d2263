"""Log records of an app: what is kept, how it is read in pages, and that the app logs as if nobody listened."""

from __future__ import annotations

import pytest

QUIET = "import logging, threading\nlogging.basicConfig(level=logging.DEBUG, handlers=[logging.NullHandler()])\n"
MANY = QUIET + "for i in range(1, 1001): logging.getLogger('app.db' if i % 2 else 'web').log(10 * (1 + i % 5), 'number %d', i)\n"


def logs(app, **fields):
    done = app.ask("logs", **fields)
    assert done.get("quick") or fields.get("wait_s"), "it was not answered by the I/O thread"
    return done.json


def ids(page):
    return [entry["id"] for entry in page["entries"]]


def messages(page):
    return [entry["message"] for entry in page["entries"]]


def test_the_newest_records_come_and_pages_go_both_ways(run):
    app = run(MANY)
    page = logs(app, limit=3)
    assert messages(page) == ["number 998", "number 999", "number 1000"]
    assert page["entries"][-1]["level"] == "DEBUG" and page["entries"][-1]["logger"] == "web"
    assert (page["count"], page["first_id"], page["last_id"], page["has_older"], page["has_newer"]) == (3, 998, 1000, True, False)
    older = logs(app, limit=2, before_id=page["next_before_id"])
    assert (ids(older), older["has_older"], older["has_newer"], older["next_after_id"]) == ([996, 997], True, True, 997)
    first = logs(app, after_id=1, limit=2)
    assert (ids(first), first["has_older"], first["has_newer"]) == ([2, 3], True, True)
    assert ids(logs(app, after_id=first["next_after_id"], limit=2)) == [4, 5]
    for unknown in ({"after_id": 5000}, {"before_id": 5000}):
        page = logs(app, limit=2, **unknown)
        assert ids(page) == [999, 1000]
        (note,) = [note for note in page["notes"] if "5000" in note]
        assert note.startswith("there is no record 5000: the newest is 1000. Numbers begin at 1 when the probe starts, ")
        assert note.endswith("; this page has the newest records")
    last = logs(app, after_id=1000)
    assert (ids(last), last["has_older"], last["has_newer"], last["next_after_id"]) == ([], True, False, 1000)
    start = logs(app, before_id=1)
    assert (ids(start), start["has_older"], start["has_newer"], start["next_before_id"]) == ([], False, True, None)


def test_limits_are_clamped(run):
    app = run(MANY)
    assert logs(app)["count"] == 200
    assert logs(app, limit=10_000)["count"] == 500
    assert logs(app, limit=0)["count"] == 1


def test_filters(run):
    app = run(MANY)
    page = logs(app, level="error", logger="app", limit=500)
    assert {(entry["level"], entry["logger"]) for entry in page["entries"]} == {("ERROR", "app.db"), ("CRITICAL", "app.db")}
    assert page["count"] == 200 and not page["has_older"]
    done = app.ask("logs", level="LOUD")
    assert (done["refused"], done["hint"]) == (
        "there is no log level 'LOUD'",
        "the levels are NOTSET, DEBUG, INFO, WARN, WARNING, ERROR, CRITICAL, FATAL",
    )


def test_the_ring_keeps_the_last_and_says_what_is_gone(run):
    app = run(QUIET + "for i in range(6000): logging.info('x')")
    assert logs(app, limit=1, after_id=10)["first_id"] == 1001
    assert "990 records after 10 are gone: the last 5000 are kept, and 4 MB of them at most" in logs(app, after_id=10)["notes"]


def test_the_ring_is_bounded_in_bytes(run):
    app = run(
        QUIET + "for i in range(5000): logging.info('%d %s', i, '\N{WINKING FACE}' * 8000)\napp.registered = {'ring': calls._logs._ring}"
    )
    held = app.execute("""
        import sys
        seen = {}
        def weigh(value):
            if id(value) not in seen:
                seen[id(value)] = value
                return sys.getsizeof(value) + (sum(map(weigh, value)) if isinstance(value, (tuple, list)) else 0)
            return 0
        len(ring), sum(map(weigh, ring)), ring[-1].id
    """)
    count, size, newest = eval(held.result)
    assert 100 < count < 140 and newest == 5000
    assert 3 << 20 < size <= 4 << 20


def test_messages_are_whole(run):
    app = run(
        QUIET
        + """
import datetime, decimal, enum, pathlib
log = logging.getLogger("app")
thing = [1]
class Number(int): pass
class Text(str): pass
class Color(enum.IntEnum): RED = 1
log.info("plain %s %d %.2f%%", "a", 1, 2.5)
log.info("%s %r", thing, {"a": (1,)}); thing.append(2)
log.info("%(a)s %(b)d", {"a": 1, "b": 2, "c": thing})
log.info("100%")
log.info("%s", {"a": 1})
log.info("%d %s %r", Number(3), Text("text"), Text("text"))
log.info("%s %s", datetime.date(2026, 1, 2), pathlib.Path("/tmp"))
log.info("%s %s", decimal.Decimal("1.50"), datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc))
log.info("%s %r", ValueError("no"), KeyError("k"))
log.info("%s %s", OSError(2, "No such file", "x"), Color.RED)
log.info("too few %s %s", 1)
log.info("%s of %999999999d", "all", 1)
log.info("x" * 100_000)
log.info("%s", "y" * 100_000)
log.info("%d", 1 << 100_000)
def inner(): {}["key"]
def outer():
    try:
        inner()
    except KeyError as error:
        raise ValueError("bad") from error
try:
    outer()
except ValueError:
    log.exception("failed", stack_info=True)
"""
    )
    page = messages(logs(app))
    assert page[:6] == ["plain a 1 2.50%", "[1] {'a': (1,)}", "1 2", "100%", "{'a': 1}", "3 text 'text'"]
    assert page[6:9] == ["2026-01-02 /tmp", "1.50 2026-01-02 00:00:00+00:00", "no KeyError('k')"]
    assert page[9].startswith("[Errno 2] No such file: 'x' ") and "Color.RED" in page[9]
    assert page[10].startswith("'too few %s %s' % (1,) (which cannot be formatted")
    assert "a width in it is too large" in page[11]
    assert all(len(message) < 20_000 and "characters left out" in message for message in page[12:14])
    assert page[14] == "<an int of 100001 bits>"
    assert page[15].startswith("failed\nTraceback (most recent call last):\n")
    assert "KeyError: 'key'\n\nThe above exception was the direct cause of the following exception:\n\nTraceback" in page[15]
    assert "in outer\n" in page[15] and "ValueError: bad\nStack (most recent call last):" in page[15]


def test_a_traceback_has_its_lines_of_source(run, tmp_path):
    (tmp_path / "shop.py").write_text("def sell():\n    raise ValueError('sold out')\n")
    app = run(
        QUIET
        + f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import shop
try:
    shop.sell()
except ValueError:
    logging.exception("failed")
"""
    )
    assert messages(logs(app))[0].endswith("in sell\n    raise ValueError('sold out')\nValueError: sold out")


NOSY = """
asked = []
class Nosy:
    def __init__(self): self.name = "n"
    def __str__(self): asked.append("str"); return "text"
    __repr__ = __str__
    def __int__(self): asked.append("int"); return 7
    def __getattr__(self, name): asked.append(name); raise AttributeError(name)
    def __bool__(self): asked.append("bool"); return True
    def __len__(self): asked.append("len"); return 1
    def __hash__(self): asked.append("hash"); return 1
    def __eq__(self, other): asked.append("eq"); return True
class NosyError(Exception):
    def __str__(self): asked.append("str"); return "text"
class NosyDict(dict):
    def __getitem__(self, key): asked.append("getitem"); return 1
    def __contains__(self, key): asked.append("contains"); return True
class NosyRecord(logging.LogRecord):
    def getMessage(self): asked.append("getMessage"); return "text"
"""


def test_no_code_of_the_app_runs_and_none_of_its_objects_is_kept(run):
    app = run(
        QUIET
        + NOSY
        + """
import gc, weakref
log = logging.getLogger("app")
nosy = Nosy()
log.info("%s %d", nosy, nosy)
log.info(nosy)
log.info("%s %s", [nosy], {"k": nosy})
log.info("%(a)s", NosyDict(a=3))
log.info("%s %r", NosyError("why"), NosyError(nosy))
try:
    raise NosyError("why")
except NosyError:
    log.exception("failed")
logging.setLogRecordFactory(NosyRecord)
calls._logs.install()
log.info("own %s", nosy)
gone = weakref.ref(nosy)
del nosy
gc.collect()
app.registered = {"asked": asked, "gone": gone}
"""
    )
    page = logs(app)
    assert messages(page)[:5] == [
        "<Nosy object> <Nosy object>",
        "<Nosy object>",
        "[<Nosy object>] {'k': <Nosy object>}",
        "3",
        "'why' NosyError(<Nosy object>)",
    ]
    assert messages(page)[5].endswith("NosyError: 'why'")
    assert messages(page)[6] == "own <Nosy object>"
    assert any("were not asked for their text" in note for note in page["notes"])
    assert app.execute("asked, gone()").result == "([], None)"


def test_the_app_logs_as_if_nobody_listened(run):
    app = run(
        """
        import logging, sys
        assert not logging.root.handlers
        logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
        log = logging.getLogger("a")
        class Bad:
            def __str__(self): raise ValueError
        logging.raiseExceptions = False
        log.info("not made")
        log.warning("shown %s", 1)
        log.warning("bad %s", Bad())
        print(logging.root.level, log.level, len(logging.root.handlers))
        """
    )
    assert messages(logs(app, limit=2))[0] == "shown 1"
    assert app.ended() == ("WARNING shown 1\n30 0 1\n", "")


def test_the_apps_own_factory_stays(run):
    app = run(
        QUIET
        + """
plain = logging.getLogRecordFactory()
def chained(*args, **kwargs):
    record = plain(*args, **kwargs)
    record.msg = "chained " + record.msg
    return record
def own(*args, **kwargs):
    record = logging.LogRecord(*args, **kwargs)
    record.msg = "own " + record.msg
    return record
def say(factory, text):
    if factory is not None:
        logging.setLogRecordFactory(factory)
    logging.info(text)
app.registered = {"say": say, "chained": chained, "own": own}
"""
    )
    app.execute("say(None, 'one'); say(chained, 'two')")
    assert messages(logs(app)) == ["one", "two"]
    app.execute("say(None, 'three')")
    assert messages(logs(app))[2:] == ["chained three"]
    logs(app)
    app.execute("say(own, 'lost')")
    logs(app)
    app.execute("say(None, 'four')")
    assert messages(logs(app))[3:] == ["own four"]


def test_a_factory_of_the_apps_that_chains_ours_outlives_us(run):
    app = run(
        QUIET
        + """
import threading
left = threading.Event()
ours = logging.getLogRecordFactory()
logging.setLogRecordFactory(lambda *args, **kwargs: ours(*args, **kwargs))
def leave():
    left.wait()
    calls.stop()
    logging.info("still %s", "fine")
    print(len(calls._logs._ring))
app.registered = {"left": left}
threading.Thread(target=leave).start()
"""
    )
    app.execute("left.set()")
    assert app.ended() == ("0\n", "")


# Waiting.


def test_waiting_ends_with_a_record_that_is_asked_for(run):
    app = run(QUIET + "log = logging.getLogger('app')\napp.registered = {'log': log, 'logging': logging}")
    number = app.begin("logs", level="ERROR", logger="app", wait_s=25)
    app.execute("log.info('not this'); logging.getLogger('other').error('nor this')")
    assert not app._done
    app.execute("log.error('this')")
    page = app.finish(number).json
    assert messages(page) == ["this"]
    # One that is there already is no reason to wait.
    assert messages(logs(app, level="ERROR", logger="app", wait_s=25)) == ["this"]
    number = app.begin("logs", after_id=page["next_after_id"], wait_s=25)
    app.execute("log.debug('next')")
    assert messages(app.finish(number).json) == ["next"]


def test_records_that_a_reader_does_not_wait_for_do_not_wake_it(run):
    app = run(QUIET)
    number = app.begin("logs", wait_s=30, logger="wanted")
    done = app.execute("""
        import logging, sys, time
        logs = sys.modules["_pylair.logs"].Logs
        looked, real = [], logs._entries
        while not logging.getLogRecordFactory().logs._waiting:
            time.sleep(0.001)
        logs._entries = lambda self: (looked.append(1), real(self))[1]
        for at in range(2000):
            logging.getLogger("other").warning("%d", at)
        logs._entries = real
        logging.getLogger("wanted.here").warning("that")
        len(looked)
    """)
    assert int(done.result) <= 1
    assert messages(app.finish(number).json) == ["that"]


def test_a_record_with_a_strange_time_is_readable(run):
    app = run(QUIET)
    app.execute("""
        import logging
        def strange(*args, **kwargs):
            record = logging.LogRecord(*args, **kwargs)
            record.created = "now"
            return record
        logging.getLogRecordFactory().next = strange
        logging.warning("first")
        logging.warning("second")
    """)
    assert messages(logs(app)) == ["first", "second"]


def test_waiting_ends_in_time_and_when_the_probe_leaves(run):
    app = run(QUIET + "import threading\nleft = threading.Event()\napp.registered = {'calls': calls}")
    assert logs(app, wait_s=0.05)["count"] == 0
    number = app.begin("logs", wait_s=25)
    app.execute("import threading\nwhile not calls._logs._waiting: pass\nthreading.Thread(target=calls.stop).start()")
    assert app.finish(number).json["count"] == 0


def test_records_of_many_threads_are_all_there_once(run):
    app = run(
        QUIET
        + """
def work(who):
    for i in range(500): logging.info("%d %d", who, i)
threads = [threading.Thread(target=work, args=(who,)) for who in range(8)]
go = threading.Event()
def start():
    for thread in threads: thread.start()
app.registered = {"start": start, "threads": threads}
"""
    )
    app.execute("start()")
    seen, after = [], 1
    while len(seen) < 3999:
        page = logs(app, after_id=after, wait_s=5, limit=500)
        seen += ids(page)
        after = page["next_after_id"]
    assert seen == list(range(2, 4001))


# Levels.


@pytest.mark.parametrize(
    ("code", "fields", "words"),
    [
        ("", {"level": "DEBUG"}, "the root logger's level is WARNING, and no records below it are made"),
        ("logging.getLogger('a').setLevel(10)", {"level": "INFO"}, "but by loggers with a level of their own: a DEBUG"),
        (
            "logging.root.setLevel(10); logging.getLogger('a.b').setLevel(40)",
            {"level": "INFO"},
            "below which they make no records: a.b ERROR",
        ),
        ("logging.getLogger('a.b')", {"logger": "a", "level": "INFO"}, "effective levels, below which no records are made: a.b WARNING"),
        ("logging.disable(logging.ERROR)", {"level": "ERROR"}, "logging.disable(ERROR) is in force"),
        ("", {"logger": "nothing"}, "there is no logger 'nothing' yet; the root logger's level is WARNING"),
    ],
)
def test_levels_that_keep_records_from_being_made_are_named(run, code, fields, words):
    assert any(words in note for note in logs(run("import logging\n" + code), **fields)["notes"])


def test_levels_that_do_not_matter_are_not_named(run):
    assert logs(run("import logging"), level="WARNING")["notes"] == []
    assert logs(run(QUIET))["notes"] == []


def test_a_signal_handler_and_a_fork_may_log(run):
    app = run(
        QUIET
        + """
import os, signal
signal.signal(signal.SIGALRM, lambda *_: logging.info("from a handler"))
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
for i in range(5000): logging.info("work")
signal.setitimer(signal.ITIMER_REAL, 0)
pid = os.fork()
if pid == 0:
    calls.forked()
    logging.info("in the child")
    os._exit(0)
app.registered = {"status": os.waitpid(pid, 0)[1]}
"""
    )
    assert app.execute("status").result == "0"
    found = logs(app, limit=500, logger="root")
    assert ids(found) == list(range(found["first_id"], found["first_id"] + 500))
