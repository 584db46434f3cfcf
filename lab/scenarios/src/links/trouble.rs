//! Trouble between two hosts with soft-RoCE, one case after another: each ends as it is documented.
//!
//! ```text
//!   host 1: tessera-link ask ──(rdma)── host 2: tessera-link serve
//!                    cable out for 1 s | for ever | server killed | no device | no libibverbs
//! ```

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Command, Host, HostNumber, Lab, RemoteProcess};
use serde_json::Value;

use crate::links::program::{self, PORT};

const LIMIT: Duration = Duration::from_secs(120);
/// A lost peer is known after its lease of 3 s; emulated hosts are slow to say so.
const LOSS: Duration = Duration::from_secs(15);
/// An asker is busy for about so long while the cable is out for a second.
const BUSY: Duration = Duration::from_secs(12);
/// Programs find no libibverbs after this.
const HIDE: &str = "for file in /lib/x86_64-linux-gnu/libibverbs.so* /usr/lib/x86_64-linux-gnu/libibverbs.so*; \
                    do [ ! -e $file ] || mount --bind /dev/null $file; done; exec \"$@\"";

/// How an asker's run ended.
#[derive(Debug)]
struct End {
    good: bool,
    said: String,
    after: Duration,
}

struct Links<'a> {
    lab: &'a Lab,
    program: String,
}

/// What is done while both ends talk.
type Harm<'a> = &'a dyn Fn(&Links<'_>, &RemoteProcess) -> Result<()>;

/// Goes through all cases; false when one did not end as it should.
pub(crate) fn check(lab: &Lab) -> Result<bool> {
    let links = Links { lab, program: program::install(lab, &program::build()?)? };
    let mut good = true;
    let mut tell = |case: &str, end: &End, right: bool| {
        let verdict = if right { "good" } else { "BAD" };
        println!("x: {verdict}: {case}: {:.1?}: {}", end.after, end.said.trim());
        good &= right;
    };
    let end = links.talk("rdma", 500, "", &|_, _| Ok(()))?;
    tell("nothing happens", &end, end.good && end.said.contains("\"remote_write\":true"));

    let blink = |links: &Links<'_>, _: &RemoteProcess| {
        links.host(2)?.cut()?;
        thread::sleep(Duration::from_secs(1));
        links.host(2)?.heal()
    };
    let count = trips_in(&end.said, BUSY).context("read how long a trip takes")?;
    let end = links.talk("rdma", count, "", &blink)?;
    tell("cable out for 1 s", &end, end.good && end.after > Duration::from_secs(1));

    let end = links.talk("rdma", 1_000_000, "", &|links, _| links.host(2)?.cut())?;
    links.host(2)?.heal()?;
    tell("cable out for ever", &end, lost(&end));

    let end = links.talk("rdma", 1_000_000, "", &|_, server| server.kill())?;
    tell("server killed", &end, lost(&end));

    let end = links.talk("tcp", 300, HIDE, &|_, _| Ok(()))?;
    tell("tcp without libibverbs", &end, end.good && end.said.contains("\"carrier\":\"tcp\""));
    let end = links.talk("rdma", 300, HIDE, &|_, _| Ok(()))?;
    tell("rdma without libibverbs", &end, !end.good && end.said.contains("libibverbs"));

    links
        .host(2)?
        .output(&Command::shell("rdma link delete rxe0"), LIMIT)
        .context("take the RDMA device away")?;
    let end = links.talk("rdma,tcp", 300, "", &|_, _| Ok(()))?;
    let falls = end.said.contains("\"carrier\":\"tcp\"") && end.said.contains("slice1");
    tell("rdma,tcp and no device on one host", &end, end.good && falls);
    let end = links.talk("rdma", 300, "", &|_, _| Ok(()))?;
    tell("rdma and no device on one host", &end, !end.good && end.said.contains("RDMA port"));
    Ok(good)
}

/// So many trips of each of the three kinds as take about so long, by what an asker found.
fn trips_in(said: &str, time: Duration) -> Option<usize> {
    let found: Value = serde_json::from_str(said.get(said.find('{')?..=said.rfind('}')?)?).ok()?;
    let kinds = ["/echo_64/p50", "/echo_4096/p50", "/page/p50"];
    let all = kinds.iter().map(|kind| found.pointer(kind)?.as_f64()).sum::<Option<f64>>()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded here")]
    Some((time.as_secs_f64() * 1e6 / all).clamp(200.0, 1e6) as usize)
}

fn lost(end: &End) -> bool {
    !end.good && end.said.contains("the server has gone: slice1") && end.after < LOSS
}

impl Links<'_> {
    fn host(&self, number: usize) -> Result<Host<'_>> {
        self.lab.host(HostNumber::new(number)?)
    }

    /// The program with these words, by a shell line that runs before it in a mount namespace of its own, if
    /// there is one.
    fn command(&self, before: &str, words: &[&str]) -> Command {
        let all = [self.program.as_str()].into_iter().chain(words.iter().copied());
        if before.is_empty() {
            return Command::new(all);
        }
        Command::new(["unshare", "--mount", "sh", "-c", before, "sh"].into_iter().chain(all))
    }

    /// Lets both ends talk, harms them once they are connected, and waits for the asker's end.
    fn talk(&self, carrier: &str, count: usize, before: &str, harm: Harm<'_>) -> Result<End> {
        let listen = format!("0.0.0.0:{PORT}");
        let to = format!("{}:{PORT}", self.host(2)?.address());
        let serve = self.command(before, &["serve", "--listen", &listen]);
        let server = program::serve(&self.host(2)?, &serve)?;
        let count = count.to_string();
        let ask = ["ask", "--to", &to, "--carrier", carrier, "--memory", "registered"];
        let ask = [&ask[..], &["--stream", "1", "--count", &count]].concat();
        let mut asker = self.host(1)?.spawn(&self.command(before, &ask))?;
        let (mut said, mut harmed) = (String::new(), None);
        let limit = Instant::now() + LIMIT;
        while !asker.is_over() {
            ensure!(Instant::now() < limit, "the asker does not end; it said {said}");
            let Some(line) = asker.next_line(Duration::from_millis(200)) else { continue };
            said.push_str(&line.text);
            said.push_str(" | ");
            if line.text.contains("connected") {
                // Some frames go to and fro first.
                thread::sleep(Duration::from_secs(1));
                harm(self, &server)?;
                harmed = Some(Instant::now());
            }
        }
        let after = harmed.map_or(Duration::ZERO, |harmed| harmed.elapsed());
        let good = asker.wait(Duration::from_secs(1))?.success();
        program::end(server);
        Ok(End { good, said, after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trips_follow_from_what_an_asker_found() {
        let said = r#"connected | {"echo_64":{"p50":200.0},"echo_4096":{"p50":300.0},"page":{"p50":500.0}} | "#;

        assert_eq!(trips_in(said, Duration::from_secs(2)), Some(2000));
        assert_eq!(trips_in("connected | ", Duration::from_secs(2)), None);
    }

    #[test]
    fn loss_must_be_named_and_in_time() {
        let end = |good, said: &str, after| lost(&End { good, said: said.to_owned(), after });
        let said = "connected | the server has gone: slice1 is silent | ";

        assert!(end(false, said, LOSS / 2));
        assert!(!end(true, said, LOSS / 2));
        assert!(!end(false, said, LOSS));
        assert!(!end(false, "the server has gone: slice0", LOSS / 2));
    }
}
