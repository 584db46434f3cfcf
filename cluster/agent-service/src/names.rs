//! Names of the API: `vms/VM/slices/NUMBER`, where VM has 32 hexadecimal digits.

use agent::decide::{SliceName, Vm};

/// 128 bits as 32 hexadecimal digits, in small letters: each thing has one name.
pub(crate) fn digits(text: &str) -> Option<u128> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_it = text.len() == 32 && text.bytes().all(is_digit);
    is_it.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// A number without signs and leading zeros.
fn number(text: &str) -> Option<u16> {
    let parsed: u16 = text.parse().ok()?;
    (parsed.to_string() == text).then_some(parsed)
}

pub(crate) fn vm(name: &str) -> Option<Vm> {
    digits(name.strip_prefix("vms/")?).map(Vm)
}

pub(crate) fn slice(name: &str) -> Option<SliceName> {
    let (before, after) = name.split_once("/slices/")?;
    Some(SliceName { vm: vm(before)?, number: number(after)? })
}

pub(crate) fn vm_name(vm: Vm) -> String {
    format!("vms/{vm}")
}

pub(crate) fn slice_name(slice: SliceName) -> String {
    format!("vms/{}/slices/{}", slice.vm, slice.number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn other_spellings_are_no_names() {
        let vm = "0123456789abcdef0123456789abcdef";
        assert!(slice(&format!("vms/{vm}/slices/7")).is_some());
        for wrong in [
            format!("vms/{vm}/slices/07"),
            format!("vms/{vm}/slices/+7"),
            format!("vms/{vm}/slices/65536"),
            format!("vms/{vm}/slices/7/"),
            format!("vms/{}/slices/7", vm.to_uppercase()),
            format!("vms/+{}/slices/7", &vm[1..]),
            format!("vms/{vm}0/slices/7"),
            "vms/-/slices/7".into(),
            String::new(),
        ] {
            assert_eq!(slice(&wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn names_come_back(vm: u128, number: u16) {
            let name = SliceName { vm: Vm(vm), number };
            prop_assert_eq!(slice(&slice_name(name)), Some(name));
        }

        #[test]
        fn any_text_is_survived(text in ".{0,80}") {
            let _ = (slice(&text), vm(&text), digits(&text));
        }
    }
}
