//! The system call filter of confined sessions, made here because Python has nothing to make it with.
//!
//! Called by `confine`. A deny-list: Python programs need most of the kernel, and none of what is below.

use super::Network;

/// System calls that fail with EPERM: what could change the namespaces and mounts, reach into other processes, keep memory that no
/// process is counted for, or is a large part of the kernel's attack surface that Python code does not need.
const DENIED: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    KEXEC_FILE_LOAD,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    MEMFD_SECRET,
    libc::SYS_msgget,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_name_to_handle_at,
    libc::SYS_nfsservctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_perf_event_open,
    libc::SYS_personality,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_semget,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_shmget,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
];

/// Calls that make or change a file, and which argument is its mode.
const MODES: &[(libc::c_long, u32)] = &[
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (FCHMODAT2, 2),
    (libc::SYS_mknodat, 2),
    (libc::SYS_openat, 3),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 2),
];

/// What is bound without its set-id bits inside has them outside: a session must not make such a file for somebody there.
const SET_ID_BITS: libc::c_int = 0o6000;

const FCHMODAT2: libc::c_long = 452;
const MEMFD_SECRET: libc::c_long = 447;

/// Linux 6.15; libc does not know it yet. Such late numbers are the same everywhere.
const OPEN_TREE_ATTR: libc::c_long = 467;

/// Not in every libc the crate knows.
const KEXEC_FILE_LOAD: libc::c_long = if cfg!(target_arch = "x86_64") { 320 } else { 294 };

const NAMESPACE_FLAGS: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// The BPF program for `seccomp(SECCOMP_SET_MODE_FILTER)`, as the array of `sock_filter` that the kernel takes.
///
/// By hand rather than with seccompiler, which knows one error per program: programs fall back well only when each refusal has the
/// error of a kernel that lacks the feature.
pub fn seccomp_program(network: Network) -> Vec<u8> {
    let mut filter = Filter::default();
    filter.load(ARCHITECTURE_OFFSET);
    // Other architectures have other numbers for the calls below.
    filter.jump(libc::BPF_JEQ, AUDIT_ARCHITECTURE, 1, 0);
    filter.answer(libc::SECCOMP_RET_KILL_PROCESS);
    filter.load(NUMBER_OFFSET);
    if cfg!(target_arch = "x86_64") {
        filter.answer_if(libc::BPF_JGE, X32_CALLS, refusal(libc::ENOSYS));
    }
    // Its flags are in memory, where a filter cannot look. The C library then takes clone.
    filter.answer_if(libc::BPF_JEQ, call(libc::SYS_clone3), refusal(libc::ENOSYS));
    // Its memory belongs to no process and to no file system, so nothing but a group of the kernel's would count it.
    filter.answer_if(libc::BPF_JEQ, call(libc::SYS_memfd_create), refusal(libc::ENOSYS));
    // Its flags and mode are in memory, too. Programs then take openat.
    filter.answer_if(libc::BPF_JEQ, call(libc::SYS_openat2), refusal(libc::ENOSYS));
    // It takes any amount of a disk at once, which nobody could watch. Programs then write, as on file systems that cannot do this.
    filter.answer_if(libc::BPF_JEQ, call(libc::SYS_fallocate), refusal(libc::EOPNOTSUPP));
    for &number in DENIED {
        filter.answer_if(libc::BPF_JEQ, call(number), refusal(libc::EPERM));
    }
    for &(number, argument) in MODES {
        filter.on_argument(
            number,
            argument,
            libc::BPF_JSET,
            &[SET_ID_BITS],
            refusal(libc::EPERM),
            libc::SECCOMP_RET_ALLOW,
        );
    }
    let families: &[libc::c_int] = match network {
        Network::None => &[libc::AF_UNIX],
        Network::Proxy => {
            filter.allow_streams(&[libc::AF_INET, libc::AF_INET6]);
            &[libc::AF_UNIX]
        }
        Network::Host => &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK],
    };
    for number in [libc::SYS_socket, libc::SYS_socketpair] {
        filter.on_argument(number, 0, libc::BPF_JEQ, families, libc::SECCOMP_RET_ALLOW, refusal(libc::EAFNOSUPPORT));
    }
    filter.on_argument(
        libc::SYS_clone,
        0,
        libc::BPF_JSET,
        &[NAMESPACE_FLAGS],
        refusal(libc::EPERM),
        libc::SECCOMP_RET_ALLOW,
    );
    filter.on_argument(libc::SYS_ioctl, 1, libc::BPF_JEQ, TYPING_IOCTLS, refusal(libc::EPERM), libc::SECCOMP_RET_ALLOW);
    filter.answer(libc::SECCOMP_RET_ALLOW);
    filter.0
}

/// TIOCSTI and TIOCLINUX. Both put characters into a terminal as if they were typed there: into that of whoever started the daemon, say.
const TYPING_IOCTLS: &[libc::c_int] = &[0x5412, 0x541c];

// From `struct seccomp_data`.
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
const ARGUMENTS_OFFSET: u32 = 16;

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCHITECTURE: u32 = 0xc000_00b7;

/// From here on the numbers are those of the x32 variant, which are in no list.
const X32_CALLS: u32 = 0x4000_0000;

/// A classic BPF program in the making. The accumulator always holds the number of the call between two rules.
#[derive(Default)]
struct Filter(Vec<u8>);

impl Filter {
    fn load(&mut self, offset: u32) {
        self.push(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    }

    fn jump(&mut self, test: u32, value: u32, if_true: u8, if_false: u8) {
        self.push(libc::BPF_JMP | test | libc::BPF_K, if_true, if_false, value);
    }

    fn answer(&mut self, answer: u32) {
        self.push(libc::BPF_RET | libc::BPF_K, 0, 0, answer);
    }

    fn answer_if(&mut self, test: u32, value: u32, answer: u32) {
        self.jump(test, value, 0, 1);
        self.answer(answer);
    }

    /// For one call: `answer` if its argument passes the test with one of `values`, else `otherwise`. Only the lower half of the
    /// argument is looked at, which is all that the kernel does with an int.
    fn on_argument(
        &mut self,
        number: libc::c_long,
        argument: u32,
        test: u32,
        values: &[libc::c_int],
        answer: u32,
        otherwise: u32,
    ) {
        let rest = u8::try_from(2 + 2 * values.len()).expect("a rule with few values");
        self.jump(libc::BPF_JEQ, call(number), 0, rest);
        self.load(ARGUMENTS_OFFSET + 8 * argument);
        for value in values {
            self.answer_if(test, value.cast_unsigned(), answer);
        }
        self.answer(otherwise);
    }

    /// Answers `socket` for these families: a stream of TCP, or nothing.
    fn allow_streams(&mut self, families: &[libc::c_int]) {
        const TYPE_MASK: u32 = 0xf;
        for family in families {
            self.jump(libc::BPF_JEQ, call(libc::SYS_socket), 0, 11);
            self.load(ARGUMENTS_OFFSET);
            self.jump(libc::BPF_JEQ, family.cast_unsigned(), 0, 8);
            self.load(ARGUMENTS_OFFSET + 8);
            self.push(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, TYPE_MASK);
            self.jump(libc::BPF_JEQ, libc::SOCK_STREAM.cast_unsigned(), 0, 4);
            self.load(ARGUMENTS_OFFSET + 16);
            self.jump(libc::BPF_JEQ, 0, 1, 0);
            self.jump(libc::BPF_JEQ, libc::IPPROTO_TCP.cast_unsigned(), 0, 1);
            self.answer(libc::SECCOMP_RET_ALLOW);
            self.answer(refusal(libc::EPERM));
            self.load(NUMBER_OFFSET);
        }
    }

    fn push(&mut self, code: u32, if_true: u8, if_false: u8, value: u32) {
        let code = u16::try_from(code).expect("codes have 16 bits");
        self.0.extend_from_slice(&code.to_ne_bytes());
        self.0.extend_from_slice(&[if_true, if_false]);
        self.0.extend_from_slice(&value.to_ne_bytes());
    }
}

fn call(number: libc::c_long) -> u32 {
    u32::try_from(number).expect("numbers of calls are small")
}

fn refusal(errno: libc::c_int) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `probe` behind the filter, in a child, and returns what it returned.
    fn behind_filter(network: Network, probe: impl FnOnce() -> i32) -> i32 {
        let program = seccomp_program(network);
        // SAFETY: the child is a single thread that never returns from here; the program outlives the call that copies it.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                let program = libc::sock_fprog {
                    len: u16::try_from(program.len() / 8).unwrap(),
                    filter: program.as_ptr().cast_mut().cast(),
                };
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                let loaded = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program);
                super::super::leave(if loaded == 0 { probe() } else { 255 });
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
            assert!(libc::WIFEXITED(status), "ended by signal {}", libc::WTERMSIG(status));
            libc::WEXITSTATUS(status)
        }
    }

    /// The error of a call, or 0.
    fn errno(number: libc::c_long, arguments: [libc::c_long; 3]) -> i32 {
        let [a, b, c] = arguments;
        // SAFETY: the arguments are numbers, or pointers that the kernel refuses.
        match unsafe { libc::syscall(number, a, b, c, 0, 0) } {
            -1 => std::io::Error::last_os_error().raw_os_error().unwrap_or(254),
            _ => 0,
        }
    }

    #[track_caller]
    fn check(network: Network, number: libc::c_long, arguments: [libc::c_long; 3], expected: i32) {
        assert_eq!(behind_filter(network, || errno(number, arguments)), expected);
    }

    #[test]
    fn dangerous_calls_are_refused() {
        check(Network::None, libc::SYS_unshare, [0, 0, 0], libc::EPERM);
        check(Network::None, libc::SYS_ptrace, [0, 0, 0], libc::EPERM);
        check(Network::None, libc::SYS_bpf, [0, 0, 0], libc::EPERM);
        check(Network::Host, libc::SYS_io_uring_setup, [1, 0, 0], libc::EPERM);
        check(Network::None, libc::SYS_clone3, [0, 0, 0], libc::ENOSYS);
        check(Network::None, libc::SYS_fallocate, [1, 0, 0], libc::EOPNOTSUPP);
        check(Network::None, libc::SYS_clone, [NAMESPACE_FLAGS.into(), 0, 0], libc::EPERM);
        check(Network::None, libc::SYS_clone, [(libc::CLONE_NEWUSER | libc::SIGCHLD).into(), 0, 0], libc::EPERM);
        check(Network::None, libc::SYS_ioctl, [0, 0x5412, 0], libc::EPERM);
        check(Network::None, libc::SYS_ioctl, [0, 0x1_0000_5412, 0], libc::EPERM);
    }

    #[test]
    fn ordinary_calls_are_not() {
        check(Network::None, libc::SYS_getpid, [0, 0, 0], 0);
        check(Network::None, libc::SYS_ioctl, [-1, 0x5401, 0], libc::EBADF);
        let started = behind_filter(Network::None, || {
            let spawned = std::process::Command::new("/bin/true").status();
            let threaded = std::thread::spawn(|| ()).join();
            i32::from(spawned.is_err() || threaded.is_err())
        });
        assert_eq!(started, 0);
    }

    #[test]
    fn sockets_are_local_without_a_network() {
        let open = |family: i32| [family.into(), libc::SOCK_DGRAM.into(), 0];
        for number in [libc::SYS_socket, libc::SYS_socketpair] {
            check(Network::None, number, open(libc::AF_INET), libc::EAFNOSUPPORT);
            check(Network::None, number, open(libc::AF_INET6), libc::EAFNOSUPPORT);
            check(Network::Host, number, open(libc::AF_VSOCK), libc::EAFNOSUPPORT);
        }
        check(Network::None, libc::SYS_socket, open(libc::AF_UNIX), 0);
        check(Network::Host, libc::SYS_socket, open(libc::AF_INET), 0);
    }

    #[test]
    fn through_a_proxy_there_are_streams_only() {
        let check_socket = |family: i32, kind: i32, protocol: i32, expected| {
            check(Network::Proxy, libc::SYS_socket, [family.into(), kind.into(), protocol.into()], expected);
        };
        for family in [libc::AF_INET, libc::AF_INET6] {
            check_socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0, 0);
            check_socket(family, libc::SOCK_STREAM, libc::IPPROTO_TCP, 0);
            check_socket(family, libc::SOCK_STREAM, 262, libc::EPERM);
            check_socket(family, libc::SOCK_DGRAM, 0, libc::EPERM);
            check_socket(family, libc::SOCK_RAW, libc::IPPROTO_ICMP, libc::EPERM);
        }
        check_socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0, 0);
        check_socket(libc::AF_NETLINK, libc::SOCK_RAW, 0, libc::EAFNOSUPPORT);
        check(
            Network::Proxy,
            libc::SYS_socketpair,
            [libc::AF_INET.into(), libc::SOCK_STREAM.into(), 0],
            libc::EAFNOSUPPORT,
        );
    }

    #[test]
    fn set_id_bits_cannot_be_set() {
        for mode in [0o4755, 0o2755, 0o6000] {
            check(Network::None, libc::SYS_fchmod, [-1, mode, 0], libc::EPERM);
            check(Network::None, libc::SYS_fchmodat, [-1, 0, mode], libc::EPERM);
        }
        check(Network::None, libc::SYS_fchmod, [-1, 0o1777, 0], libc::EBADF);
        check(Network::None, libc::SYS_openat2, [-1, 0, 0], libc::ENOSYS);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn x32_calls_do_not_exist() {
        check(Network::None, 0x4000_0000 + libc::SYS_getpid, [0, 0, 0], libc::ENOSYS);
    }
}
