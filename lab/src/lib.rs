//! Hosts for tests.
//!
//! A scenario (a demo, a soak, a test over several hosts) needs hosts that can run a hypervisor. Where
//! the machine has VMX or SVM, a host is a network namespace of the machine. Where it has none, a host
//! is a QEMU machine that emulates an AMD processor with SVM and nested paging and runs a stock Debian
//! kernel; its root file system is the machine's own, read-only, with a throw-away layer on top, so
//! every program of the machine runs in the host unchanged. A third kind, `replay`, puts the
//! namespaces into one such QEMU machine whose time follows its instruction count.
//!
//! ```text
//!   Lab ── Hosts ──┬─ Machines       N QEMU processes + Switch (Ethernet over unix sockets)
//!                  └─ Namespaces     `ip netns` + bridge, driven through one agent
//!                         ├─ on the machine itself (an agent thread in this process)
//!                         └─ in one QEMU machine under -icount (replay)
//! ```
//!
//! Whatever the kind, commands are run by an [`agent`] at the far end of a byte stream of [`frame`]s,
//! so there is one implementation of output streams, exit codes and kills.
//!
//! Nothing is left behind: QEMU processes get a parent-death signal, namespaces and sockets are removed
//! on drop, and [`daemon`] (the lab a person starts with `./x lab up`) ends itself when idle.
#![forbid(unsafe_code)]

pub mod agent;
pub mod cache;
mod command;
mod cpio;
pub mod daemon;
mod disk;
pub mod distro;
pub mod frame;
mod guest;
mod host_number;
mod hosts;
pub mod http;
pub mod http_seconds;
pub mod http_server;
mod initrd;
mod kernel;
pub mod kernel_build;
mod lab;
mod machine;
mod machines;
mod namespaces;
mod packages;
mod remote;
mod substrate;
mod switch;

pub use command::{Command, ExitStatus, Stream};
pub use disk::{Disk, convert_to_qcow2};
pub use guest::{GuestImage, guest_image, guest_program};
pub use host_number::{HostNumber, MAX_HOSTS};
pub use hosts::{Config, HostState, Hosts, Mode};
pub use kernel::{KernelFiles, guest_kernel};
pub use lab::{Host, Lab, LabState};
pub use remote::{Event, Line, RemoteProcess, Signals};
pub use substrate::{Substrate, substrate};
