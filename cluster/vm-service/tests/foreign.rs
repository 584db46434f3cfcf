//! A client of the API in another language, by another implementation of gRPC, that learns by reflection what there is.

#[expect(dead_code, reason = "each test program uses a part of it")]
mod support;

use std::process::Command;
use support::Served;

/// Where Debian puts what the client needs; `./x test` installs it.
const GRPC: &str = "/usr/lib/python3/dist-packages/grpc/__init__.py";

#[test]
fn python_gets_watches_moves_and_drains_by_reflection_alone() {
    if !std::path::Path::new(GRPC).exists() {
        needs::skip("there is no python3-grpcio: ./x test installs it");
        return;
    }
    let served = Served::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/foreign/client.py");
    let client = Command::new("/usr/bin/python3").arg(script).arg(served.path()).output().unwrap();
    let said = String::from_utf8_lossy(&client.stdout);
    let complained = String::from_utf8_lossy(&client.stderr);
    assert!(client.status.success(), "{said}\n{complained}");
    let services = said.lines().next().unwrap();
    for service in ["google.longrunning.Operations", "tessera.control.v1.VmService"] {
        assert!(services.contains(service), "{services}");
    }
    assert!(said.ends_with("done\n"), "{said}");
    // The move twice with one id, and the drain.
    assert_eq!(served.vm.effects(), 2);
}
