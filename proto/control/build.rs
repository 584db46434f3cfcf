//! Compiles the .proto files: without `protoc`, by code in Rust.

use prost::Message;
use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

/// The files with services; what they import is found by itself.
const FILES: [&str; 4] = [
    "tessera/control/v1/agent.proto",
    "tessera/control/v1/cluster.proto",
    "tessera/control/v1/vm_service.proto",
    "google/longrunning/operations.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // What reflection tells: with all imports, so that a client needs no file of ours.
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
