//! The options that give a VM devices. Each kind of device reads its own words
//! (`vmm/src/slice/peripherals`).

use clap::Args;
use vmm::slice::{DeviceSpec, Rings, RngSpec};

#[derive(Args, Debug)]
pub(crate) struct Devices {
    /// A disk: `PATH[,readonly][,format=raw|qcow2][,slice=K][,rings=WHERE]`, an image or block device on the
    /// host of slice K (0, this one, if not given). Its rings are read at the queue's vCPU (bypass, usual) or
    /// at the device (coherent: they travel as pages; slow, for comparison)
    #[arg(long = "disk", value_name = "DISK", value_parser = |text: &str| parse("disk", text))]
    disks: Vec<DeviceSpec>,
    /// A network device: `TAP[,mac=MAC][,slice=K][,rings=WHERE]`, a tap interface on the host of slice K
    #[arg(long = "net", value_name = "NIC", value_parser = |text: &str| parse("net", text))]
    nics: Vec<DeviceSpec>,
    /// Give the guest a source of randomness
    #[arg(long)]
    rng: bool,
    /// A console (hvc0, hvc1, ...) beside the serial line: `stdio`, `file=PATH` (output only) or
    /// `socket=PATH` (one client at a time), each with `[,slice=K]`, on the host of slice K
    #[arg(long = "console", value_name = "CONSOLE", value_parser = |text: &str| parse("console", text))]
    consoles: Vec<DeviceSpec>,
    /// Sockets between guest and host (vsock): `cid=N,socket=PATH[,slice=K]`. Clients on the host of slice K connect
    /// to PATH and say `CONNECT PORT`; the guest, whose address is N, reaches at port P whoever listens at PATH_P
    #[arg(long, value_name = "VSOCK", value_parser = |text: &str| parse("vsock", text))]
    vsock: Option<DeviceSpec>,
}

fn parse(option: &str, text: &str) -> Result<DeviceSpec, String> {
    DeviceSpec::parse(option, text)
}

impl Devices {
    /// All devices: disks, then network devices, then the rest.
    pub(crate) fn specs(&self) -> Vec<DeviceSpec> {
        let (disks, nics) = (self.disks.iter().cloned(), self.nics.iter().cloned());
        let rng = DeviceSpec { slice: 0, rings: Rings::Bypass, kind: RngSpec {}.into() };
        let rng = self.rng.then_some(rng);
        let consoles = self.consoles.iter().cloned();
        disks.chain(nics).chain(rng).chain(consoles).chain(self.vsock.clone()).collect()
    }
}
