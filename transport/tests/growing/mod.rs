//! A mesh that starts with one slice and takes in one after the other, all in this process, over the loopback.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tessera_transport::{
    BootstrapMesh, Config, Credential, Invitation, Listener, Member, Membership, MeshError,
    MeshTransport, PeerLink, Plan, Secret, Summons, VmId,
};
use wire::{Epoch, SliceId};

pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

pub(crate) fn secret(byte: u8) -> Secret {
    Secret::from_bytes(&[byte; 16]).unwrap()
}

pub(crate) fn listener(credential: impl Into<Credential>) -> Listener {
    Listener::bind("127.0.0.1:0".parse().unwrap(), credential).unwrap()
}

/// A VM of one slice.
pub(crate) fn alone(config: Config) -> MeshTransport {
    let members = vec![Member { slice: SliceId(0), address: None }];
    let plan = Plan { vm: VmId([3; 16]), epoch: Epoch(1), members, config, blob: Vec::new() };
    let mut mesh = BootstrapMesh::connect(secret(1), plan, soon()).unwrap();
    assert_eq!(mesh.gather(soon()).unwrap(), []);
    mesh.commit(b"", soon()).unwrap();
    mesh.into_transport(soon(), &mut |_| {}).unwrap()
}

/// A newcomer that does all it is asked.
pub(crate) fn willing(listener: Listener) -> JoinHandle<Result<MeshTransport, MeshError>> {
    thread::spawn(move || {
        let (assignment, mut mesh) = listener.accept(Some(soon()), &mut |_| {})?;
        assert_eq!(assignment.blob, b"join");
        mesh.answer(Ok(b"facts"), soon())?;
        assert_eq!(mesh.verdict(&|| 5_000, soon())?, b"final");
        mesh.into_transport(soon(), &mut |_| {})
    })
}

/// All members meet the newcomer, each on a thread of its own; the links in their order, the bootstrap's first.
pub(crate) fn meet(
    invitation: &mut Invitation<'_>,
    companions: &[&Membership],
    deadline: Instant,
) -> Vec<Result<PeerLink, MeshError>> {
    let summons = invitation.summons().to_vec();
    assert_eq!(summons.len(), companions.len());
    thread::scope(|scope| {
        let all = companions.iter().zip(summons).map(|(membership, (_, summons))| {
            let bytes = summons.encode().unwrap();
            scope.spawn(move || membership.meet(&Summons::decode(&bytes)?, deadline))
        });
        let all: Vec<_> = all.collect();
        let mut links = vec![invitation.meet(deadline)];
        links.extend(all.into_iter().map(|one| one.join().unwrap()));
        links
    })
}

/// One slice more, with the next number.
pub(crate) fn grow(mesh: &mut Vec<MeshTransport>) {
    let slice = SliceId(u16::try_from(mesh.len()).unwrap());
    let listener = listener(secret(1));
    let address = listener.address();
    let newcomer = willing(listener);
    let (bootstrap, companions) = mesh.split_first_mut().unwrap();
    let MeshTransport { transport, membership, .. } = bootstrap;
    let mut invitation = membership.invite(slice, address, b"join", soon()).unwrap();
    assert_eq!(invitation.answer(soon()).unwrap(), Ok(b"facts".to_vec()));
    invitation.commit(b"final", soon()).unwrap();

    let called: Vec<SliceId> = invitation.summons().iter().map(|(slice, _)| *slice).collect();
    let present: Vec<SliceId> = companions.iter().map(|slice| slice.transport.local()).collect();
    assert_eq!(called, present);
    let memberships: Vec<&Membership> = companions.iter().map(|one| &one.membership).collect();
    let mut links = meet(&mut invitation, &memberships, soon()).into_iter().map(Result::unwrap);

    transport.add_peer(links.next().unwrap()).unwrap();
    for (companion, link) in companions.iter_mut().zip(links) {
        companion.transport.add_peer(link).unwrap();
    }
    invitation.admit(b"state", soon()).unwrap();
    let joined = newcomer.join().unwrap().unwrap();
    assert_eq!(joined.state.as_deref(), Some(&b"state"[..]));
    mesh.push(joined);
}

/// Slices `0..n`, of which all but the first joined one after the other.
pub(crate) fn grown(n: u16, config: Config) -> Vec<MeshTransport> {
    let mut mesh = vec![alone(config)];
    (1..n).for_each(|_| grow(&mut mesh));
    mesh
}
