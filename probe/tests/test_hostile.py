"""Cells that do to Python whatever they like: the worker answers, goes on, and can be rolled back.

The table was run by hand against 3.8 and 3.13 (see the checks below); the sweep replaces what the probe uses of the standard library.
"""

from __future__ import annotations

import json

import pytest
from host import Datagram, Frozen, Session

BOOM = '''
def boom(*a, **k): raise SystemExit("boom")
class Meta(type):
    __eq__ = __hash__ = __getattribute__ = __instancecheck__ = __subclasscheck__ = __repr__ = __str__ = boom
class Evil(metaclass=Meta):
    __getattribute__ = __getattr__ = __dir__ = __len__ = __iter__ = __eq__ = __hash__ = __repr__ = __str__ = __bool__ = __contains__ = __format__ = boom
    __class__ = property(boom)
class Text(str):
    __len__ = __eq__ = __hash__ = __repr__ = __str__ = encode = startswith = __getitem__ = __format__ = __add__ = __contains__ = boom
class Number(int):
    __eq__ = __hash__ = __repr__ = __str__ = __index__ = __bool__ = __lt__ = __format__ = boom
class Odd(Exception):
    __str__ = __repr__ = boom
    __class__ = property(boom)
    __traceback__ = __cause__ = __context__ = __notes__ = args = __suppress_context__ = property(boom, boom)
    __getattribute__ = boom
    __hash__ = __eq__ = boom
'''
CELLS = {
 'setattrs': "import os, sys, time, json, builtins\nos.write = os.read = None; time.monotonic = time.perf_counter_ns = None; json.dumps = None; builtins.len = None",
 'stdout 1': "import sys; sys.stdout = 1; sys.stderr = 2",
 'stdout evil': BOOM + "import sys; sys.stdout = sys.stderr = sys.stdin = sys.__stdout__ = object.__new__(Evil)",
 'del stdout': "import sys; del sys.stdout, sys.stderr, sys.stdin, sys.__stdout__",
 'modules clear': "import sys; sys.modules.clear()",
 'modules None': "import sys; sys.modules = None",
 'modules del': "import sys; del sys.modules",
 'modules evil': BOOM+"import sys\nclass D(dict):\n    get = __getitem__ = __setitem__ = __contains__ = items = keys = __iter__ = boom\nsys.modules = D()",
 'builtins clear': "import builtins; builtins.__dict__.clear()",
 'builtins name': "__builtins__ = 1",
 'builtins del': "del __builtins__",
 'globals clear': "globals().clear()",
 'sys clear': "import sys; sys.__dict__.clear()",
 'os clear': "import os; os.__dict__.clear()",
 'gc': "import gc; gc.disable(); gc.set_threshold(1); gc.callbacks.append(None); gc.enable(); gc.collect()",
 'gc callbacks': BOOM+"import gc; gc.callbacks.append(boom); gc.set_threshold(1)",
 'recursion': "import sys\nfor n in range(5, 300):\n    try:\n        sys.setrecursionlimit(n)\n        break\n    except RecursionError: pass",
 'recursion deep': "import sys; sys.setrecursionlimit(10**6)\ndef f(n): return n and f(n-1)\nsys.setrecursionlimit(1000)\nf(10**5)",
 'recursion result': "a = []\nfor _ in range(100000): a = [a]\na",
 'settrace': BOOM+"import sys; sys.settrace(boom)",
 'settrace frames': BOOM+"import sys\nf = sys._getframe()\nwhile f: f.f_trace = boom; f = f.f_back\nsys.settrace(boom)",
 'settrace opcodes': BOOM+"import sys\nf = sys._getframe()\nwhile f: f.f_trace = boom; f.f_trace_opcodes = True; f = f.f_back\nsys.settrace(boom)",
 'settrace lasting': "import sys\ndef t(*a): return t\nsys.settrace(t)",
 'settrace raising keeps': "import sys\nn = 0\ndef t(*a):\n    global n\n    n += 1\n    if n > 3: raise KeyboardInterrupt\n    return t\nf = sys._getframe()\nwhile f: f.f_trace = t; f = f.f_back\nsys.settrace(t)",
 'setprofile': BOOM+"import sys; sys.setprofile(boom)",
 'setprofile lasting': "import sys\ndef t(*a): pass\nsys.setprofile(t)",
 'setprofile late': "import sys\nn = 0\ndef t(*a):\n    global n\n    n += 1\n    if n > 8: raise SystemExit\nsys.setprofile(t)",
 'threading trace': BOOM+"import threading; threading.settrace(boom); threading.setprofile(boom)",
 'monitoring': BOOM+"import sys\nm = getattr(sys, 'monitoring', None)\nif m:\n    m.use_tool_id(2, 'x')\n    for e in (m.events.PY_START, m.events.LINE, m.events.PY_RETURN, m.events.CALL): m.register_callback(2, e, boom)\n    m.set_events(2, m.events.PY_START | m.events.LINE | m.events.PY_RETURN | m.events.CALL)",
 'audit': BOOM+"import sys; sys.addaudithook(boom)",
 'audit exception': "import sys\ndef h(*a): raise RuntimeError('no')\nsys.addaudithook(h)",
 'audit later': "import sys\nn = 0\ndef h(*a):\n    global n\n    n += 1\n    if n > 2 and n % 2: raise RuntimeError('no')\nsys.addaudithook(h)",
 'audit not compile': "import sys\ndef h(event, a):\n    if event not in ('compile', 'exec'): raise RuntimeError('no')\nsys.addaudithook(h)",
 'signals': BOOM+"import signal\nfor n in range(1, 65):\n    try: signal.signal(n, boom)\n    except (OSError, ValueError): pass",
 'signals ignored': "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass",
 'wakeup': "import signal, os; r, w = os.pipe(); os.set_blocking(w, False); signal.set_wakeup_fd(w)",
 'itimer': "import signal\nsignal.signal(signal.SIGALRM, lambda *a: 1/0)\nsignal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)",
 'codecs': BOOM+"import codecs\ncodecs.register(boom)\nfor n in ('strict','ignore','replace','backslashreplace','surrogateescape','surrogatepass','xmlcharrefreplace','namereplace'):\n    codecs.register_error(n, boom)",
 'codecs result': BOOM+"import codecs\nfor n in ('strict','replace','backslashreplace'):\n    codecs.register_error(n, boom)\nprint('\\udc80'); '\\udc80'",
 'excepthook': BOOM+"import sys, threading; sys.excepthook = sys.unraisablehook = sys.displayhook = sys.breakpointhook = threading.excepthook = boom; 1/0",
 'hooks deleted': "import sys; del sys.excepthook, sys.unraisablehook, sys.displayhook; 1/0",
 'traceback': "import traceback, linecache\nfor m in (traceback, linecache):\n    for n in list(vars(m)): setattr(m, n, None)\n1/0",
 'linecache cache': "import linecache; linecache.cache = None; 1/0",
 'linecache evil': BOOM+"import linecache\nclass D(dict):\n    get = __getitem__ = __setitem__ = __contains__ = items = keys = __iter__ = pop = boom\nlinecache.cache = D(); 1/0",
 'warnings': BOOM+"import warnings; warnings.filters = None; warnings.warn = warnings.showwarning = boom",
 'warnings error': "import warnings; warnings.simplefilter('error')",
 'audit warnings': BOOM+"import warnings; warnings.filters = object.__new__(Evil)",
 'result evil': BOOM+"object.__new__(Evil)",
 'result class': BOOM+"Evil",
 'result text': BOOM+"Text('abc')",
 'result number': BOOM+"Number(5)",
 'result repr text': BOOM+"class R:\n    def __repr__(self): return Text('abc')\nR()",
 'result repr int': "class R:\n    def __repr__(self): return 5\nR()",
 'result repr surrogate': "class R:\n    def __repr__(self): return '\\udc80' * 5\nR()",
 'result repr interrupt': "class R:\n    def __repr__(self): raise KeyboardInterrupt\nR()",
 'result repr recursion': "class R:\n    def __repr__(self): return repr(self)\nR()",
 'result repr generator': "class R:\n    def __repr__(self): raise GeneratorExit\nR()",
 'result html': BOOM+"class R:\n    def _repr_html_(self): return Text('x')\nR()",
 'result mime': BOOM+"class R:\n    def _repr_mimebundle_(self, **k): return {Text('text/html'): Text('x'), 5: 6, 'text/plain': Number(4)}\nR()",
 'result mime2': BOOM+"class D(dict):\n    get = __getitem__ = __contains__ = items = keys = __iter__ = pop = __len__ = boom\nclass R:\n    def _repr_mimebundle_(self, **k): return D(a=1)\nR()",
 'result png': BOOM+"class B(bytes):\n    __len__ = __getitem__ = startswith = __hash__ = boom\nclass R:\n    def _repr_png_(self): return B(b'\\x89PNG')\nR()",
 'display evil': BOOM+"display(object.__new__(Evil)); display(Text('x'), Number(5), Evil)",
 'print evil': BOOM+"print(Text('abc'))",
 'raise odd': BOOM+"raise BaseException.__new__(Odd)",
 'raise args': BOOM+"raise ValueError(object.__new__(Evil))",
 'raise args text': BOOM+"raise ValueError(Text('abc'))",
 'raise str': BOOM+"class E(Exception):\n    def __str__(self): return Text('abc')\nraise E",
 'raise str int': "class E(Exception):\n    def __str__(self): return 5\nraise E",
 'raise meta': BOOM+"class M(type):\n    __eq__ = __hash__ = __repr__ = __str__ = __instancecheck__ = __subclasscheck__ = boom\n    __name__ = __qualname__ = __module__ = property(boom)\nclass E(Exception, metaclass=M): pass\nraise E('x')",
 'raise module': BOOM+"class E(Exception): __module__ = object.__new__(Evil)\nraise E('x')",
 'raise qualname': BOOM+"class E(Exception): pass\nE.__qualname__ = Text('abc'); E.__module__ = Text('q')\nraise E('x')",
 'raise cycle': "a = ValueError(1); b = KeyError(2); a.__cause__ = b; b.__cause__ = a; a.__context__ = b; raise a",
 'raise self cycle': "a = ValueError(1); a.__context__ = a; a.__cause__ = a; raise a",
 'raise interrupt cycle': "a = KeyboardInterrupt(1); b = KeyboardInterrupt(2)\ntry:\n    raise a\nexcept BaseException: pass\na.__context__ = b; b.__context__ = a\nraise a",
 'raise long': "e = None\nfor n in range(20000):\n    x = ValueError(n); x.__cause__ = e; e = x\nraise e",
 'raise notes': BOOM+"e = ValueError(1); e.__notes__ = object.__new__(Evil); raise e",
 'raise notes list': BOOM+"e = ValueError(1); e.__notes__ = [object.__new__(Evil), 5, Text('x')]; raise e",
 'raise syntax': BOOM+"e = SyntaxError(Text('x')); e.filename = Text('<cell 1>'); e.lineno = Number(3); e.text = object.__new__(Evil); e.offset = Number(1); e.msg = object.__new__(Evil); raise e",
 'raise syntax sub': BOOM+"class S(SyntaxError):\n    filename = lineno = text = msg = offset = end_lineno = print_file_and_line = property(boom, boom)\nraise S('x')",
 'raise exit evil': BOOM+"raise SystemExit(object.__new__(Evil))",
 'raise exit number': BOOM+"raise SystemExit(Number(0))",
 'raise exit text': BOOM+"raise SystemExit(Text('abc'))",
 'raise exit sub': BOOM+"class X(SystemExit):\n    code = property(boom)\nraise X",
 'raise interrupt': "raise KeyboardInterrupt",
 'raise generator exit': "raise GeneratorExit",
 'raise stop': "raise StopIteration",
 'raise memory': "raise MemoryError",
 'raise recursion': "def f(): f()\nf()",
 'raise group': BOOM+"import builtins\nif hasattr(builtins, 'ExceptionGroup'):\n    class G(ExceptionGroup):\n        exceptions = property(boom)\n        def derive(self, e): boom()\n    raise G('g', [ValueError(object.__new__(Evil)), ExceptionGroup('h', [KeyError(1)])])",
 'raise deep group': "import builtins\nif hasattr(builtins, 'ExceptionGroup'):\n    e = ValueError(1)\n    for n in range(5000): e = ExceptionGroup('g', [e])\n    raise e",
 'raise traceback': "e = ValueError(1)\ntry: raise e\nexcept ValueError: pass\ntb = e.__traceback__\nraise e.with_traceback(tb)",
 'raise name error': BOOM+"e = NameError('x'); e.name = object.__new__(Evil); raise e",
 'raise name error 2': BOOM+"class N:\n    __dir__ = boom\n    def __getattr__(self, n): raise AttributeError(n, name=Text(n), obj=object.__new__(Evil)) if n[0] != '_' else AttributeError\nN().abc",
 'raise import error': BOOM+"e = ImportError('x'); e.name = object.__new__(Evil); e.path = Text('a'); raise e",
 'module not found': BOOM+"raise ModuleNotFoundError('x', name=Text('numpy'))",
 'os error': BOOM+"raise OSError(Number(2), Text('a'), Text('b'))",
 'unicode error': BOOM+"raise UnicodeDecodeError('utf-8', b'abc', 10**6, 10**7, 'x')",
 'names evil': BOOM+"globals()[Text('x')] = 1",
 'names evil keys': BOOM+"class K:\n    def __hash__(self): return 5\n    __eq__ = boom\nglobals()[K()] = 1; globals()[5] = 2; globals()[None] = 3; globals()[Text.__new__(Text, 'q') if 0 else 'ok'] = 4",
 'names key str': BOOM+"class K(str):\n    def __hash__(self): return str.__hash__(self)\n    __eq__ = startswith = __lt__ = __len__ = boom\nglobals()[K('kkk')] = 1; globals()[K('kk2')] = 1",
 'names many': "for n in range(20000): globals()[f'v{n}'] = n",
 'names order': BOOM+"class K(str):\n    hash = 0\n    def __hash__(self): return str.__hash__(self)\n    def __lt__(self, o): boom()\n    def __eq__(self, o): return str.__eq__(self, o)\nglobals()[K('zz')] = 1; globals()[K('yy')] = 1; aa = 5",
 'main class': BOOM+"import sys, types\nclass M(types.ModuleType):\n    __getattribute__ = __setattr__ = boom\nsys.modules['__main__'].__class__ = M",
 'builtins class': BOOM+"import builtins, types\nclass M(types.ModuleType):\n    __getattribute__ = __setattr__ = boom\nbuiltins.__class__ = M",
 'sys class': BOOM+"import sys, types\nclass M(types.ModuleType):\n    __getattribute__ = __setattr__ = boom\nsys.__class__ = M",
 'os class': BOOM+"import os, types\nclass M(types.ModuleType):\n    __getattribute__ = __setattr__ = boom\nos.__class__ = M",
 'meta path': BOOM+"import sys; sys.meta_path[:] = [object.__new__(Evil)]; sys.path_hooks[:] = [boom]; sys.path = None",
 'meta path none': "import sys; sys.meta_path = None; sys.path_importer_cache = None",
 'import': BOOM+"import builtins; builtins.__import__ = boom; builtins.__build_class__ = boom",
 'importlib': "import importlib._bootstrap as b, importlib._bootstrap_external as e\nfor m in (b, e):\n    for n in list(vars(m)):\n        if not n.startswith('__'): vars(m)[n] = None",
 'threads': "import threading\nfor n in list(vars(threading)):\n    if not n.startswith('__'): vars(threading)[n] = None",
 'thread running': "import _thread, time\nl = _thread.allocate_lock(); l.acquire()\n_thread.start_new_thread(l.acquire, ())",
 'excepthook thread': BOOM+"import _thread, sys\nsys.unraisablehook = boom\n_thread.start_new_thread(boom, ())",
 'atexit': BOOM+"import atexit; atexit.register(boom)",
 'at fork': BOOM+"import os; os.register_at_fork(before=boom, after_in_child=boom, after_in_parent=boom)",
 'del': BOOM+"class D:\n    __del__ = boom\nd = D(); del d; d = D()",
 'weakref': BOOM+"import weakref\nclass W: pass\nw = W(); r = weakref.ref(w, boom); del w",
 'asyncio': "import asyncio\nfor n in list(vars(asyncio)):\n    if not n.startswith('__'): vars(asyncio)[n] = None",
 'asyncio loop': "import asyncio\nawait asyncio.sleep(0)\nasyncio.get_running_loop().close()" ,
 'asyncio await': BOOM+"class A:\n    def __await__(self): boom()\nawait A()",
 'asyncio running': "import asyncio\nasyncio._set_running_loop(5)",
 'asyncio policy': BOOM+"import asyncio\nclass P:\n    __getattr__ = boom\ntry: asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy()); asyncio.events._event_loop_policy = P()\nexcept AttributeError: pass",
 'coroutine result': "async def f(): pass\nf()",
 'fds': "import os\nos.closerange(0, 3)",
 'fds all': "import os\nos.closerange(0, 50)",
 'cwd': "import os, tempfile\nd = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)",
 'umask env': "import os; os.environ.clear(); os.environ = None; os.umask(0o777)",
 'rlimit': "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))",
 'rlimit as': "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.getrlimit(resource.RLIMIT_AS)[1]))",
 'int digits': "import sys\nif hasattr(sys, 'set_int_max_str_digits'): sys.set_int_max_str_digits(640)\n10**5000",
 'switch': "import sys; sys.setswitchinterval(1e-9)",
 'type dict': "import ctypes\nclass X: pass\nX.__name__ = 'a\\x00b' if 0 else 'ab'; X.__qualname__ = '\\udc80'; X.__module__ = 5; X()",
 'code replace': "import sys\nf = sys._getframe()\nwhile f.f_back: f = f.f_back\nf.f_globals.clear() if 0 else None",
 'frame probe': "import sys\nf = sys._getframe(1)\nwhile f:\n    if 'pylair' in f.f_code.co_filename: f.f_globals.get('x')\n    f = f.f_back",
 'generator left': BOOM+"def g():\n    try: yield 1\n    finally: boom()\nh = g(); next(h); del h",
 'dict result': BOOM+"class D(dict):\n    __repr__ = __len__ = __iter__ = items = keys = boom\nD(a=1)",
 'list subclass': BOOM+"class L(list):\n    __repr__ = __len__ = __iter__ = __getitem__ = boom\nl = L([1])",
 'container': BOOM+"[object.__new__(Evil)]",
 'variables evil': BOOM+"e = object.__new__(Evil); t = Text('a'); n = Number(3); c = Evil",
 'kept evil': BOOM+"kept = object.__new__(Evil)",
 'bool': BOOM+"class B:\n    __bool__ = __len__ = boom\nB()",
 'file name': "exec(compile('def f(): 1/0', '\\udc80<cell 1>', 'exec')); f()",
 'huge repr': "class R:\n    def __repr__(self): return 'x' * (50 << 20)\nR()",
 'stdout closed': "import sys; sys.stdout.close(); sys.stdout.buffer.close(); sys.stdout.detach()",
 'print replaced': "import builtins; builtins.print = None; builtins.input = 5; builtins.display = None",
 'json float': "float.__repr__ if 0 else float('nan')",
 'pickle': "import pickle, copyreg\nfor m in (pickle, copyreg):\n    for n in list(vars(m)):\n        if not n.startswith('__'): vars(m)[n] = None",
 'sys trace del': "import sys\nfor n in ('settrace','gettrace','setprofile','getprofile','_getframe','exc_info','getrecursionlimit','_current_frames'):\n    delattr(sys, n)",
 'socket class': BOOM+"import socket\nfor n in dir(socket.socket):\n    try: setattr(socket.socket, n, None)\n    except Exception: pass",
 'str in ctypes': "import io\nio.open = None; io.TextIOWrapper = None",
 'enum': "import enum, signal\nsignal.Signals = signal.Handlers = signal.SIGINT = None; signal.signal = signal.pthread_sigmask = None",
}


# After these a later cell may raise: what they installed is called for it, or stands in its way.
SPOILED = {"audit", "audit exception", "audit later", "audit not compile", "monitoring", "setprofile late", "itimer", "builtins class"}
NO_COPY = {"thread running", "rlimit", "rlimit as"} | SPOILED

MODULES = (
    "abc _abc array ast asyncio atexit builtins codecs collections collections.abc contextlib copyreg ctypes dataclasses difflib enum errno "
    "faulthandler fcntl functools gc genericpath importlib importlib.machinery importlib.util inspect io itertools json json.encoder "
    "json.decoder keyword linecache marshal math operator os os.path pathlib pickle platform posix random re resource select selectors "
    "signal _signal site socket _socket stat string struct subprocess sys tempfile termios textwrap threading _thread time token tokenize "
    "traceback types typing warnings weakref"
).split()


@pytest.fixture
def bounded(session: Session) -> Session:
    """A session that cannot take the machine with it."""
    session.execute("import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))")
    session.execute("kept = [1, 2]")
    return session


def answers(session: Session, spoiled: bool) -> None:
    done = session.execute("1+1")
    assert done.get("result") == "2" or (spoiled and done["outcome"] in ("ok", "raised")), done
    assert spoiled or "refused" not in session.look("inspect")
    done = session.execute("1/0")
    assert done["outcome"] == "raised" or spoiled, done


def is_copied(session: Session) -> None:
    done = session.ask("checkpoint", checkpoint="c")
    assert done.get("made"), done
    frozen = Frozen("c", Datagram(session.control).descriptors[0])
    session.rollback(frozen)
    assert session.execute("1+1")["result"] == "2"
    frozen.drop()


@pytest.mark.parametrize("name", CELLS)
def test_a_worker_survives(bounded: Session, name: str) -> None:
    before = bounded.checkpoint("before")
    bounded.begin(CELLS[name])
    done, _ = bounded.finish()
    assert done["outcome"] in ("ok", "raised", "interrupted"), done
    answers(bounded, name in SPOILED)
    if name not in NO_COPY:
        is_copied(bounded)
    bounded.rollback(before)
    assert bounded.result("kept") == "[1, 2]"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_without_functions_is_no_loss_to_the_worker(bounded: Session, module: str) -> None:
    code = f"""
import {module}
import sys
names = vars(sys.modules[{module!r}])
names.update(dict.fromkeys([n for n, v in names.items() if callable(v) and not n.startswith("__")]))
"""
    assert bounded.execute(code)["outcome"] == "ok"
    answers(bounded, False)
    assert "kept" in json.dumps(bounded.look("inspect"))
    is_copied(bounded)
