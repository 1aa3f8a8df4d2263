"""What programs have open, and what is tried with it in a copy of them."""

from __future__ import annotations

from typing import NamedTuple


class Thing(NamedTuple):
    """Something that a test has open when it fails."""

    # In the test, which ends with a failure.
    begin: str
    # What code in the copy has to answer.
    reads: dict[str, str]
    # What is refused in the copy, with a sentence.
    refused: list[str]
    # What the copy may do to itself.
    harmless: list[str]
    # What the original does when all that was tried.
    go_on: str


def sqlite(mode: str, after: str = "") -> Thing:
    begin = f"""
        import sqlite3
        con = sqlite3.connect("dev.db", isolation_level=None, timeout=0.2)
        con.execute("pragma journal_mode={mode}")
        con.execute("begin"); con.execute("create table item(a)")
        con.executemany("insert into item values(?)", [(n,) for n in range(501)]); con.execute("commit")
        {after or "pass"}
    """
    writes = [
        "create table zz(a)",
        "insert into item values(9)",
        "delete from item",
        "drop table item",
        "update item set a = 0",
        "vacuum",
        "begin immediate; insert into item values(1); commit",
    ]
    refused = [f"con.executescript({sql!r})" for sql in writes]
    refused += ["sqlite3.connect('dev.db').execute('create table y(a)')", "sqlite3.connect('new.db').execute('create table y(a)')"]
    refused += ["con.execute('attach ? as other', ['other.db']).connection.execute('create table other.t(a)')"]
    return Thing(
        begin,
        {"con.execute('select count(*), sum(a) from item').fetchall()": "[(501, 125250)]"},
        refused,
        ["con.execute('begin'); con.execute('select * from item').fetchone()", "con.execute('select a from item').fetchone()"],
        """
        con.execute("insert into item values(1000)")
        assert con.execute("select count(*) from item").fetchone() == (502,)
        assert con.execute("pragma integrity_check").fetchall() == [("ok",)]
        con.close()
        """,
    )


# A program that says when it has the lock, and keeps it.
HOLDS_A_LOCK = (
    "subprocess.Popen([sys.executable, '-c', 'import fcntl, time\\nfile = open(\"free\")\\nfcntl.flock(file, fcntl.LOCK_SH)\\n"
    "print(flush=True)\\ntime.sleep(600)'], stdout=subprocess.PIPE)"
)

OPEN_FILES = """
    with open("lines.txt", "w") as file: file.write("one\\ntwo\\nthree\\n")
    reading = open("lines.txt"); reading.readline()
    writing = open("w.txt", "w"); writing.write("flushed,"); writing.flush(); writing.write("buffered")
    appending = open("a.txt", "a"); appending.write("first\\n"); appending.flush()
    both = open("lines.txt", "r+"); both.readline()
    new = open("x.bin", "xb"); new.write(b"123"); new.flush()
    raw = open("raw.bin", "w+b", buffering=0); raw.write(b"raw data"); raw.seek(4)
    fd = os.open("fd.bin", os.O_RDWR | os.O_CREAT); os.write(fd, b"by number")
    directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    listing = os.scandir("."); next(listing)
    import tempfile
    unnamed = tempfile.TemporaryFile(); unnamed.write(b"nameless"); unnamed.flush()
"""

THINGS = {
    "sqlite_rollback": sqlite("delete"),
    "sqlite_wal": sqlite("wal"),
    "sqlite_truncate": sqlite("truncate"),
    "sqlite_persist": sqlite("persist"),
    "sqlite_attached": sqlite("delete", "con.execute('attach ? as more', ['more.db']); con.execute('create table more.t(a)')"),
    "sqlite_in_a_transaction": Thing(
        """
        import sqlite3
        con = sqlite3.connect("dev.db", isolation_level=None)
        con.execute("create table item(a)")
        con.execute("begin")
        con.execute("insert into item values(7)")
        """,
        {"con.execute('select a from item').fetchall()": "[(7,)]"},
        ["con.execute('commit')", "con.execute('insert into item values(8)'); con.execute('commit')"],
        ["con.close()"],
        """
        con.execute("commit")
        con.close()
        assert sqlite3.connect("dev.db").execute("select a from item").fetchall() == [(7,)]
        """,
    ),
    "dbm": Thing(
        """
        import dbm.dumb, shelve
        table = dbm.dumb.open("table", "c"); table["a"] = "1"; table.sync()
        shelf = shelve.Shelf(dbm.dumb.open("shelf", "c")); shelf["list"] = [1, 2]; shelf.sync()
        """,
        {"table['a'], shelf['list']": "(b'1', [1, 2])"},
        ["table['b'] = '2'; table.sync()", "shelf['list'] = []; shelf.sync()"],
        ["dbm.dumb.open('table', 'n')"],
        """
        table["b"] = "2"; table.close()
        shelf["more"] = 3; shelf.close()
        assert dict(dbm.dumb.open("table").items()) == {b"a": b"1", b"b": b"2"}
        """,
    ),
    "files": Thing(
        OPEN_FILES,
        {
            "reading.read()": "'two\\nthree\\n'",
            "raw.read()": "b'data'",
            "os.pread(fd, 100, 0)": "b'by number'",
            "unnamed.seek(0), unnamed.read()": "(0, b'nameless')",
            "len(list(listing)) > 3": "True",
            "open('w.txt').read()": "'flushed,'",
            "sorted(os.listdir(directory))[0]": "'a.txt'",
        },
        [
            "writing.write('x'); writing.flush()",
            "writing.truncate(0)",
            "appending.write('x'); appending.close()",
            "both.write('x'); both.flush()",
            "new.write(b'x'); new.flush()",
            "raw.write(b'x')",
            "os.write(fd, b'x')",
            "os.ftruncate(fd, 0)",
            "os.truncate('raw.bin', 0)",
            "open('lines.txt', 'w')",
            "open('lines.txt', 'a')",
            "open('lines.txt', 'r+')",
            "open('other.txt', 'x')",
            "os.unlink('lines.txt')",
            "os.unlink('lines.txt', dir_fd=directory)",
            "os.rename('lines.txt', 'elsewhere.txt')",
            "os.link('lines.txt', 'linked.txt')",
            "os.symlink('lines.txt', 'linked.txt')",
            "os.mkdir('made')",
            "os.rmdir('empty')",
            "os.mkfifo('fifo')",
            "os.mknod('node')",
            "os.chmod('lines.txt', 0o777)",
            "os.fchmod(fd, 0o777)",
            "os.chmod('lines.txt', 0o777, dir_fd=directory)",
            "os.chown('lines.txt', os.getuid(), os.getgid())",
            "os.utime('lines.txt', (0, 0))",
            "os.setxattr('lines.txt', 'user.a', b'1')",
            # Not to be dumped, and kept from growing: flags of a file, through a descriptor that only reads.
            "import fcntl, struct; fcntl.ioctl(reading.fileno(), 0x40086602, struct.pack('l', 0x40))",
            "import fcntl; fcntl.ioctl(reading.fileno(), 0x401C5820, bytes(28))",
            "import shutil; shutil.rmtree('empty')",
            "open(f'/proc/self/fd/{fd}', 'wb')",
            "open(f'/proc/{os.getpid()}/cwd/lines.txt', 'w')",
            "import subprocess; subprocess.run([sys.executable, '-c', 'open(\"lines.txt\", \"w\")'], check=True)",
        ],
        [
            "unnamed.close(), reading.close()",
            "import tempfile; open(tempfile.mkdtemp() + '/mine.txt', 'w').write('mine')",
            "import subprocess; subprocess.run(['true'], stdout=subprocess.DEVNULL, check=True)",
            "os.nice(1), os.sched_setaffinity(0, os.sched_getaffinity(0))",
            "import resource; resource.setrlimit(resource.RLIMIT_CPU, resource.getrlimit(resource.RLIMIT_CPU))",
            "os.close(fd)",
        ],
        """
        assert reading.readline() == "two\\n"
        writing.close(); appending.write("second\\n"); appending.close()
        assert both.readline() == "two\\n"
        new.write(b"45"); new.close()
        raw.write(b"DATA"); os.write(fd, b"!")
        assert open("w.txt").read() == "flushed,buffered"
        assert open("a.txt").read() == "first\\nsecond\\n"
        assert open("x.bin", "rb").read() == b"12345"
        assert open("raw.bin", "rb").read() == b"raw DATA"
        assert open("fd.bin", "rb").read() == b"by number!"
        assert len(list(listing)) > 3
        """,
    ),
    "mappings": Thing(
        """
        import mmap, multiprocessing, struct
        with open("mapped.bin", "wb") as file: file.write(b"0123456789" * 1000)
        file = open("mapped.bin", "r+b")
        mapped = mmap.mmap(file.fileno(), 0)
        with open("gone.bin", "w+b") as deleted:
            deleted.write(b"gone" * 1024); deleted.flush()
            removed = mmap.mmap(deleted.fileno(), 0)
        os.unlink("gone.bin")
        anonymous = mmap.mmap(-1, 10000); anonymous[:4] = b"anon"
        reading = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        lock, number = multiprocessing.Lock(), multiprocessing.Value("i", 5)
        """,
        {
            "mapped[:10], len(mapped)": "(b'0123456789', 10000)",
            "removed[:8], anonymous[:4], reading[5:8]": "(b'gonegone', b'anon', b'567')",
            "number.value, lock.acquire(block=False)": "(5, True)",
        },
        ["mapped.resize(5)", "file.write(b'x'); file.flush()"],
        [
            "mapped[:4] = b'XXXX'; mapped.flush(); mapped[:5]",
            "removed[:4] = b'XXXX'; anonymous[:4] = b'XXXX'",
            "number.value = 6; lock.acquire(block=False)",
            "mapped.close()",
        ],
        """
        assert (mapped[:4], removed[:4], anonymous[:4], number.value) == (b"0123", b"gone", b"anon", 5)
        assert lock.acquire(timeout=20)
        mapped[:2] = b"AB"; mapped.flush()
        assert open("mapped.bin", "rb").read(4) == b"AB23"
        """,
    ),
    # Files and memory that no name leads to, and so no wall stands before.
    "memory_without_a_name": Thing(
        """
        import mmap
        fd = os.memfd_create("file"); os.write(fd, b"original"); again = os.dup(fd)
        mapped = mmap.mmap(fd, 8)
        closed = os.memfd_create("closed"); os.write(closed, b"original"); unreachable = mmap.mmap(closed, 8); os.close(closed)
        anonymous = mmap.mmap(-1, 5000); anonymous[:8] = b"original"
        large = os.memfd_create("large"); os.ftruncate(large, 3 << 24); os.pwrite(large, b"end", (3 << 24) - 3)
        def write_all():
            with open("/proc/self/maps") as maps:
                names = ["/proc/self/map_files/" + line.split()[0] for line in maps if "/memfd:" in line or "/dev/zero" in line]
            for name in [f"/proc/self/fd/{fd}", f"/proc/self/fd/{again}", f"/proc/self/fd/{large}", *names]:
                try:
                    with open(name, "r+b", buffering=0) as file: file.write(b"CHANGED!")
                except OSError:
                    pass
        """,
        {
            "os.pread(fd, 9, 0), os.lseek(again, 0, os.SEEK_CUR), mapped[:8], unreachable[:8], anonymous[:8]": "(b'original', 8, "
            "b'original', b'original', b'original')",
            "os.fstat(large).st_size, os.pread(large, 5, (3 << 24) - 3)": "(50331648, b'end')",
        },
        ["os.write(fd, b'x')", "os.ftruncate(again, 0)"],
        ["write_all()", "anonymous[:8] = unreachable[:8] = mapped[:8] = b'CHANGED!'"],
        """
        assert os.pread(fd, 9, 0) == mapped[:8] == unreachable[:8] == anonymous[:8] == b"original"
        assert os.pread(large, 8, 0) == bytes(8)
        os.pwrite(fd, b"goes on!", 0); assert mapped[:8] == b"goes on!"
        """,
    ),
    "shared_memory": Thing(
        """
        from multiprocessing import shared_memory
        memory = shared_memory.SharedMemory(create=True, size=5000)
        memory.buf[:4] = b"seen"
        """,
        {"bytes(memory.buf[:4])": "b'seen'"},
        ["memory.unlink()", "shared_memory.SharedMemory(create=True, size=10)"],
        ["memory.buf[:4] = b'XXXX'", "memory.close()"],
        """
        again = shared_memory.SharedMemory(name=memory.name)
        assert bytes(again.buf[:4]) == bytes(memory.buf[:4]) == b"seen"
        again.close(); memory.close(); memory.unlink()
        """,
    ),
    "connections": Thing(
        """
        import resource, signal, socket, subprocess, time
        listener = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(listener.getsockname()); server, _ = listener.accept()
        one, other = socket.socketpair()
        one.send(b"waiting")
        reader, writer = os.pipe()
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); datagrams.bind(("127.0.0.1", 0))
        path = socket.socket(socket.AF_UNIX); path.bind("socket"); path.listen()
        letters = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); letters.bind("letters")
        seen = []
        signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
        original = os.getpid()
        """,
        {"other.recv(10)": "b''", "server.recv(10)": "b''", "os.read(reader, 1)": "b''"},
        [
            "client.send(b'x')",
            "os.write(writer, b'x')",
            "child.stdin.write(b'x'); child.stdin.flush()",
            "socket.create_connection(('127.0.0.1', port))",
            "socket.create_connection(('localhost', port))",
            "socket.socket(socket.AF_UNIX).connect('socket')",
            "socket.socket(socket.AF_UNIX).bind('\\0pylair-test-of-names')",
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
            "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', 'socket')",
            "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, 'letters')",
            "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendmsg([b'x'], [], 0, 'letters')",
            "socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)[0].sendmsg([b'x'], [], 0, 'letters')",
            "os.kill(original, signal.SIGUSR1)",
            "os.kill(original, signal.SIGKILL)",
            "os.kill(child.pid, signal.SIGKILL)",
            "open(f'/proc/{original}/mem', 'r+b')",
            "resource.prlimit(original, resource.RLIMIT_CPU, (1000, 1000))",
            "resource.prlimit(child.pid, resource.RLIMIT_CPU, (1000, 1000))",
            "os.setpriority(os.PRIO_PROCESS, original, 15)",
            "os.setpriority(os.PRIO_USER, 0, os.getpriority(os.PRIO_PROCESS, 0))",
            "os.sched_setaffinity(original, {min(os.sched_getaffinity(0))})",
            "os.sched_setscheduler(original, os.SCHED_BATCH, os.sched_param(0))",
            "time.clock_settime(time.CLOCK_REALTIME, time.time())",
            "socket.sethostname(socket.gethostname())",
        ],
        [
            "left, right = socket.socketpair(); left.send(b'x'); assert right.recv(10) == b'x'",
            "listener.close(), server.close(), os.close(writer)",
        ],
        """
        client.send(b"hello"); assert server.recv(10) == b"hello"
        assert other.recv(100) == b"waiting"
        os.write(writer, b"y"); assert os.read(reader, 10) == b"y"
        child.stdin.write(b"over\\n"); child.stdin.close(); assert child.stdout.read() == b"over\\n"
        assert child.wait(20) == 0 and not seen
        datagrams.setblocking(False)
        with pytest.raises(BlockingIOError): datagrams.recv(10)
        path.setblocking(False)
        with pytest.raises(BlockingIOError): path.accept()
        letters.setblocking(False)
        with pytest.raises(BlockingIOError): letters.recv(10)
        """,
    ),
    # What root's rights reach through a descriptor that only reads, or through none.
    "machine": Thing(
        """
        import ctypes, fcntl, socket, struct
        libc = ctypes.CDLL(None, use_errno=True)
        def checked(result):
            if result < 0:
                raise OSError(ctypes.get_errno(), "refused")
            os.close(result)
        def set_flags(name):
            with socket.socket(socket.AF_UNIX) as any_socket:
                request = fcntl.ioctl(any_socket, 0x8913, struct.pack("16sh14x", name, 0))
                fcntl.ioctl(any_socket, 0x8914, request)
        relatime = ctypes.create_string_buffer(struct.pack("QQQQ", 0, 0, 0, 0))
        """,
        {},
        [
            "checked(libc.fanotify_init(4, 0))",
            "checked(libc.vhangup())",
            "set_flags(b'lo')",
            "checked(libc.syscall(467, -100, b'/', 0, relatime, ctypes.c_size_t(32)))",
            "checked(libc.syscall(442, -100, b'/', 0, relatime, ctypes.c_size_t(32)))",
        ],
        [],
        "",
    ),
    "locks": Thing(
        """
        import fcntl, struct, subprocess, sys
        with open("leased", "w") as file: file.write("text")
        flocked = open("flock", "w"); fcntl.flock(flocked, fcntl.LOCK_EX)
        locked = open("lockf", "w"); fcntl.lockf(locked, fcntl.LOCK_EX)
        free = open("free", "w+")
        """,
        {},
        ["fcntl.lockf(locked, fcntl.LOCK_EX)", "fcntl.fcntl(open('leased'), fcntl.F_SETLEASE, fcntl.F_RDLCK)"],
        [
            "with pytest.raises(BlockingIOError): fcntl.flock(flocked, fcntl.LOCK_EX | fcntl.LOCK_NB)",
            "fcntl.flock(flocked, fcntl.LOCK_UN); fcntl.lockf(locked, fcntl.LOCK_UN)",
            "flocked.close(), locked.close()",
            "fcntl.flock(free, fcntl.LOCK_EX); fcntl.lockf(free, fcntl.LOCK_SH)",
            "fcntl.fcntl(free, 37, struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, 0, 0, 0))",
            f"held = {HOLDS_A_LOCK}; held.stdout.readline()",
            f"kept = {HOLDS_A_LOCK.replace('Popen(', 'Popen(start_new_session=True, args=')}; kept.stdout.readline()",
        ],
        """
        import subprocess, sys
        code = "import fcntl, sys; fcntl.{0}(open('{0}', 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        for name in ("flock", "lockf"):
            assert subprocess.run([sys.executable, "-c", code.format(name)], stderr=subprocess.DEVNULL).returncode
        # A program that is killed gives up its lock a moment later.
        import signal
        signal.alarm(60)
        fcntl.flock(free, fcntl.LOCK_EX); fcntl.lockf(free, fcntl.LOCK_EX | fcntl.LOCK_NB)
        signal.alarm(0)
        open("leased", "w").close()
        """,
    ),
}
