//! What threads see of memory when a slice is lost: what is right, or nothing.

use crate::support::{LIMIT, Silent, Slice, start};
use std::ptr::with_exposed_provenance;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use tessera_dsm::{Memory, Replicate};

const FRAMES: u64 = 1024;
/// Pages that the lost slice wrote last: one of its own home, one of the other's.
const TAKEN: [u64; 2] = [3, FRAMES - 3];
/// How long it is watched that nothing happens. What is wrong happens at once.
const QUIET: Duration = Duration::from_millis(300);

#[test]
fn uffd_pages_of_a_lost_slice_are_waited_for_until_the_process_ends() {
    let nothing = |_| Box::new(Silent) as _;
    let Some([survivor, lost]) = start(FRAMES, Memory::default(), Replicate::Nothing, nothing)
    else {
        return;
    };
    for frame in TAKEN {
        survivor.word(frame, 0).store(1, Ordering::SeqCst);
        lost.word(frame, 0).store(2, Ordering::SeqCst);
    }
    lost.handle.stop();
    lost.thread.join().unwrap();
    // Ends by itself, since it has lost the other.
    let Slice { ram, thread: engine, guest, handle } = survivor;
    engine.join().unwrap();

    let (sender, seen) = channel();
    for frame in TAKEN {
        let (sender, ram) = (sender.clone(), Arc::clone(&ram));
        let address = guest + usize::try_from(frame).unwrap() * 4096;
        // Nobody joins it: it is to wait for as long as the process lives.
        thread::spawn(move || {
            // SAFETY: inside the guest mapping, which `ram` keeps; aligned.
            let word = unsafe { &*with_exposed_provenance::<AtomicU64>(address) };
            let _ = sender.send((frame, word.load(Ordering::SeqCst)));
            drop(ram);
        });
    }

    assert_eq!(seen.recv_timeout(QUIET), Err(RecvTimeoutError::Timeout), "frame and what was read");
    assert!(handle.report(LIMIT).is_none(), "the engine has ended");
}
