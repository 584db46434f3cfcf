//! Interrupts on their way from other threads to the thread of one vCPU.
//!
//! ```text
//!   post(event): bits set --> `posted` false -> true: ring the doorbell
//!   collect():   `posted` cleared --> bits taken
//! ```
//! A sender that finds `posted` set need not ring: the vCPU has not collected yet and will see the
//! bits. So a burst costs one signal.

use super::VcpuEvent;
use crate::vcpu::Doorbell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

/// Marks a start-up message in the word that also holds its vector.
const STARTUP: u32 = 1 << 8;

/// Interrupts that wait for one vCPU.
#[derive(Debug)]
pub(crate) struct Mailbox {
    fixed: [AtomicU32; 8],
    nmi: AtomicBool,
    init: AtomicBool,
    startup: AtomicU32,
    posted: AtomicBool,
    /// The vCPU was released: whoever posts takes it out again.
    shut: AtomicBool,
    doorbell: Arc<Doorbell>,
}

/// What was waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mail {
    pub(crate) fixed: [u32; 8],
    pub(crate) nmi: bool,
    pub(crate) init: bool,
    pub(crate) startup: Option<u8>,
}

impl Mail {
    /// The same one by one, in the order in which the vCPU takes it in.
    pub(crate) fn events(&self) -> Vec<VcpuEvent> {
        let vectors = (0..=u8::MAX)
            .filter(|vector| self.fixed[usize::from(vector >> 5)] >> (vector & 31) & 1 != 0);
        let init = self.init.then_some(VcpuEvent::Init);
        let startup = self.startup.map(VcpuEvent::Startup);
        let nmi = self.nmi.then_some(VcpuEvent::Nmi);
        init.into_iter().chain(vectors.map(VcpuEvent::Fixed)).chain(startup).chain(nmi).collect()
    }
}

impl Mailbox {
    pub(crate) fn new(doorbell: Arc<Doorbell>) -> Self {
        Self {
            fixed: Default::default(),
            nmi: AtomicBool::new(false),
            init: AtomicBool::new(false),
            startup: AtomicU32::new(0),
            posted: AtomicBool::new(false),
            shut: AtomicBool::new(false),
            doorbell,
        }
    }

    /// Leaves an event and wakes the vCPU. Never blocks.
    pub(crate) fn post(&self, event: VcpuEvent) {
        match event {
            VcpuEvent::Fixed(vector) => {
                self.fixed[usize::from(vector >> 5)].fetch_or(1 << (vector & 31), SeqCst);
            }
            VcpuEvent::Nmi => self.nmi.store(true, SeqCst),
            VcpuEvent::Init => {
                // A start-up message before this INIT is void.
                self.startup.store(0, SeqCst);
                self.init.store(true, SeqCst);
            }
            VcpuEvent::Startup(page) => self.startup.store(STARTUP | u32::from(page), SeqCst),
        }
        if !self.posted.swap(true, SeqCst) {
            self.doorbell.ring();
        }
    }

    /// From now on nobody collects here but who posts, or no longer.
    pub(crate) fn set_shut(&self, shut: bool) {
        self.shut.store(shut, SeqCst);
    }

    /// Looked at after a post: either the post comes before the last look into the mailbox, or this is true.
    pub(crate) fn is_shut(&self) -> bool {
        self.shut.load(SeqCst)
    }

    /// Takes all that waits.
    pub(crate) fn collect(&self) -> Option<Mail> {
        if !self.posted.swap(false, SeqCst) {
            return None;
        }
        let mut mail = Mail::default();
        for (word, slot) in mail.fixed.iter_mut().zip(&self.fixed) {
            *word = slot.swap(0, SeqCst);
        }
        mail.nmi = self.nmi.swap(false, SeqCst);
        mail.init = self.init.swap(false, SeqCst);
        let startup = self.startup.swap(0, SeqCst);
        mail.startup = (startup & STARTUP != 0).then(|| startup.to_le_bytes()[0]);
        Some(mail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn mailbox() -> Mailbox {
        Mailbox::new(Arc::new(Doorbell::default()))
    }

    #[test]
    fn empty_mailbox_gives_nothing() {
        assert_eq!(mailbox().collect(), None);
    }

    #[test]
    fn all_kinds_arrive_once() {
        let mailbox = mailbox();
        mailbox.post(VcpuEvent::Fixed(0x41));
        mailbox.post(VcpuEvent::Nmi);
        mailbox.post(VcpuEvent::Init);
        mailbox.post(VcpuEvent::Startup(0x9a));
        let mail = mailbox.collect().unwrap();
        assert_eq!(mail.fixed[2], 2);
        assert!(mail.nmi && mail.init);
        assert_eq!(mail.startup, Some(0x9a));
        let (fixed, startup) = (VcpuEvent::Fixed(0x41), VcpuEvent::Startup(0x9a));
        assert_eq!(mail.events(), [VcpuEvent::Init, fixed, startup, VcpuEvent::Nmi]);
        assert_eq!(mailbox.collect(), None);
    }

    #[test]
    fn startup_of_page_zero_is_still_a_startup() {
        let mailbox = mailbox();
        mailbox.post(VcpuEvent::Startup(0));
        assert_eq!(mailbox.collect().unwrap().startup, Some(0));
    }

    #[test]
    fn init_voids_an_older_startup() {
        let mailbox = mailbox();
        mailbox.post(VcpuEvent::Startup(1));
        mailbox.post(VcpuEvent::Init);
        assert_eq!(mailbox.collect().unwrap().startup, None);
    }

    #[test]
    fn racing_senders_lose_no_vector() {
        let mailbox = Arc::new(mailbox());
        let senders: Vec<_> = (0..4_u8)
            .map(|part| {
                let mailbox = Arc::clone(&mailbox);
                thread::spawn(move || {
                    for vector in 0..64 {
                        mailbox.post(VcpuEvent::Fixed(part * 64 + vector));
                    }
                })
            })
            .collect();
        let mut seen = [0; 8];
        let mut take = || {
            if let Some(mail) = mailbox.collect() {
                seen.iter_mut().zip(mail.fixed).for_each(|(all, new)| *all |= new);
            }
        };
        while senders.iter().any(|sender| !sender.is_finished()) {
            take();
        }
        take();
        assert_eq!(seen, [u32::MAX; 8]);
    }
}
