//! Links the guests by their own scripts, where they are built as guests.

use std::env;

const SCRIPTS: [(&str, &str); 4] = [
    ("microguest", "link.ld"),
    ("mover", "src/mover/link.ld"),
    ("loads", "src/mover/link.ld"),
    ("writer", "src/mover/link.ld"),
];

fn main() {
    for (_, script) in SCRIPTS {
        println!("cargo::rerun-if-changed={script}");
    }
    if env::var_os("CARGO_FEATURE_GUEST").is_none() {
        return;
    }
    let folder = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    for argument in ["-nostartfiles", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none"] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
    for (guest, script) in SCRIPTS {
        println!("cargo::rustc-link-arg-bin={guest}=-Wl,-T{folder}/{script}");
    }
}
