//! Links the guest by its own script, where it is built as the guest.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=link.ld");
    if env::var_os("CARGO_FEATURE_GUEST").is_none() {
        return;
    }
    let folder = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    for argument in ["-nostartfiles", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none"] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
    println!("cargo::rustc-link-arg-bins=-Wl,-T{folder}/link.ld");
}
