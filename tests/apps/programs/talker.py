"""Says what it can about itself on both streams, logs before and after it has set that up, and ends as it is told."""

import logging
import os
import signal
import sys
import threading
import warnings

early = logging.getLogger("early")
early.warning("before anything was set up")
early.info("not shown")
print("path", [entry for entry in sys.path])
print("arguments", sys.argv, "flags", sys.flags)
print("main", sorted(name for name in globals() if not name.startswith("__")))
print("levels", logging.root.level, logging.root.handlers, logging.getLoggerClass(), logging.raiseExceptions)
print("handlers", [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)])
print("hooks", sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__, sys.gettrace(), sys.getprofile())
print("streams", sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdout.line_buffering)
print("threads", threading.active_count(), threading.current_thread() is threading.main_thread())
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s %(threadName)s %(lineno)d")
logging.info("after it was set up")
logging.getLogger("later").debug("not shown either")
warnings.warn("old", DeprecationWarning, stacklevel=1)
ending = sys.argv[1]
sys.stdout.flush()
if ending == "raise":
    raise LookupError("the end")
if ending.startswith("signal"):
    print("ready", flush=True)
    if ending == "signal-self":
        os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
if ending == "quick":
    os._exit(5)
sys.exit(int(ending))
