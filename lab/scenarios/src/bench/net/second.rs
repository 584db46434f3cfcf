//! The guest's second network device, with coherent rings.

use anyhow::{Context, Result, ensure};
use lab::distro::GUEST_ADDRESS;

use crate::bench::devices::{Setup, Tap};

/// Its tap.
pub(crate) const TAP: Tap = Tap { name: "tap1", address: "192.168.78.1/24" };
/// Address of the guest there.
pub(crate) const ADDRESS: &str = "192.168.78.2";
const MAC: &str = "52:54:00:78:00:02";

/// Options of `tessera bootstrap`.
pub(crate) fn device() -> Vec<String> {
    vec!["--net".to_owned(), format!("{},mac={MAC},rings=coherent", TAP.name)]
}

/// Gives the second device its own address; until now the guest took both for the first. There is no
/// message bus in the guest by which networkd could be told.
pub(crate) fn give_address(setup: &Setup<'_>) -> Result<()> {
    let line = format!(
        "set -e; nic=; for path in /sys/class/net/*; do \
         if [ \"$(cat \"$path/address\")\" = {MAC} ]; then nic=${{path##*/}}; fi; done; \
         [ -n \"$nic\" ] || {{ echo no device has the address {MAC} >&2; exit 1; }}; \
         ip address replace {ADDRESS}/24 dev $nic; \
         ip address delete {GUEST_ADDRESS}/24 dev $nic 2>/dev/null || true; ip link set $nic up; \
         ip -4 -o address show dev $nic"
    );
    let said = setup.guest.ssh(&line).context("give the second network device its address")?;
    let right = said.contains(ADDRESS) && !said.contains(&format!("{GUEST_ADDRESS}/"));
    ensure!(right, "the second network device has other addresses: {}", said.trim());
    setup.rig.say(&format!("second network device of the guest: {}", said.trim()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::distro;

    #[test]
    fn second_tap_is_another_one() {
        assert_ne!(TAP.name, distro::TAP);
    }
}
