"""Attempts to get out of a session, by name. Run inside sessions by tests/it/escape.rs; each has to fail in a sandbox.

An attempt succeeds by returning, and fails by raising. Each is also made without a sandbox, where it has to succeed, so that it is known
to be a real one, `unless` that would do harm or mean nothing; `root` are those that only root can make anyway. Each runs in a child of
its own.
"""

import ctypes
import json
import mmap
import os
import resource
import select
import signal
import socket
import stat
import subprocess
import sys
import time

ATTEMPTS = {}
KINDS = {}
PATIENCE = 60
libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {
    "x86_64": dict(
        ptrace=101,
        syslog=103,
        personality=135,
        modify_ldt=154,
        acct=163,
        settimeofday=164,
        mount=165,
        swapon=167,
        reboot=169,
        iopl=172,
        init_module=175,
        quotactl=179,
        clock_settime=227,
        kexec_load=246,
        add_key=248,
        keyctl=250,
        unshare=272,
        perf_event_open=298,
        fanotify_init=300,
        name_to_handle_at=303,
        open_by_handle_at=304,
        setns=308,
        process_vm_readv=310,
        kcmp=312,
        bpf=321,
        userfaultfd=323,
        io_uring_setup=425,
        open_tree=428,
        fsopen=430,
        clone3=435,
        pidfd_getfd=438,
        clone=56,
        memfd_create=319,
        shmget=29,
        msgget=68,
        semget=64,
    ),
}.get(os.uname().machine, {})


def attempt(unless=None, root=False):
    def register(function):
        ATTEMPTS[function.__name__] = (function, unless, root)
        KINDS[function.__name__] = kind
        return function

    return register


def call(name, *arguments):
    """A system call; raises what it fails with."""
    if name not in NUMBERS:
        raise OSError(38, "not known here")
    wide = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    result = libc.syscall(NUMBERS[name], *wide)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def reach(name, *arguments):
    """A system call with arguments that mean nothing: it is enough that the kernel looks at them."""
    try:
        call(name, *arguments)
    except OSError as error:
        if error.errno in (1, 38):
            raise


def read(path):
    with open(path, "rb") as file:
        assert file.read(1)


# Reading what is outside

kind = "file"


@attempt()
def read_a_file_outside(at):
    read(at["secret"])


@attempt()
def stat_a_file_outside(at):
    os.stat(at["secret"])


@attempt()
def list_the_directory_of_others(at):
    os.listdir(at["outside"])


@attempt()
def read_the_token(at):
    read(at["data"] + "/token")


@attempt()
def read_the_journal(at):
    read(at["data"] + "/journal.db")


@attempt()
def list_the_daemons_data(at):
    assert "journal.db" in os.listdir(at["data"])


@attempt()
def list_the_workspaces_of_others(at):
    assert len(os.listdir(at["data"] + "/workspaces")) >= 0


@attempt()
def list_the_daemons_runtime(at):
    os.listdir(at["runtime"])


@attempt()
def read_through_a_symlink(at):
    os.symlink(at["secret"], "link-to-secret")
    read("link-to-secret")


@attempt()
def list_through_a_symlink_to_the_root(at):
    os.symlink("/", "link-to-root")
    os.stat("link-to-root" + at["secret"])


@attempt()
def climb_out_with_dots(at):
    read("../" * 40 + at["secret"].lstrip("/"))


@attempt()
def read_through_the_root_of_this_process(at):
    read("/proc/self/root" + at["secret"])


@attempt(unless="the first process may be closed to us without a sandbox too")
def read_through_the_root_of_the_first_process(at):
    read("/proc/1/root" + at["secret"])


@attempt()
def read_through_the_directory_of_the_daemon(at):
    os.listdir(f"/proc/{at['pid']}/cwd/")


@attempt()
def read_through_the_root_of_the_daemon(at):
    read(f"/proc/{at['pid']}/root" + at["secret"])


@attempt()
def read_the_environment_of_the_daemon(at):
    read(f"/proc/{at['pid']}/environ")


@attempt()
def open_the_memory_of_the_daemon(at):
    os.close(os.open(f"/proc/{at['pid']}/mem", os.O_RDONLY))


@attempt()
def read_the_maps_of_the_daemon(at):
    read(f"/proc/{at['pid']}/maps")


@attempt()
def list_the_descriptors_of_the_daemon(at):
    os.listdir(f"/proc/{at['pid']}/fd")


@attempt(root=True)
def read_the_passwords(at):
    read("/etc/shadow")


@attempt(root=True)
def read_the_kernels_log(at):
    os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))


@attempt()
def hard_link_a_file_outside(at):
    os.link(at["secret"], at["outside"] + "/linked")
    os.unlink(at["outside"] + "/linked")


@attempt(unless="the workspace may lie on another file system")
def hard_link_it_into_the_workspace(at):
    os.link(at["secret"], "linked")


@attempt(root=True)
def open_a_file_by_its_handle(at):
    handle = ctypes.create_string_buffer(b"\x80\0\0\0" + bytes(200))
    mount = ctypes.c_int()
    call(
        "name_to_handle_at",
        -100,
        os.fsencode(at["secret"]),
        handle,
        ctypes.byref(mount),
        0,
    )


@attempt(unless="without a sandbox there is no file that is not the user's own")
def find_a_file_among_inherited_descriptors(at):
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        if target.startswith("/") and not target.startswith(("/dev/null", "/proc/", "/workspace", "/tmp")):
            return target
    raise PermissionError("none")


@attempt(unless="a descriptor must not be there with or without a sandbox")
def find_a_protocol_descriptor_in_a_program(at):
    code = "import os; print([n for n in os.listdir('/proc/self/fd') if int(n) > 3])"
    if subprocess.check_output([sys.executable, "-c", code]).strip() != b"[]":
        return "found"
    raise PermissionError("none")


@attempt()
def find_the_daemons_settings_in_the_environment(at):
    assert [name for name in os.environ if name.startswith("PYLAIR_")]


@attempt(unless="without a sandbox there are none")
def find_an_unknown_descriptor(at):
    """Each descriptor of a program is one of the three everybody has, or was opened by itself."""
    code = "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if int(n) > 2])"
    found = subprocess.check_output([sys.executable, "-c", code], text=True)
    unknown = [target for target in __import__("ast").literal_eval(found) if not target.endswith("/fd")]
    if not unknown:
        raise PermissionError("none")
    return unknown


@attempt(unless="which descriptors a worker has is the same with and without a sandbox")
def find_a_directory_outside_among_the_descriptors(at):
    """A worker's own are pipes, sockets, and what leads nowhere: none of them is a way into a file system."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISDIR(os.fstat(int(name)).st_mode) and os.readlink("/proc/self/fd/" + name) != f"/proc/{os.getpid()}/fd":
                os.stat(at["secret"].lstrip("/"), dir_fd=int(name))
                return name
        except OSError:
            continue
    raise PermissionError("none")


def _has_reversed(content, text):
    """It is given backwards and compared in pieces, so that it is not found because it was asked for."""
    begins = text[:-5:-1].encode()
    at = content.find(begins)
    while at >= 0:
        if all(content[at + place : at + place + 1] == text[-1 - place].encode() for place in range(len(text))):
            return True
        at = content.find(begins, at + 1)
    return False


@attempt(unless="it would be found where it is meant to be")
def find_what_others_left_in_memory(at):
    """A worker is a copy of its template, and so are those of others."""
    found = []
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            if "r" not in rights or line.endswith(("[vvar]\n", "[vsyscall]\n")):
                continue
            start, end = (int(number, 16) for number in span.split("-"))
            try:
                memory.seek(start)
                content = memory.read(end - start)
            except (OSError, OverflowError, ValueError):
                continue
            found += [canary for canary in at["canaries"] if _has_reversed(content, canary)]
    if not found:
        raise PermissionError("none")
    return found


# Writing outside


@attempt()
def write_a_file_outside(at):
    with open(at["outside"] + "/planted", "w") as file:
        file.write("x")


@attempt()
def append_to_a_file_outside(at):
    open(at["victim"], "a").close()


@attempt()
def change_the_mode_of_a_file_outside(at):
    os.chmod(at["victim"], 0o600)


@attempt()
def change_the_times_of_a_file_outside(at):
    os.utime(at["victim"])


@attempt()
def rename_a_file_outside(at):
    os.rename(at["victim"], at["victim"] + "2")
    os.rename(at["victim"] + "2", at["victim"])


@attempt()
def make_a_directory_outside(at):
    os.mkdir(at["outside"] + "/made")
    os.rmdir(at["outside"] + "/made")


@attempt()
def write_to_the_machines_tmp(at):
    with open(at["tmp"] + "/planted", "w") as file:
        file.write("x")
    assert os.stat(at["tmp"]).st_ino == at["tmp_inode"]


@attempt(root=True)
def open_the_users_for_writing(at):
    open("/etc/passwd", "a").close()


@attempt(root=True)
def write_to_usr(at):
    with open("/usr/.pylair-attempt", "w"):
        os.unlink("/usr/.pylair-attempt")


@attempt(root=True)
def write_to_the_root(at):
    with open("/.pylair-attempt", "w"):
        os.unlink("/.pylair-attempt")


@attempt(root=True)
def write_to_the_standard_library(at):
    open(os.__file__, "r+").close()


@attempt(root=True)
def open_the_core_pattern_for_writing(at):
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))


@attempt(root=True)
def open_the_host_name_for_writing(at):
    os.close(os.open("/proc/sys/kernel/hostname", os.O_WRONLY))


@attempt(unless="not every machine has it")
def open_sysrq_for_writing(at):
    os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY))


@attempt()
def open_the_daemons_oom_score_for_writing(at):
    os.close(os.open(f"/proc/{at['pid']}/oom_score_adj", os.O_WRONLY))


@attempt()
def list_the_cgroups(at):
    assert os.listdir("/sys/fs/cgroup")


@attempt()
def set_the_user_id_bit(at):
    open("set-id", "w").close()
    os.chmod("set-id", 0o4755)
    assert os.stat("set-id").st_mode & stat.S_ISUID


@attempt()
def make_a_file_with_the_user_id_bit(at):
    os.close(os.open("set-id-2", os.O_CREAT | os.O_WRONLY, 0o4755))
    assert os.stat("set-id-2").st_mode & stat.S_ISUID


@attempt(root=True)
def make_a_device(at):
    os.mknod("device", stat.S_IFCHR | 0o600, os.makedev(1, 3))


@attempt(root=True)
def change_the_root(at):
    os.chroot("/")


@attempt(root=True)
def mount_a_file_system(at):
    call("unshare", 0x20000)
    call("mount", b"tmpfs", b"/mnt", b"tmpfs", 0, 0)


@attempt(root=True)
def mount_by_the_new_calls(at):
    call("fsopen", b"tmpfs", 0)


@attempt(root=True)
def clone_a_mount(at):
    call("open_tree", -100, b"/", 1)


@attempt(root=True)
def change_an_owner(at):
    open("owned", "w").close()
    os.chown("owned", 12345, 12345)


# The network

kind = "network"


@attempt()
def connect_to_loopback(at):
    socket.create_connection(("127.0.0.1", at["tcp"]), 5).close()


@attempt()
def connect_to_loopback_from_a_program(at):
    code = f"import socket; socket.create_connection(('127.0.0.1', {at['tcp']}), 5)"
    subprocess.run([sys.executable, "-c", code], check=True, stderr=subprocess.DEVNULL)


@attempt()
def send_a_datagram(at):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"x", ("127.0.0.1", at["tcp"]))


@attempt()
def listen_for_the_network(at):
    with socket.socket() as server:
        server.bind(("0.0.0.0", 0))
        server.listen()


@attempt()
def listen_on_ipv6(at):
    with socket.socket(socket.AF_INET6) as server:
        server.bind(("::", 0))


@attempt(root=True)
def make_a_raw_socket(at):
    socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close()


@attempt(root=True)
def make_a_packet_socket(at):
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()


@attempt()
def make_a_netlink_socket(at):
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()


@attempt(unless="which of them there are depends on the kernel")
def make_sockets_of_odd_families(at):
    for family in (38, 40, 31, 29, 16, 44, 21, 30):
        try:
            socket.socket(
                family,
                socket.SOCK_SEQPACKET if family in (38, 40) else socket.SOCK_STREAM,
            ).close()
            return family
        except OSError:
            continue
    raise PermissionError("none")


@attempt()
def connect_to_the_daemon(at):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(at["runtime"] + "/daemon.sock")


@attempt()
def connect_to_a_socket_in_the_home(at):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(at["outside"] + "/socket")


@attempt()
def connect_to_an_abstract_socket(at):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + at["abstract"])


@attempt()
def see_the_interfaces_of_the_machine(at):
    names = [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
    assert [name for name in names if name != "lo"] or at["interfaces"] == 0


@attempt()
def pass_a_descriptor_of_a_file_outside(at):
    ours, theirs = socket.socketpair()
    fd = os.open(at["secret"], os.O_RDONLY)
    socket.send_fds(ours, [b"x"], [fd])
    assert os.read(socket.recv_fds(theirs, 1, 1)[1][0], 1)


@attempt()
def list_the_sockets_of_the_machine(at):
    with open("/proc/net/unix") as sockets:
        assert at["abstract"] in sockets.read()


@attempt()
def see_the_listeners_of_the_machine(at):
    with open("/proc/net/tcp") as sockets:
        assert ":{:04X}".format(at["tcp"]) in sockets.read()


@attempt(unless="it would ask somebody else's machine")
def resolve_a_name(at):
    socket.getaddrinfo("example.com", 80)


@attempt(unless="it would ask somebody else's machine")
def ask_the_clouds_metadata(at):
    socket.create_connection(("169.254.169.254", 80), 3).close()


# Other processes

kind = "process"


@attempt()
def see_the_daemon(at):
    os.stat(f"/proc/{at['pid']}")


@attempt()
def see_processes_of_others(at):
    assert any(int(name) in at["pids"] for name in os.listdir("/proc") if name.isdigit())


@attempt()
def signal_the_daemon(at):
    os.kill(at["pid"], 0)


@attempt()
def signal_the_processes_of_others(at):
    for pid in at["pids"]:
        os.kill(pid, 0)


@attempt(root=True)
def signal_the_first_process(at):
    os.kill(1, signal.SIGURG)


@attempt()
def open_the_daemon_by_pidfd(at):
    os.close(os.pidfd_open(at["pid"]))


@attempt()
def change_the_priority_of_the_daemon(at):
    os.setpriority(os.PRIO_PROCESS, at["pid"], os.getpriority(os.PRIO_PROCESS, at["pid"]))


@attempt()
def read_the_affinity_of_the_daemon(at):
    os.sched_getaffinity(at["pid"])


@attempt()
def read_the_limits_of_the_daemon(at):
    resource.prlimit(at["pid"], resource.RLIMIT_NOFILE)


@attempt(unless="without a sandbox the limit may be infinite")
def raise_the_own_limits(at):
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    resource.setrlimit(resource.RLIMIT_NPROC, (hard + 1, hard + 1))


@attempt()
def trace_a_child(at):
    child = os.fork()
    if child == 0:
        time.sleep(PATIENCE)
        os._exit(0)
    try:
        call("ptrace", 0x4206, child, 0, 0)
    finally:
        os.kill(child, signal.SIGKILL)


@attempt()
def ask_to_be_traced(at):
    call("ptrace", 0, 0, 0, 0)


@attempt()
def read_memory_across_processes(at):
    source, target = (
        ctypes.create_string_buffer(b"x" * 8),
        ctypes.create_string_buffer(8),
    )

    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    remote, local = (Vector(ctypes.addressof(buffer), 8) for buffer in (source, target))
    call(
        "process_vm_readv",
        os.getpid(),
        ctypes.byref(local),
        1,
        ctypes.byref(remote),
        1,
        0,
    )


@attempt()
def take_a_descriptor_of_a_process(at):
    pidfd = os.pidfd_open(os.getpid())
    os.close(call("pidfd_getfd", pidfd, 0, 0))


@attempt()
def compare_processes(at):
    call("kcmp", os.getpid(), os.getpid(), 0, 0, 0)


@attempt(root=True)
def become_root(at):
    os.setuid(0)


@attempt()
def make_a_user_namespace(at):
    call("unshare", 0x10000000)


@attempt(root=True)
def make_a_mount_namespace(at):
    call("unshare", 0x20000)


@attempt(root=True)
def make_a_network_namespace(at):
    call("unshare", 0x40000000)


@attempt(root=True)
def make_a_pid_namespace(at):
    call("unshare", 0x20000000)


@attempt()
def clone_into_a_user_namespace(at):
    pid = call("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@attempt()
def clone_with_the_new_call(at):
    arguments = (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    pid = call("clone3", arguments, ctypes.sizeof(arguments))
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@attempt(root=True)
def enter_a_namespace(at):
    namespace = os.open("/proc/self/ns/uts", os.O_RDONLY)
    call("setns", namespace, 0)


@attempt(unless="it would move the session")
def enter_the_namespaces_of_the_first_process(at):
    call("setns", os.open("/proc/1/ns/mnt", os.O_RDONLY), 0)


@attempt()
def see_what_the_daemon_was_started_with(at):
    read(f"/proc/{at['pid']}/cmdline")


@attempt(root=True)
def trace_the_session_of_somebody_else(at):
    call("ptrace", 0x4206, at["pids"][1], 0, 0)


@attempt(unless="without a sandbox the worker has no keeper of another user")
def kill_the_keeper(at):
    os.kill(1, signal.SIGKILL)
    time.sleep(0.2)
    raise PermissionError("it is not impressed")


@attempt()
def send_a_real_time_signal_to_the_daemon(at):
    assert not libc.sigqueue(at["pid"], 0, ctypes.c_void_p(0))


@attempt(root=True)
def change_a_kernel_setting(at):
    with open("/proc/sys/vm/swappiness", "r+") as setting:
        setting.write(setting.read())


@attempt(root=True)
def make_a_cgroup(at):
    base = next(path for path in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup/memory", "/sys/fs/cgroup") if os.path.exists(path))
    os.mkdir(f"{base}/pylair-attempt-{os.getpid()}")
    os.rmdir(f"{base}/pylair-attempt-{os.getpid()}")


# The kernel

kind = "kernel"


@attempt()
def change_the_personality(at):
    call("personality", 0x0040000)


@attempt(root=True)
def make_a_bpf_map(at):
    arguments = (ctypes.c_uint32 * 32)(2, 4, 4, 1)
    call("bpf", 0, arguments, ctypes.sizeof(arguments))


@attempt(root=True)
def open_a_performance_counter(at):
    reach("perf_event_open", 0, 0, -1, -1, 0)


@attempt(root=True)
def handle_page_faults(at):
    os.close(call("userfaultfd", 0o2000000))


@attempt(unless="many machines forbid it to everybody")
def set_up_an_io_ring(at):
    call("io_uring_setup", 1, ctypes.create_string_buffer(120))


@attempt(unless="not every kernel has keys")
def use_the_kernels_keys(at):
    call("keyctl", 0, -3, 0)


@attempt(unless="not every kernel has keys")
def add_a_key(at):
    call("add_key", b"user", b"pylair", b"x", 1, -1)


@attempt(root=True)
def watch_a_whole_file_system(at):
    os.close(call("fanotify_init", 0, 0))


@attempt(root=True)
def load_a_module(at):
    reach("init_module", 0, 0, 0)


@attempt(root=True)
def load_a_kernel(at):
    reach("kexec_load", 0, 1000, 0, 0)


@attempt(root=True)
def reboot(at):
    reach("reboot", 0, 0, 0, 0)


@attempt(root=True)
def add_swap(at):
    reach("swapon", b"/nonexistent", 0)


@attempt(root=True)
def turn_on_accounting(at):
    reach("acct", b"/nonexistent")


@attempt(root=True)
def ask_for_quotas(at):
    reach("quotactl", 0, b"/nonexistent", 0, 0)


@attempt(root=True)
def set_the_time(at):
    call("settimeofday", 0, 0)


@attempt(root=True)
def set_a_clock(at):
    reach("clock_settime", 999, 0)


@attempt(root=True)
def read_the_log_by_call(at):
    call("syslog", 10, 0, 0)


@attempt(root=True)
def get_at_io_ports(at):
    call("iopl", 3)


@attempt()
def change_the_segments(at):
    call("modify_ldt", 0, ctypes.create_string_buffer(64), 64)


@attempt()
def open_a_terminal(at):
    os.close(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))


@attempt(unless="which of them there are depends on the machine")
def open_dangerous_devices(at):
    for name in (
        "mem",
        "kmem",
        "port",
        "kvm",
        "fuse",
        "loop-control",
        "vda",
        "sda",
        "nvme0n1",
        "tty",
        "console",
        "net/tun",
    ):
        try:
            os.close(os.open("/dev/" + name, os.O_RDONLY))
            return name
        except OSError:
            continue
    raise PermissionError("none")


@attempt(unless="there may be no terminal")
def type_into_a_terminal(at):
    import fcntl

    fcntl.ioctl(0, 0x5412, b"x")


# Resources. In a sandbox only: the machine is everybody's.

kind = "resource"
SPENDS = "it takes what others need"


def spend(limit, step):
    for count in range(limit):
        step(count)


@attempt(unless=SPENDS)
def fork_without_end(at):
    children = []
    try:
        for _ in range(at["processes"] + 50):
            pid = os.fork()
            if pid == 0:
                select.select([], [], [], PATIENCE)
                os._exit(0)
            children.append(pid)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@attempt(unless=SPENDS)
def start_threads_without_end(at):
    import threading

    done = threading.Event()
    try:
        spend(
            at["processes"] + 50,
            lambda _: threading.Thread(target=done.wait, daemon=True).start(),
        )
    finally:
        done.set()


@attempt(unless=SPENDS)
def map_more_than_there_is(at):
    mmap.mmap(-1, at["address_space"] + (64 << 20)).close()


@attempt(unless=SPENDS)
def allocate_more_than_there_is(at):
    chunks = []
    spend((at["address_space"] >> 26) + 2, lambda _: chunks.append(bytes(64 << 20)))


@attempt(unless=SPENDS)
def fill_the_tmp(at):
    with open("/tmp/fill", "wb") as file:
        try:
            spend(at["tmp_mb"] + 8, lambda _: file.write(bytes(1 << 20)))
        finally:
            os.unlink("/tmp/fill")


@attempt(unless=SPENDS)
def fill_the_shared_memory(at):
    names = []
    try:
        for number in range(at["tmp_mb"] // 8 + 4):
            names.append(f"/dev/shm/fill-{number}")
            with open(names[-1], "wb") as file:
                file.write(bytes(8 << 20))
    finally:
        for name in names:
            os.unlink(name)


@attempt(unless=SPENDS)
def make_files_without_end(at):
    os.mkdir("/tmp/many")
    try:
        spend(
            at["tmp_mb"] * 600 + 2000,
            lambda number: os.close(os.open(f"/tmp/many/{number}", os.O_CREAT)),
        )
    finally:
        subprocess.run(["rm", "-rf", "/tmp/many"])


@attempt(unless=SPENDS)
def write_a_file_that_is_too_large(at):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open("large", "wb") as file:
        try:
            file.truncate((at["file_size_mb"] + 1) << 20)
        finally:
            os.unlink("large")


@attempt(unless=SPENDS)
def open_files_without_end(at):
    files = []
    spend(at["open_files"] + 1, lambda _: files.append(os.open("/dev/null", os.O_RDONLY)))


@attempt(unless=SPENDS)
def lock_memory(at):
    buffer = mmap.mmap(-1, 8 << 20)
    if libc.mlock(
        ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(buffer))),
        ctypes.c_size_t(8 << 20),
    ):
        raise OSError(ctypes.get_errno(), "mlock")


@attempt(unless=SPENDS)
def keep_memory_in_files_of_memory(at):
    call("memfd_create", b"x", 0)


@attempt(unless=SPENDS)
def keep_memory_in_shared_segments(at):
    call("shmget", 0, 1 << 20, 0o1600)


@attempt(unless=SPENDS)
def keep_memory_in_message_queues(at):
    call("msgget", 0, 0o1600)


@attempt(unless=SPENDS)
def ask_for_real_time(at):
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


@attempt(unless=SPENDS)
def take_precedence(at):
    os.nice(-5)


@attempt(unless=SPENDS)
def see_the_time_of_the_first_process(at):
    """What the keeper is and holds is nobody's business inside."""
    os.listdir("/proc/1/fd")


@attempt(unless=SPENDS)
def watch_files_without_end(at):
    """Each has a table in the kernel, and one user has only so many."""
    watches = []
    for _ in range(at["open_files"] + 1):
        fd = libc.inotify_init1(0)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        watches.append(fd)


@attempt(unless=SPENDS)
def make_pipes_without_end(at):
    pipes = []
    spend(at["open_files"], lambda _: pipes.append(os.pipe()))


@attempt(unless=SPENDS)
def make_large_pipes_without_end(at):
    """Their memory is the kernel's. A user's share of it is bounded, however many descriptors there are."""
    import fcntl

    pipes = []
    for _ in range(at["open_files"]):
        pipes.append(os.pipe())
        fcntl.fcntl(pipes[-1][0], 1031, 1 << 20)


@attempt(unless=SPENDS)
def keep_memory_in_semaphores(at):
    for _ in range(100_000):
        call("semget", 0, 250, 0o1600)


@attempt(unless=SPENDS)
def fill_the_memory_by_many_processes(at):
    """Each stays below what one process may have mapped."""
    piece = min(at["address_space"] // 2, at["memory"] // 2 + (64 << 20))
    children = []
    reading, writing = os.pipe()
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            # Not to outlive its parent, who may be the one that is ended for it.
            libc.prctl(1, signal.SIGKILL, 0, 0, 0)
            block = mmap.mmap(-1, piece)
            for at_page in range(0, piece, 4096):
                block[at_page] = 1
            os.write(writing, b"x")
            os.close(writing)
            select.select([], [], [], PATIENCE)
            os._exit(0)
        children.append(pid)
    os.close(writing)
    held = 0
    while held < 4 and os.read(reading, 1):
        held += 1
    # Where it is watched, those who have too much are ended a moment later.
    time.sleep(2.5)
    alive = [pid for pid in children if os.waitpid(pid, os.WNOHANG)[0] == 0]
    if len(alive) * piece < at["memory"]:
        raise MemoryError(f"{len(alive)} of 4 are left")


@attempt(unless=SPENDS)
def queue_signals_without_end(at):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 5])
    for _ in range(at["processes"] * 4 + 1000):
        if libc.sigqueue(os.getpid(), signal.SIGRTMIN + 5, ctypes.c_void_p(0)):
            raise OSError(11, "sigqueue")


@attempt(unless=SPENDS)
def make_timers_without_end(at):
    timer = ctypes.c_void_p()
    for _ in range(at["processes"] * 4 + 1000):
        if libc.timer_create(0, None, ctypes.byref(timer)):
            raise OSError(ctypes.get_errno(), "timer_create")


def make(name, at):
    """Makes one attempt in a child. Returns how it failed; None when it did not."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.setpgid(0, 0)
        try:
            ATTEMPTS[name][0](at)
            result = "worked"
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"[:200]
        os.write(writing, result.encode("utf-8", "replace"))
        os._exit(0)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], PATIENCE)
    said = os.read(reading, 1000).decode() if ready else "it took too long"
    os.close(reading)
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass
    os.waitpid(pid, 0)
    return None if said == "worked" else said or "it was ended"


def make_all(at, sandboxed):
    """All attempts that are to be made here, by name."""
    chosen = [name for name, (_, unless, root) in ATTEMPTS.items() if sandboxed or (unless is None and (at["root"] or not root))]
    return json.dumps({name: make(name, at) for name in chosen})


def list_all():
    """Of what kind each is, and why it is not made without a sandbox, if it is not."""
    return json.dumps({name: [KINDS[name], unless] for name, (_, unless, _) in ATTEMPTS.items()})
