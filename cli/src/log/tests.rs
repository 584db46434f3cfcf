use super::*;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

const LONG: Duration = Duration::from_secs(60);

/// Takes a write when it is told to, or refuses it.
struct Reader {
    may: Receiver<bool>,
    read: Sender<String>,
}

impl Write for Reader {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.may.recv().is_ok_and(|may| may) {
            return Err(ErrorKind::BrokenPipe.into());
        }
        self.read.send(String::from_utf8_lossy(bytes).into_owned()).unwrap();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines on their way to a reader. With `Lines`: what lets it read, and what it has read.
fn carried() -> (Arc<Lines>, Sender<bool>, Receiver<String>) {
    let lines = Arc::new(Lines::new());
    let ((allow, may), (read, seen)) = (channel(), channel());
    let own = Arc::clone(&lines);
    thread::spawn(move || own.carry(Reader { may, read }));
    (lines, allow, seen)
}

fn allow(allow: &Sender<bool>, all: &[bool]) {
    all.iter().for_each(|one| allow.send(*one).unwrap());
}

fn lost(count: u64) -> String {
    format!("tessera: {count} lines for standard error were lost\n")
}

#[test]
fn lines_that_nobody_takes_are_bounded_and_the_oldest_are_counted() {
    let lines = Lines::new();
    let line = [b'x'; 1024];
    for _ in 0..1000 {
        (&lines).write_all(&line).unwrap();
    }
    lines.push(b"last");

    let state = lines.lock();
    assert!(state.bytes <= LINES_BYTES);
    assert_eq!(state.bytes, state.waiting.iter().map(|line| line.len()).sum::<usize>());
    assert_eq!(state.lost + state.waiting.len() as u64, 1001);
    assert_eq!(state.waiting.len(), LINES_BYTES / 1024);
    assert_eq!(state.waiting.back().unwrap()[..], *b"last");
}

#[test]
fn line_that_is_too_long_is_lost_as_all_before_it_and_stops_nothing() {
    let lines = Lines::new();
    lines.push(b"short");
    lines.push(&vec![b'x'; LINES_BYTES + 1]);
    lines.push(b"next");
    assert_eq!(lines.take(), (Box::from(*b"next"), 2));
    assert_eq!(lines.lock().bytes, 0);
}

#[test]
fn reader_that_goes_on_is_told_at_the_gap_what_was_lost() {
    let (lines, may, seen) = carried();
    lines.push(b"first");
    while !lines.lock().taken {
        thread::yield_now();
    }
    // It is stuck in the first one.
    lines.push(b"lost");
    lines.push(&[b'x'; LINES_BYTES]);
    allow(&may, &[true; 3]);
    assert_eq!(seen.recv().unwrap(), "first");
    assert_eq!(seen.recv().unwrap(), lost(1));
    assert_eq!(seen.recv().unwrap().len(), LINES_BYTES);
}

#[test]
fn errors_lose_lines_and_do_not_end_the_writer() {
    let (lines, may, seen) = carried();
    // The first line; the count and the second; the count and the third.
    allow(&may, &[false, false, false, true, true]);
    for line in ["one", "two", "three"] {
        lines.push(line.as_bytes());
    }
    assert_eq!(seen.recv().unwrap(), lost(2));
    assert_eq!(seen.recv().unwrap(), "three");
    allow(&may, &[true]);
    lines.push(b"four");
    assert_eq!(seen.recv().unwrap(), "four");
}

#[test]
fn end_waits_for_a_reader_that_reads_and_not_for_one_that_has_stopped() {
    let (lines, may, seen) = carried();
    lines.finish(LONG);
    lines.push(b"one");
    lines.push(b"two");
    lines.finish(Duration::from_millis(1));
    assert!(lines.lock().taken || !lines.lock().waiting.is_empty());
    allow(&may, &[true, false]);
    let start = Instant::now();
    lines.finish(LONG);
    assert!(start.elapsed() < LONG);
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), ["one"]);
}

#[test]
fn descriptor_that_does_not_wait_is_waited_for() {
    let (mut reader, writer) = UnixStream::pair().unwrap();
    writer.set_nonblocking(true).unwrap();
    let sent = vec![b'x'; 8 << 20];
    let size = sent.len();
    let thread = thread::spawn(move || Descriptor(writer).write_all(&sent));
    let mut read = Vec::new();
    reader.read_to_end(&mut read).unwrap();
    thread.join().unwrap().unwrap();
    assert_eq!(read.len(), size);

    let (reader, writer) = UnixStream::pair().unwrap();
    drop(reader);
    let error = Descriptor(writer).write_all(b"x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}
