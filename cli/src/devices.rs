//! The options that give a VM devices. Each kind of device reads its own words
//! (`vmm/src/slice/peripherals`).

use clap::Args;
use vmm::slice::{DeviceSpec, Rings, RngSpec};

#[derive(Args, Debug)]
pub(crate) struct Devices {
    /// A virtio disk: `PATH[,readonly][,format=raw|qcow2][,slice=K][,standby=J[:PATH]][,rings=bypass|coherent]`
    ///
    /// - PATH is an image file or block device on the host of slice K (0, the bootstrap, if not given).
    /// - The format is raw if not given. It is never guessed.
    /// - `rings=bypass`, the default, reads the queues where their vCPUs run. `rings=coherent` reads them at the
    ///   device, so that rings and payload travel as pages. It is slow and meant for comparison.
    /// - `standby=J`: the host of slice J reaches the same image, as PATH or as the path behind the colon. When slice K
    ///   is drained, the disk goes there. May be given several times.
    #[arg(long = "disk", value_name = "DISK", value_parser = |text: &str| parse("disk", text), verbatim_doc_comment)]
    disks: Vec<DeviceSpec>,
    /// A virtio network device: `TAP[,mac=MAC][,slice=K][,standby=J[:TAP]][,rings=bypass|coherent]`
    ///
    /// - TAP is a tap interface on the host of slice K. It has a queue pair for each vCPU.
    /// - A tap that exists must be multi_queue and vnet_hdr. One that does not exist is made, and vanishes with
    ///   the process.
    /// - The address is made from the device's number if not given.
    /// - `rings` means the same as for --disk.
    /// - `standby=J`: the host of slice J has a tap in the same bridged network, of the same name or the one behind the
    ///   colon. When slice K is drained, the network goes there. Both taps must exist.
    #[arg(long = "net", value_name = "NIC", value_parser = |text: &str| parse("net", text), verbatim_doc_comment)]
    nics: Vec<DeviceSpec>,
    /// A virtio source of randomness
    #[arg(long)]
    rng: bool,
    /// A virtio console (hvc0, hvc1, ...) beside the serial line: `stdio`, `file=PATH` or `socket=PATH`
    ///
    /// Each may end with `,slice=K`, for an end on the host of slice K.
    ///
    /// - `stdio`: standard input and output of slice K's process.
    /// - `file`: output is added to the file. There is no input.
    /// - `socket`: a UNIX socket for one client at a time.
    ///
    /// The last 256 KiB of output that nobody takes are kept.
    #[arg(
        long = "console",
        value_name = "CONSOLE",
        value_parser = |text: &str| parse("console", text),
        verbatim_doc_comment
    )]
    consoles: Vec<DeviceSpec>,
    /// Sockets between guest and host (virtio-vsock): `cid=N,socket=PATH[,slice=K]`
    ///
    /// - N is the guest's address (CID), 3 to 4294967294.
    /// - PATH is a UNIX socket that is made on the host of slice K. A program of that host connects to it and says
    ///   `CONNECT PORT` to reach the guest.
    /// - A guest that connects to CID 2, port P, reaches whoever listens at PATH_P on that host.
    ///
    /// A VM has one such device at most. See docs/operations.md.
    #[arg(
        long,
        value_name = "VSOCK",
        value_parser = |text: &str| parse("vsock", text),
        verbatim_doc_comment
    )]
    vsock: Option<DeviceSpec>,
}

fn parse(option: &str, text: &str) -> Result<DeviceSpec, String> {
    DeviceSpec::parse(option, text)
}

impl Devices {
    /// All devices: disks, then network devices, then the rest.
    pub(crate) fn specs(&self) -> Vec<DeviceSpec> {
        let (disks, nics) = (self.disks.iter().cloned(), self.nics.iter().cloned());
        let rng = DeviceSpec {
            slice: 0,
            rings: Rings::Bypass,
            standby: Vec::new(),
            kind: RngSpec {}.into(),
        };
        let rng = self.rng.then_some(rng);
        let consoles = self.consoles.iter().cloned();
        disks.chain(nics).chain(rng).chain(consoles).chain(self.vsock.clone()).collect()
    }
}
