//! Whose lines these are: a slice of a VM, by the name that its agent has given it, or else by what the slice finds out itself.
//!
//! ```text
//!   TESSERA_NAME=vms/VM/slices/NUMBER --> that name, from the first line on
//!   without --> nothing --the VM is agreed on--> the VM's id --the slice is made--> its number too
//! ```

use anyhow::{Context, Result};
use std::sync::OnceLock;
use vmm::named;

/// What an agent names its slices by.
pub(super) const NAME: &str = "TESSERA_NAME";

/// The name that was given; none if this process is no slice.
static GIVEN: OnceLock<Given> = OnceLock::new();

#[derive(Debug)]
struct Given(Option<Owner>);

/// A slice, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) vm: Option<String>,
    pub(super) slice: Option<u16>,
}

fn parse(text: &str) -> Result<Owner> {
    let parts = text.strip_prefix("vms/").and_then(|rest| rest.split_once("/slices/"));
    let parsed = parts.and_then(|(vm, number)| {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let fits = vm.len() == 32 && vm.bytes().all(is_digit);
        fits.then_some(Owner { vm: Some(vm.to_owned()), slice: Some(number.parse().ok()?) })
    });
    parsed.with_context(|| {
        format!(
            "{NAME} is {text:?}, and not vms/VM/slices/NUMBER, where VM has 32 hexadecimal digits"
        )
    })
}

impl Owner {
    /// This process is a slice.
    pub(super) fn be_slice() -> Result<()> {
        let given = match std::env::var_os(NAME) {
            Some(text) => Some(parse(&text.to_string_lossy())?),
            None => None,
        };
        // There is one role for a process.
        let _ = GIVEN.set(Given(given));
        Ok(())
    }

    /// That of this process, if it is a slice.
    pub(super) fn of_process() -> Option<Self> {
        let Given(given) = GIVEN.get()?;
        let found = || Self { vm: named::vm(), slice: named::slice().map(|slice| slice.0) };
        Some(given.clone().unwrap_or_else(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_names_of_slices_are_taken() {
        let vm = "0123456789abcdef".repeat(2);
        let owner = Owner { vm: Some(vm.clone()), slice: Some(65_535) };

        assert_eq!(parse(&format!("vms/{vm}/slices/65535")).unwrap(), owner);
        for wrong in ["", "vms/x/slices/1", &format!("vms/{vm}"), &format!("vms/{vm}/slices/65536")]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse(&format!("vms/{}/slices/1", vm.to_uppercase())).is_err());
    }
}
