//! Peers that come and go while the engine runs. The others notice nothing of it: their places in the list may
//! change, their epoll tokens do not.

use super::Engine;
use super::peer::Peer;
use crate::carrier::{Carrier, TOKENS};
use crate::config::Config;
use crate::link::{AddPeerError, FormerPeer, PeerLink};
use std::io;
use vmm_sys_util::epoll::EpollEvent;
use wire::SliceId;

/// A peer for an engine over such carriers. `config` is that of the transport.
pub(crate) fn link<C: Carrier>(slice: SliceId, carrier: C, config: &Config) -> PeerLink {
    PeerLink::new(slice, Peer::new(slice, carrier, config))
}

impl<C: Carrier> Engine<C> {
    /// Takes one more peer in.
    pub(crate) fn add_peer(&mut self, link: PeerLink) -> Result<(), AddPeerError> {
        let slice = link.peer();
        let peer: Option<Peer<C>> = link.into_body();
        let peer = peer.ok_or(AddPeerError::OtherCarrier { peer: slice })?;
        match self.ids.binary_search(&slice) {
            Err(place) if slice != self.local => self
                .insert(place, peer)
                .map_err(|source| AddPeerError::Watch { peer: slice, source }),
            _ => Err(AddPeerError::Member { peer: slice }),
        }
    }

    /// Gives a peer its place. If that fails, nothing has changed.
    pub(super) fn insert(&mut self, place: usize, mut peer: Peer<C>) -> io::Result<()> {
        peer.register(&self.epoll, self.next_base)?;
        // Tokens are not used twice: a late event of a former peer finds nobody.
        self.next_base += TOKENS;
        if let Some(memory) = &self.memory {
            peer.expose(memory);
        }
        // Something may have come before the descriptors were watched.
        let work = peer.settle();
        self.ids.insert(place, peer.slice());
        self.peers.insert(place, peer);
        let slots = self.peers.len() * usize::try_from(TOKENS).expect("a small constant") + 2;
        self.events.resize(slots, EpollEvent::default());
        if work {
            self.wake();
        }
        Ok(())
    }

    /// Takes a peer out, lost or not. Nothing more is sent to it, and nothing of it is reported.
    pub(crate) fn remove_peer(&mut self, slice: SliceId) -> Option<FormerPeer> {
        let place = self.ids.binary_search(&slice).ok()?;
        self.ids.remove(place);
        let mut peer = self.peers.remove(place);
        peer.part(&self.epoll);
        self.turn = self.turn.checked_rem(self.peers.len()).unwrap_or(0);
        Some(FormerPeer::new(slice, peer))
    }

    /// The peer that a token belongs to.
    pub(super) fn peer_of(&mut self, token: u64) -> Option<&mut Peer<C>> {
        let base = token - token % TOKENS;
        self.peers.iter_mut().find(|peer| peer.base() == base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{self, Pair, ShmTransport};
    use crate::tcp::{self, TcpTransport, loopback, mesh};
    use crate::testing::{fill_page, memory, page_of};
    use crate::traits::{Class, Event, SendError, Transport};
    use std::net::TcpStream;
    use std::time::{Duration, Instant};

    const A: SliceId = SliceId(0);
    const B: SliceId = SliceId(1);
    const C: SliceId = SliceId(2);

    /// A link to a slice, and the other ends.
    fn link(peer: SliceId) -> (PeerLink, [TcpStream; Class::COUNT]) {
        let ends = [(); Class::COUNT].map(|()| loopback().unwrap());
        let [(a, e), (b, f), (c, g), (d, h)] = ends;
        (tcp::link(peer, [a, b, c, d], &Config::default()).unwrap(), [e, f, g, h])
    }

    /// Polls until something comes: a frame, or the cause of a loss.
    fn next(transport: &mut dyn Transport) -> Result<(SliceId, Vec<u8>), String> {
        let end = Instant::now() + Duration::from_secs(60);
        let mut seen = None;
        loop {
            assert!(Instant::now() < end, "nothing came");
            transport.poll(1, &mut |event| {
                seen = Some(match event {
                    Event::Frame { from, bytes, .. } => Ok((from, bytes.to_vec())),
                    Event::Lost { cause, .. } => Err(cause),
                    other => panic!("{other:?}"),
                });
            });
            if let Some(seen) = seen {
                return seen;
            }
        }
    }

    #[test]
    fn member_and_this_slice_are_not_added() {
        let mut mesh = mesh(2, &Config::default()).unwrap();
        let (mut b, mut a) = (mesh.pop().unwrap(), mesh.pop().unwrap());
        for peer in [A, B] {
            let error = a.add_peer(link(peer).0).unwrap_err();
            assert!(matches!(error, AddPeerError::Member { peer: of } if of == peer), "{error}");
        }
        // What is unread where a connection is closed resets it.
        let mut heard = [false; 2];
        while heard != [true; 2] {
            for (heard, transport) in heard.iter_mut().zip([&mut a, &mut b]) {
                transport.poll(1, &mut |event| panic!("{event:?}"));
                transport.take_heard(&mut |_, _| *heard = true);
            }
        }
        drop(b);
        assert!(next(&mut a).unwrap_err().ends_with("closed the connection"));
        // A lost peer keeps its place until it is removed.
        assert!(matches!(a.add_peer(link(B).0), Err(AddPeerError::Member { peer: B })));
        assert_eq!(a.remove_peer(B).unwrap().peer(), B);
        assert!(a.peers().is_empty());
        let (again, _others) = link(B);
        a.add_peer(again).unwrap();
        assert_eq!(a.peers(), &[B]);
        assert_eq!(a.send(B, Class::Bulk, &[], &[]), Ok(()));
    }

    #[test]
    fn nothing_of_a_removed_peer_is_reported_and_what_came_early_from_an_added_one_is() {
        let mut mesh = mesh(2, &Config::default()).unwrap();
        let (mut b, mut a) = (mesh.pop().unwrap(), mesh.pop().unwrap());
        b.send(A, Class::Coherence, b"late", &[]).unwrap();
        let (near, [e, f, g, h]) = link(C);
        let mut c =
            TcpTransport::from_streams(C, vec![(A, [e, f, g, h])], Config::default()).unwrap();
        c.send(A, Class::Bulk, b"early", &[]).unwrap();

        a.add_peer(near).unwrap();
        // Kept for a while: what is left of it must neither speak nor wake anybody.
        let former = a.remove_peer(B).unwrap();

        assert_eq!(next(&mut a), Ok((C, b"early".to_vec())));
        assert_eq!(a.send(B, Class::Bulk, &[], &[]), Err(SendError::Gone));
        let told = next(&mut b).unwrap_err();
        assert!(told.contains("the connection"), "it hears it before the lease ends: {told}");
        for _ in 0..5 {
            assert_eq!(a.poll(16, &mut |event| panic!("{event:?}")), 0);
        }
        assert_eq!(former.peer(), B);
    }

    /// A newcomer is given the memory that was exposed when it was not there yet, also by a slice that was alone.
    #[test]
    fn exposed_memory_is_given_to_a_peer_that_is_added() {
        let (near, far) = Pair::in_process(A, B).unwrap();
        let alone = |slice| ShmTransport::new(slice, Vec::new(), Config::default()).unwrap();
        let (mut a, mut b) = (alone(A), alone(B));
        let memories = [memory(), memory()];
        assert!(!a.expose(&memories[0]) && !b.expose(&memories[1]), "there is nobody yet");
        a.add_peer(shm::link(near, &Config::default())).unwrap();
        b.add_peer(shm::link(far, &Config::default())).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while !a.has_remote_write(B) {
            assert!(Instant::now() < end, "the memory was not given");
            a.poll(16, &mut |event| panic!("{event:?}"));
            b.poll(16, &mut |event| panic!("{event:?}"));
        }
        fill_page(&memories[0], 3, 7);

        a.remote_write(B, Class::Coherence, b"head", 3 * 4096, 1).unwrap();

        assert_eq!(next(&mut b), Ok((A, b"head".to_vec())));
        assert_eq!(page_of(&memories[1], 3), 7);
    }
}
