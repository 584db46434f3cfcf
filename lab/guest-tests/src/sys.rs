//! Safe wrappers over the few system calls the tests need and std does not offer.
//!
//! They live in one place so that the test modules themselves stay free of `unsafe` wherever they
//! can. Each wrapper turns the errno into an [`io::Error`].
#![expect(unsafe_code, reason = "libc calls")]
// UNSAFETY: every function here is one libc or raw system call that std does not wrap.

use std::ffi::{CStr, CString};
use std::io;
use std::mem;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// Process id as the kernel gives it.
pub(crate) type Pid = libc::pid_t;

/// What became of a child process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It exited with this status.
    Exit(i32),
    /// This signal ended it.
    Signal(i32),
}

/// The two sides of a [`fork`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forked {
    /// In the parent: the child's id.
    Parent(Pid),
    /// In the child.
    Child,
}

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Own process id.
pub(crate) fn pid() -> Pid {
    // SAFETY: getpid has no preconditions.
    unsafe { libc::getpid() }
}

/// Own thread id.
pub(crate) fn tid() -> Pid {
    // SAFETY: gettid has no preconditions.
    unsafe { libc::gettid() }
}

/// Pins the calling thread to one CPU; on return it runs there.
pub(crate) fn pin_to(cpu: usize) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    if cpu >= usize::try_from(libc::CPU_SETSIZE).unwrap_or(0) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: cpu is inside the set, checked above.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set outlives the call and the size is its own.
    let rc = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    check(i64::from(rc)).map(drop)
}

/// Connects to a port of a machine by a socket of the family vsock.
pub(crate) fn connect_vsock(cid: u32, port: u32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: socket has no memory arguments.
    let fd = unsafe { libc::socket(libc::AF_VSOCK, kind, 0) };
    check(i64::from(fd))?;
    // SAFETY: the descriptor is new, checked above, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: an all-zero address is one.
    let mut to: libc::sockaddr_vm = unsafe { mem::zeroed() };
    to.svm_family = libc::sa_family_t::try_from(libc::AF_VSOCK).unwrap_or_default();
    (to.svm_cid, to.svm_port) = (cid, port);
    let length = libc::socklen_t::try_from(size_of_val(&to)).unwrap_or_default();
    // SAFETY: the address outlives the call and the length is its own.
    let rc = unsafe { libc::connect(fd, (&raw const to).cast(), length) };
    check(i64::from(rc)).map(|_| socket)
}

/// CPUs the calling thread may run on, ascending.
pub(crate) fn allowed_cpus() -> io::Result<Vec<usize>> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: the set outlives the call and the size is its own.
    let rc = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    check(i64::from(rc))?;
    let most = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
    // SAFETY: every index is below CPU_SETSIZE.
    Ok((0..most).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect())
}

/// The CPU the caller runs on now.
pub(crate) fn current_cpu() -> Option<usize> {
    // SAFETY: sched_getcpu has no preconditions.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Lets another runnable thread of this CPU go first.
pub(crate) fn yield_cpu() {
    // SAFETY: sched_yield has no preconditions.
    unsafe { libc::sched_yield() };
}

/// Forks. To be called by a process with one thread only, so that the child may allocate.
pub(crate) fn fork() -> io::Result<Forked> {
    // SAFETY: callers have one thread (see above), so no lock is held by a thread that is gone.
    let pid = unsafe { libc::fork() };
    Ok(if check(i64::from(pid))? == 0 { Forked::Child } else { Forked::Parent(pid) })
}

/// Ends the process at once, without running destructors or flushing what the parent buffered.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(status) }
}

/// Asks the kernel to kill the caller when its parent dies.
pub(crate) fn die_with_parent() -> io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes one integer argument.
    let rc = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    check(i64::from(rc)).map(drop)
}

/// Makes the caller leader of a process group of its own.
pub(crate) fn lead_group() -> io::Result<()> {
    // SAFETY: setpgid has no memory arguments.
    check(i64::from(unsafe { libc::setpgid(0, 0) })).map(drop)
}

/// Sends a signal to a process, or to the group `-pid`.
pub(crate) fn kill(pid: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: kill has no memory arguments.
    check(i64::from(unsafe { libc::kill(pid, signal) })).map(drop)
}

/// Sends a signal to one thread of a process.
pub(crate) fn kill_thread(pid: Pid, tid: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: tgkill has no memory arguments.
    check(unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) }).map(drop)
}

/// Waits for a child; with `block` false returns `None` when it still runs.
pub(crate) fn wait_for(pid: Pid, block: bool) -> io::Result<Option<Ended>> {
    let mut status = 0;
    let flags = if block { 0 } else { libc::WNOHANG };
    loop {
        // SAFETY: status outlives the call.
        let rc = unsafe { libc::waitpid(pid, &raw mut status, flags) };
        match check(i64::from(rc)) {
            Ok(0) => return Ok(None),
            Ok(_) if libc::WIFSIGNALED(status) => {
                return Ok(Some(Ended::Signal(libc::WTERMSIG(status))));
            }
            Ok(_) => return Ok(Some(Ended::Exit(libc::WEXITSTATUS(status)))),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Replaces the process by this very program with the given arguments. Returns only on failure.
pub(crate) fn exec_self(args: &[&str]) -> io::Error {
    let mut all = vec!["guest-tests"];
    all.extend(args);
    exec(c"/proc/self/exe", &all)
}

/// Replaces the process by another program. Returns only on failure.
pub(crate) fn exec(path: &CStr, args: &[&str]) -> io::Error {
    let Ok(owned) = args.iter().map(|arg| CString::new(*arg)).collect::<Result<Vec<_>, _>>() else {
        return io::Error::from(io::ErrorKind::InvalidInput);
    };
    let mut pointers: Vec<_> = owned.iter().map(|arg| arg.as_ptr()).collect();
    pointers.push(ptr::null());
    // SAFETY: path and arguments are NUL-terminated, the list ends with a null pointer.
    unsafe { libc::execv(path.as_ptr(), pointers.as_ptr()) };
    io::Error::last_os_error()
}

/// Sleeps until `word` differs from `expected`, a wake, a signal, or `limit`; callers re-check.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, limit: Duration) {
    let limit = libc::timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    // SAFETY: the word and the time outlive the call. Not FUTEX_PRIVATE: other processes wake us.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const limit)
    };
}

/// Wakes every sleeper of [`futex_wait`] on this word.
pub(crate) fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Kind of a new anonymous mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Kept in common with later children.
    Shared,
    /// Copied on fork.
    Private,
}

/// Maps `len` bytes of zeroed anonymous memory, at `at` exactly when given (replacing what is there).
pub(crate) fn map(len: usize, sharing: Sharing, at: Option<usize>) -> io::Result<NonNull<u8>> {
    let kind = match sharing {
        Sharing::Shared => libc::MAP_SHARED,
        Sharing::Private => libc::MAP_PRIVATE,
    };
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    // SAFETY: a fixed address is always one that the caller mapped itself and gives up here.
    let base = unsafe {
        libc::mmap(
            ptr::without_provenance_mut(at.unwrap_or(0)),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            kind | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Unmaps what [`map`] gave.
///
/// # Safety
/// Nothing may use the range afterwards, unless it is prepared for the SIGSEGV.
pub(crate) unsafe fn unmap(base: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: the caller vouches that the range is not used any more.
    check(i64::from(unsafe { libc::munmap(base.as_ptr().cast(), len) })).map(drop)
}

/// Makes a range read-only, or writable again.
///
/// # Safety
/// Writers of the range must be prepared for the SIGSEGV.
pub(crate) unsafe fn protect(base: NonNull<u8>, len: usize, writable: bool) -> io::Result<()> {
    let flags = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    // SAFETY: the caller vouches for the writers.
    check(i64::from(unsafe { libc::mprotect(base.as_ptr().cast(), len, flags) })).map(drop)
}

/// Binds the memory of a range to one NUMA node (below 64).
pub(crate) fn bind_to_node(base: NonNull<u8>, len: usize, node: usize) -> io::Result<()> {
    const MPOL_BIND: i32 = 2;
    let mask = u32::try_from(node).ok().and_then(|node| 1u64.checked_shl(node)).unwrap_or(0);
    let base = base.as_ptr();
    // SAFETY: mbind moves no data of live pages without MPOL_MF_MOVE; the mask outlives the call.
    check(unsafe {
        libc::syscall(libc::SYS_mbind, base, len, MPOL_BIND, &raw const mask, 65usize, 0)
    })
    .map(drop)
}

/// Gives the pages of a shared range back to the kernel; they read as zero afterwards.
pub(crate) fn drop_pages(base: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: only the contents change, and the range is of atomics, for which any value is valid.
    check(i64::from(unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_REMOVE) }))
        .map(drop)
}

/// Blocks one signal in the calling thread, so that [`wait_signal`] can take it.
pub(crate) fn block_signal(signal: i32) -> io::Result<()> {
    let set = signal_set(signal);
    // SAFETY: the set outlives the call.
    let rc = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(rc)) }
}

/// Takes one blocked signal and returns the sender's pid.
pub(crate) fn wait_signal(signal: i32) -> io::Result<Pid> {
    let set = signal_set(signal);
    loop {
        // SAFETY: siginfo_t is plain data.
        let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
        // SAFETY: set and info outlive the call.
        let rc = unsafe { libc::sigwaitinfo(&raw const set, &raw mut info) };
        match check(i64::from(rc)) {
            // SAFETY: the kernel filled the record of a signal sent by kill or tgkill.
            Ok(_) => return Ok(unsafe { info.si_pid() }),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn signal_set(signal: i32) -> libc::sigset_t {
    // SAFETY: sigset_t is plain data.
    let mut set: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: the set is valid for the call.
    unsafe { libc::sigemptyset(&raw mut set) };
    // SAFETY: the set is valid for the call.
    unsafe { libc::sigaddset(&raw mut set, signal) };
    set
}

/// Signature of a handler given to [`handle_signal`].
pub(crate) type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// Installs a handler, or the default action for `None`.
///
/// # Safety
/// The handler must keep to what is allowed in signal context (atomics and raw system calls).
pub(crate) unsafe fn handle_signal(signal: i32, handler: Option<Handler>) -> io::Result<()> {
    // SAFETY: sigaction is plain data; all-zero is the default action.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    if let Some(handler) = handler {
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    }
    // SAFETY: action outlives the call; the caller vouches for the handler.
    let rc = unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
    check(i64::from(rc)).map(drop)
}

/// CLOCK_MONOTONIC in nanoseconds, through the vDSO where there is one.
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: now outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Mounts a pseudo file system.
pub(crate) fn mount(kind: &CStr, target: &CStr) -> io::Result<()> {
    // SAFETY: all strings are NUL-terminated; these file systems take no data.
    let rc = unsafe { libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, ptr::null()) };
    check(i64::from(rc)).map(drop)
}

/// Mounts the file system of a block device.
pub(crate) fn mount_disk(disk: &CStr, kind: &CStr, target: &CStr) -> io::Result<()> {
    // SAFETY: all strings are NUL-terminated; there is no data.
    let rc = unsafe { libc::mount(disk.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, ptr::null()) };
    check(i64::from(rc)).map(drop)
}

/// Mounts the file system of a block device without writing to it, not even what its journal has.
pub(crate) fn mount_read_only(disk: &CStr, kind: &CStr, target: &CStr) -> io::Result<()> {
    let (flags, data) = (libc::MS_RDONLY, c"noload");
    // SAFETY: all strings are NUL-terminated.
    let rc = unsafe {
        libc::mount(disk.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast())
    };
    check(i64::from(rc)).map(drop)
}

/// Whether the descriptor is a terminal.
pub(crate) fn is_terminal(fd: i32) -> bool {
    // SAFETY: isatty has no memory arguments.
    unsafe { libc::isatty(fd) == 1 }
}

/// Makes `to` another name for the descriptor `from`.
pub(crate) fn duplicate(from: i32, to: i32) -> io::Result<()> {
    // SAFETY: descriptors 0 to 2, the only targets used, are owned by nobody in particular.
    check(i64::from(unsafe { libc::dup2(from, to) })).map(drop)
}

/// Starts a session and takes the terminal of descriptor 0 as its own.
pub(crate) fn own_terminal() -> io::Result<()> {
    // SAFETY: setsid has no memory arguments.
    check(i64::from(unsafe { libc::setsid() }))?;
    // SAFETY: TIOCSCTTY takes one integer argument.
    check(i64::from(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 1) })).map(drop)
}

/// Writes all dirty data back.
pub(crate) fn sync() {
    // SAFETY: sync has no preconditions.
    unsafe { libc::sync() };
}

/// reboot(2): `RB_POWER_OFF` or `RB_AUTOBOOT`. Returns only on failure.
pub(crate) fn reboot(command: i32) -> io::Error {
    // SAFETY: reboot has no memory arguments.
    unsafe { libc::reboot(command) };
    io::Error::last_os_error()
}

/// Sleeps until a signal comes.
pub(crate) fn pause() {
    // SAFETY: pause has no preconditions.
    unsafe { libc::pause() };
}

/// Loads a kernel module from an open file.
pub(crate) fn load_module(fd: i32) -> io::Result<()> {
    // SAFETY: the parameter string is NUL-terminated.
    check(unsafe { libc::syscall(libc::SYS_finit_module, fd, c"".as_ptr(), 0) }).map(drop)
}

/// Unloads a kernel module that is not in use.
pub(crate) fn unload_module(name: &CStr) -> io::Result<()> {
    // SAFETY: the name is NUL-terminated.
    check(unsafe { libc::syscall(libc::SYS_delete_module, name.as_ptr(), libc::O_NONBLOCK) })
        .map(drop)
}

/// Whether a read of the descriptor would not block.
pub(crate) fn readable(fd: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one record, which outlives the call.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    ready == 1 && poll.revents & libc::POLLIN != 0
}

/// The low half of a shared word, as futexes need 32 bits. Nobody uses the whole word meanwhile.
pub(crate) fn low_half(word: &AtomicU64) -> &AtomicU32 {
    // SAFETY: same lifetime, aligned to 8, and the caller's side uses only this half.
    unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
}

/// Installs one of our counting handlers, which keep to atomics and gettid.
pub(crate) fn count_with(signal: i32, handler: Handler) -> io::Result<()> {
    // SAFETY: the handlers given here do nothing but gettid and stores to atomics.
    unsafe { handle_signal(signal, Some(handler)) }
}
