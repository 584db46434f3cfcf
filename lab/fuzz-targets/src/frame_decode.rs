//! The frame decoder: no panic, and the same frames however the bytes are cut.

use transport::Class;
use transport::frame::{Decoder, FrameError, Received};

/// What came out: the data frames and credits, and the error that ended the stream.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    data: Vec<Vec<u8>>,
    credits: Vec<u32>,
    heartbeats: usize,
    error: Option<FrameError>,
}

fn decode(class: Class, mut bytes: &[u8], step: usize) -> Outcome {
    let mut decoder = Decoder::new(class);
    let mut outcome = Outcome::default();
    while !bytes.is_empty() {
        let room = decoder.room();
        assert!(!room.is_empty(), "a drained decoder has room");
        let count = bytes.len().min(step).min(room.len());
        room[..count].copy_from_slice(&bytes[..count]);
        decoder.filled(count);
        bytes = &bytes[count..];
        loop {
            let announced = decoder.has_frame();
            match decoder.next_frame() {
                Ok(None) => {
                    assert!(!announced);
                    break;
                }
                Ok(Some(Received::Data(data))) => outcome.data.push(data.to_vec()),
                Ok(Some(Received::Credit(bytes))) => outcome.credits.push(bytes),
                Ok(Some(Received::Heartbeat(_))) => outcome.heartbeats += 1,
                Err(error) => {
                    outcome.error = Some(error);
                    return outcome;
                }
            }
        }
    }
    outcome
}

pub(crate) fn run(input: &[u8]) {
    let [class, step, bytes @ ..] = input else { return };
    let class = Class::ALL[usize::from(*class) % Class::COUNT];
    let cut = decode(class, bytes, usize::from(*step) + 1);
    let whole = decode(class, bytes, usize::MAX);
    assert_eq!(cut, whole);
}
