//! Another user than the one whose process a slice is: refused in both languages, whatever the socket's permissions are.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[expect(dead_code, reason = "each test program uses a part of it")]
mod support;

use rustix::process::geteuid;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use support::Served;

/// A user who owns nothing.
const NOBODY: u32 = 65534;
const LINES: &str = r#"
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b'{"pause":{}}\n')
print(s.recv(4096).decode())
"#;
/// Any call will do: a service that is not there is told to nobody either.
const CALL: &str = r#"
import grpc, sys
call = grpc.insecure_channel("unix:" + sys.argv[1]).unary_unary("/tessera.control.v1.VmService/GetVm")
try:
    call(b"", timeout=60)
    print("answered")
except grpc.RpcError as error:
    print(error.code(), dict(error.trailing_metadata())["grpc-status-details-bin"])
"#;

fn say(program: &str, socket: &Path) -> String {
    let mut python = Command::new("/usr/bin/python3");
    let said = python.arg("-c").arg(program).arg(socket).uid(NOBODY).gid(NOBODY).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8_lossy(&said.stdout).into_owned()
}

#[test]
fn other_users_are_refused_in_both_languages() {
    if !geteuid().is_root() {
        needs::skip("only root can be another user");
        return;
    }
    let served = Served::new();
    let socket = served.path();
    // As if its owner had been careless.
    fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(socket.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let line = say(LINES, &socket);
    assert!(line.contains(r#""reason":"not_allowed""#) && line.contains("65534"), "{line}");
    if Path::new("/usr/lib/python3/dist-packages/grpc/__init__.py").exists() {
        let said = say(CALL, &socket);
        assert!(said.contains("PERMISSION_DENIED") && said.contains("NOT_ALLOWED"), "{said}");
    } else {
        needs::leave_out("there is no python3-grpcio: ./x test installs it");
    }
    assert_eq!(served.vm.effects(), 0);
}
