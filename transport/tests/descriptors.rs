//! A companion on a machine without a descriptor to spare. Alone in its process, whose limit it lowers.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{self, File};
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};
use tessera_transport::{BootstrapMesh, Config, Listener, Member, MeshError, Plan, Secret, VmId};
use wire::{Epoch, SliceId};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[test]
fn want_of_descriptors_is_waited_out() {
    let secret = Secret::from_bytes(&[1; 16]).unwrap();
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), secret.clone()).unwrap();
    let address = listener.address();
    let (tell, told) = channel();
    let companion = thread::spawn(move || {
        let accepted = listener.accept(Some(soon()), &mut |refused| {
            tell.send(matches!(refused.error, MeshError::NoRoom(_))).unwrap();
        });
        accepted.map(|(assignment, mesh)| (assignment.local, mesh))
    });
    // A refusal: it waits, and has all that it needs for that.
    TcpStream::connect(address).unwrap().shutdown(std::net::Shutdown::Both).unwrap();
    assert!(!told.recv_timeout(Duration::from_secs(60)).unwrap());

    let deadline = soon();
    let open = u64::try_from(fs::read_dir("/proc/self/fd").unwrap().count()).unwrap();
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(open + 20), maximum }).unwrap();
    let mut all = Vec::new();
    loop {
        while let Ok(file) = File::open("/dev/null") {
            all.push(file);
        }
        // One descriptor for the caller, none for the companion. It may have closed one since, of a caller before.
        drop(all.pop());
        let _idle = TcpStream::connect(address).unwrap();
        if told.recv_timeout(Duration::from_secs(60)).unwrap() {
            break;
        }
        assert!(Instant::now() < deadline, "no caller finds the companion without a descriptor");
    }
    drop(all);

    let members = vec![
        Member { slice: SliceId(0), address: None },
        Member { slice: SliceId(1), address: Some(address) },
    ];
    let config = Config::default();
    let plan = Plan { vm: VmId([3; 16]), epoch: Epoch(1), members, config, blob: Vec::new() };
    let _mesh = BootstrapMesh::connect(secret, plan, soon()).unwrap();

    assert_eq!(companion.join().unwrap().unwrap().0, SliceId(1));
}
