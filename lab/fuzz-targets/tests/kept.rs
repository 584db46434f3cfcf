//! Each kept input, and changes of it, find nothing. libFuzzer, which looks for more, is guided by what is reached; these are not.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;
use tessera_fuzz_targets::{TARGETS, Target};

/// Changes of each kept input.
const CHANGES: usize = 40;
/// For all of one target: an input that never ends is a finding too.
const LIMIT: Duration = Duration::from_secs(300);

fn kept(target: &str) -> Vec<Vec<u8>> {
    let path = format!("../../fuzz/corpus/{target}.hex");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = fs::read_to_string(&path).expect("./x fuzz --keep makes it");
    let byte = |line: &str, at| u8::from_str_radix(&line[at..at + 2], 16).expect("two digits");
    let bytes = |line: &str| (0..line.len()).step_by(2).map(|at| byte(line, at)).collect();
    text.lines().map(bytes).collect()
}

/// The same with some bytes others, more, fewer, or from another one.
fn changed(input: &[u8], other: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..random.usize(1..=4) {
        let at = random.usize(0..=bytes.len());
        match random.u8(0..6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.u8(0..8),
            1 if at < bytes.len() => {
                bytes[at] = random.choice([0, 1, 0x7f, 0x80, 0xff]).unwrap_or(0);
            }
            2 => bytes.truncate(at),
            3 => bytes.insert(at, random.u8(..)),
            4 => bytes.truncate(at.max(1)),
            _ => bytes.extend_from_slice(&other[random.usize(0..=other.len())..]),
        }
    }
    bytes
}

/// The first input that finds something.
fn finding(target: Target, inputs: &[Vec<u8>], seed: u64) -> Option<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(seed);
    let finds = |input: &[u8]| catch_unwind(AssertUnwindSafe(|| target(input))).is_err();
    for input in inputs {
        if finds(input) {
            return Some(input.clone());
        }
        for _ in 0..CHANGES {
            let other = &inputs[random.usize(..inputs.len())];
            let bytes = changed(input, other, &mut random);
            if finds(&bytes) {
                return Some(bytes);
            }
        }
    }
    None
}

#[test]
fn kept_inputs_and_changes_of_them_find_nothing() {
    let (sender, found) = channel();
    for (number, (name, target)) in (0..).zip(TARGETS) {
        let (sender, inputs) = (sender.clone(), kept(name));
        thread::spawn(move || sender.send((name, inputs.len(), finding(target, &inputs, number))));
    }
    for _ in TARGETS {
        let (name, inputs, found) = found.recv_timeout(LIMIT).expect("no input takes for ever");
        println!("{name}: {inputs} inputs, {CHANGES} changes of each");
        assert!(inputs > 5, "{name}");
        assert_eq!(found, None, "{name}: keep it in a test of the decoder");
    }
}

#[test]
fn finding_is_found() {
    let target = |input: &[u8]| assert!(!input.ends_with(&[9]), "found");
    assert_eq!(finding(target, &[vec![8, 9]], 0), Some(vec![8, 9]));
    // None that is kept, but one bit from one.
    assert!(finding(target, &vec![vec![1, 8]; 20], 0).is_some());
}
