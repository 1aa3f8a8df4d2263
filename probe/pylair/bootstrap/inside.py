# What `pylair attach` runs inside a process that was never prepared, on the thread that happened to be there. It is kept short because that
# thread waits meanwhile: it takes the payload out of memory and leaves the rest to a thread of its own, which begins with `arrive.py`.
# `crates/attach/src/statement.rs` fills in the placeholders and puts it into a namespace of its own, where nothing that it
# raises comes out.
import _thread
import posix
import sys

try:
    if "threading" not in sys.modules:
        from _frozen_importlib import _find_spec

        library = (getattr(sys.modules.get("encodings"), "__file__", None) or "").rpartition("/")[0].rpartition("/")[0]
        names = "threading _weakrefset types functools collections keyword operator heapq reprlib".split()
        specs = [_find_spec(name, None) for name in names if name not in sys.modules]
        files = [str(spec.origin) for spec in specs if spec is not None]
        # A file of the program's own by one of these names would be run. `arrive.py` finds it and says so.
        if not library or all(not file.endswith(".py") or file.startswith(library + "/") for file in files):
            # The first thread that imports this is taken for the main thread, so it must not be one of ours.
            import threading  # noqa: F401

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
    payload = payload.partition(b"\0")
    start(exec, (payload[0], {"payload": payload[2]}))
except FileNotFoundError as error:
    # A file that is not there was taken back; the memory of this process is always there, unless `/proc` is not.
    if not "@CLAIM@":
        exec("@TELL@", {"error": error, "kind": "no_proc"})
except KeyboardInterrupt:
    # Meant for the program: it gets it when this has ended.
    _thread.start_new_thread(_thread.interrupt_main, ())
except BaseException as error:
    exec("@TELL@", {"error": error, "kind": ""})
