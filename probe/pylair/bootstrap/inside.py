# What `pylair attach` runs inside a process that was never prepared, on the thread that happened to be there. It is kept short because that
# thread waits meanwhile: it takes the payload out of memory and leaves the rest to a thread of its own. `src/attach/statement.rs` fills in
# the placeholders and puts it into a namespace of its own, where nothing that it raises comes out.
import _thread
import posix
import sys


def load(payload):
    try:
        import json

        payload = json.loads(payload)
        loader = {"__name__": "_pylair.loader"}
        exec(compile(payload["sources"]["loader"], "<pylair/loader.py>", "exec"), loader)
        loader["run"](payload["sources"], payload["entry"], payload["config"])
    except BaseException as error:
        tell(error)


def tell(error):
    try:
        import json

        text = "%s: %s" % (type(error).__name__, error)
        path = "@ERRORS@"
        try:
            posix.mkdir(path.rpartition("/")[0], 0o700)
        except OSError:
            pass
        file = posix.open(path + "~", posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC | posix.O_NOFOLLOW | posix.O_CLOEXEC, 0o600)
        try:
            posix.write(file, json.dumps({"error": text[:4000]}).encode())
        finally:
            posix.close(file)
        posix.rename(path + "~", path)
    except BaseException:
        pass


def begin():
    file = posix.open("@PATH@", posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        payload = posix.pread(file, int("@LENGTH@"), int("@OFFSET@"))
    finally:
        posix.close(file)
    if "@CLAIM@":
        posix.unlink("@PATH@")
    try:
        # gevent's own threads are none.
        start = sys.modules["gevent.monkey"].get_original("_thread", "start_new_thread")
    except Exception:
        start = _thread.start_new_thread
    start(load, (payload,))


try:
    # The first thread that imports this is taken for the main thread, so it must not be one of ours.
    import threading  # noqa: F401

    begin()
except FileNotFoundError:
    # It was taken back.
    pass
except KeyboardInterrupt:
    # Meant for the program: it gets it when this has ended.
    _thread.start_new_thread(_thread.interrupt_main, ())
except BaseException as error:
    tell(error)
