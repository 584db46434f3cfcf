//! The one fuzz program: the target is that of this name (`TESSERA_FUZZ_TARGET`). They share all that takes long to build.

#![no_main]

use fuzz_targets::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;
use std::env;
use std::sync::OnceLock;

static CHOSEN: OnceLock<Target> = OnceLock::new();

fn chosen() -> Target {
    let name = env::var("TESSERA_FUZZ_TARGET").expect("TESSERA_FUZZ_TARGET names a target");
    let found = TARGETS.iter().find(|(target, _)| *target == name);
    found.expect("TESSERA_FUZZ_TARGET is one of the files in lab/fuzz-targets/src").1
}

fuzz_target!(init: { CHOSEN.set(chosen()).expect("it begins once"); }, |input: &[u8]| {
    if let Some(target) = CHOSEN.get() {
        target(input);
    }
});
