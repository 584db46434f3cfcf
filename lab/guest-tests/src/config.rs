//! What to run: from the kernel command line (as `/init`) or from arguments (as a program).
//!
//! | kernel command line | argument | meaning |
//! |---|---|---|
//! | `tessera.tests=LIST` | `--tests LIST` | `all` (default), `none`, or names and name prefixes |
//! | `tessera.rounds=N` | `--rounds N` | scale of the iterations, 1 by default |
//! | `tessera.limit=S` | `--limit S` | time limit of one test in seconds, 120 x N by default |
//! | `tessera.stress=KIND:S,..` | `--stress ..` | `forks` or `modules` for S seconds |
//! | `tessera.disks=N` | `--disks N` | no tests: write records to disks, life N, until they fail |
//! | `tessera.versions=1` | `--versions 1` | beside the tests: write versions of blocks to the first disk, and check them |
//! | `tessera.talk=N` | `--talk N` | writers to disks print N bytes more with each batch |
//! | `tessera.net=ADDRESS` | | echo datagrams on the first network device, which gets this address and prefix length |
//! | `tessera.programs=N` | `--programs N` | no tests: N rounds of programs that are timed |
//! | `tessera.task=N` | `--task N` | a task of these programs takes N million steps, 2000 unless given |
//! | `tessera.sharing=N` | `--sharing N` | no tests: operations of the kernel, N times as many as usual, for counting what they cost |
//! | `tessera.pause=MS` | `--pause MS` | for how long they pause at each mark, in milliseconds of the guest's clock |
//! | `tessera.vcpus=N` | | no tests: use a CPU that comes while the machine runs and see it go, N times |
//! | `tessera.after=WHAT` | | `poweroff` (default), `reboot`, `shell`, `hang`, `panic` |

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tessera_guest_tests::MOST_SHARING_PAUSE;

/// Upper bound of `rounds`: result bytes of one litmus test then still fit the arena.
pub(crate) const MOST_ROUNDS: u32 = 1000;

/// Which tests to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selection {
    /// Every test.
    All,
    /// No test.
    None,
    /// Tests with one of these names, or a name that starts with one of them and a dash.
    Only(Vec<String>),
}

impl Selection {
    fn parse(text: &str) -> Result<Self> {
        match text {
            "all" => Ok(Self::All),
            "none" => Ok(Self::None),
            "" => bail!("empty list of tests"),
            list => Ok(Self::Only(list.split(',').map(str::to_owned).collect())),
        }
    }

    /// Whether a test of this name is wanted.
    pub(crate) fn wants(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Only(list) => list.iter().any(|item| covers(item, name)),
        }
    }

    /// The first item of the list that stands for none of the names.
    pub(crate) fn unknown<'a>(&'a self, names: &[&str]) -> Option<&'a str> {
        let Self::Only(list) = self else { return None };
        let known = |item: &&String| names.iter().any(|name| covers(item, name));
        list.iter().find(|item| !known(item)).map(String::as_str)
    }
}

fn covers(item: &str, name: &str) -> bool {
    name.strip_prefix(item).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// What pid 1 does when the tests are over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Power the machine off.
    PowerOff,
    /// Restart it.
    Reboot,
    /// Give a busybox shell on the console, then power off.
    Shell,
    /// Stay, doing nothing.
    Hang,
    /// Crash the kernel.
    Panic,
}

impl After {
    fn parse(text: &str) -> Result<Self> {
        Ok(match text {
            "poweroff" => Self::PowerOff,
            "reboot" => Self::Reboot,
            "shell" => Self::Shell,
            "hang" => Self::Hang,
            "panic" => Self::Panic,
            _ => bail!("unknown end {text:?}: poweroff, reboot, shell, hang or panic"),
        })
    }
}

/// Kind of a stress run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StressKind {
    /// Fork storms on all CPUs.
    Forks,
    /// Modules loaded and unloaded on one CPU while the others read through vmalloc space.
    Modules,
}

/// One stress run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stress {
    /// What to do.
    pub(crate) kind: StressKind,
    /// For how many seconds.
    pub(crate) seconds: u64,
}

impl Stress {
    fn parse(text: &str) -> Result<Self> {
        let (kind, seconds) =
            text.split_once(':').with_context(|| format!("bad stress {text:?}: KIND:SECONDS"))?;
        let kind = match kind {
            "forks" => StressKind::Forks,
            "modules" => StressKind::Modules,
            _ => bail!("unknown stress {kind:?}: forks or modules"),
        };
        Ok(Self { kind, seconds: number(seconds, 86_400)? })
    }
}

/// All that can be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    /// Which tests.
    pub(crate) tests: Selection,
    /// Scale of the iterations.
    pub(crate) rounds: u32,
    /// Time limit of one test in seconds, when set.
    pub(crate) limit: Option<u64>,
    /// Stress runs after the tests.
    pub(crate) stress: Vec<Stress>,
    /// Write records in this life instead of running tests.
    pub(crate) disks: Option<u64>,
    /// Check versions of blocks on the first disk, beside the tests.
    pub(crate) versions: bool,
    /// Bytes that writers to disks print with each batch, for consoles that nobody reads.
    pub(crate) talk: usize,
    /// Address and length of the prefix of a network device that echoes datagrams.
    pub(crate) network: Option<String>,
    /// Time so many rounds of programs instead of running tests.
    pub(crate) programs: Option<u64>,
    /// Steps of one of their tasks.
    pub(crate) task: u64,
    /// Do operations of the kernel that are counted, so many times as often, instead of running tests.
    pub(crate) sharing: Option<u64>,
    /// For how long they pause while counters are read.
    pub(crate) pause: Duration,
    /// Use a CPU that comes, so often, instead of running tests.
    pub(crate) vcpus: Option<u64>,
    /// What pid 1 does at the end.
    pub(crate) after: After,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tests: Selection::All,
            rounds: 1,
            limit: None,
            stress: Vec::new(),
            disks: None,
            versions: false,
            talk: 0,
            network: None,
            programs: None,
            task: crate::programs::TASK,
            sharing: None,
            pause: MOST_SHARING_PAUSE,
            vcpus: None,
            after: After::PowerOff,
        }
    }
}

impl Config {
    /// Reads the `tessera.*` words of a kernel command line; all others are not ours.
    ///
    /// Returns what could be read and the first word that could not: the end of the run must be
    /// right even when the rest of the line is wrong.
    pub(crate) fn from_cmdline(line: &str) -> (Self, Result<()>) {
        let mut config = Self::default();
        let mut first_error = Ok(());
        for word in line.split_ascii_whitespace() {
            let Some(ours) = word.strip_prefix("tessera.") else { continue };
            let set = match ours.split_once('=') {
                Some((key, value)) => config.set(key, value),
                None => Err(anyhow::anyhow!("no value")),
            };
            if first_error.is_ok() {
                first_error = set.with_context(|| format!("kernel command line: {word}"));
            }
        }
        (config, first_error)
    }

    /// Reads `--key value` arguments.
    pub(crate) fn from_args(args: &[String]) -> Result<Self> {
        let mut config = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let key = arg.strip_prefix("--").with_context(|| format!("unknown word {arg:?}"))?;
            let value = args.next().with_context(|| format!("{arg} needs a value"))?;
            config.set(key, value).with_context(|| format!("{arg} {value}"))?;
        }
        Ok(config)
    }

    /// Time limit of one test, in seconds.
    pub(crate) fn limit_seconds(&self) -> u64 {
        self.limit.unwrap_or_else(|| 120 * u64::from(self.rounds))
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "tests" => self.tests = Selection::parse(value)?,
            "rounds" => self.rounds = u32::try_from(number(value, u64::from(MOST_ROUNDS))?)?,
            "limit" => self.limit = Some(number(value, 1_000_000)?),
            "stress" => {
                self.stress = value.split(',').map(Stress::parse).collect::<Result<_>>()?;
            }
            "disks" => self.disks = Some(number(value, u64::from(u32::MAX))?),
            "versions" => self.versions = number(value, 1)? == 1,
            "talk" => self.talk = usize::try_from(number(value, 4096)?)?,
            "net" => self.network = Some(value.to_owned()),
            "programs" => self.programs = Some(number(value, 1000)?),
            "task" => self.task = number(value, 1_000_000)? * 1_000_000,
            "sharing" => self.sharing = Some(number(value, 100)?),
            "pause" => self.pause = pause(value)?,
            "vcpus" => self.vcpus = Some(number(value, 1000)?),
            "after" => self.after = After::parse(value)?,
            _ => bail!(
                "unknown setting {key:?}: tests, rounds, limit, stress, disks, versions, talk, net, programs, task, sharing, pause, vcpus or after"
            ),
        }
        Ok(())
    }
}

fn pause(text: &str) -> Result<Duration> {
    let most = u64::try_from(MOST_SHARING_PAUSE.as_millis())?;
    Ok(Duration::from_millis(number(text, most)?))
}

fn number(text: &str, most: u64) -> Result<u64> {
    let value: u64 = text.parse().with_context(|| format!("{text:?} is no number"))?;
    if value == 0 || value > most {
        bail!("{value} is not within 1 and {most}");
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cmdline_without_our_words_gives_the_defaults() {
        let (config, error) = Config::from_cmdline("console=ttyS0 quiet root=/dev/ram0\n");
        assert!(error.is_ok());
        assert_eq!(config, Config::default());
        assert_eq!(config.limit_seconds(), 120);
    }

    #[test]
    fn cmdline_with_every_word_is_understood() {
        let line = "quiet tessera.tests=litmus,clock tessera.rounds=3 tessera.after=panic \
                    tessera.stress=forks:5,modules:7 tessera.limit=9 tessera.disks=8 tessera.talk=6 tessera.programs=4 tessera.task=3 tessera.sharing=5 tessera.pause=37 \
                    tessera.net=10.0.0.2/24 tessera.vcpus=3 tessera.versions=1";
        let (config, error) = Config::from_cmdline(line);
        assert!(error.is_ok());
        assert_eq!(config.rounds, 3);
        assert_eq!(config.after, After::Panic);
        assert_eq!((config.limit_seconds(), config.disks), (9, Some(8)));
        assert_eq!((config.programs, config.talk, config.vcpus), (Some(4), 6, Some(3)));
        assert_eq!(config.task, 3_000_000);
        assert_eq!((config.sharing, config.pause), (Some(5), Duration::from_millis(37)));
        assert!(config.versions);
        assert_eq!(config.network.as_deref(), Some("10.0.0.2/24"));
        assert_eq!(config.stress[1], Stress { kind: StressKind::Modules, seconds: 7 });
        assert!(config.tests.wants("litmus-sb"));
        assert!(!config.tests.wants("memory"));
    }

    #[test]
    fn cmdline_with_a_bad_word_is_reported_and_the_rest_kept() {
        let (config, error) =
            Config::from_cmdline("tessera.rounds=zero tessera.colour=red tessera.after=reboot");
        assert_eq!(config.after, After::Reboot);
        let text = format!("{:#}", error.unwrap_err());
        assert!(text.contains("tessera.rounds=zero"), "{text}");
    }

    #[test]
    fn selection_item_that_names_no_test_is_found() {
        let selection = Selection::parse("litmus,clok").unwrap();
        assert_eq!(selection.unknown(&["litmus-sb", "clock"]), Some("clok"));
        assert_eq!(Selection::All.unknown(&[]), None);
    }

    #[test]
    fn args_with_missing_value_are_refused() {
        assert!(Config::from_args(&["--rounds".to_owned()]).is_err());
        assert!(Config::from_args(&["rounds".to_owned()]).is_err());
    }

    proptest! {
        #[test]
        fn cmdline_of_any_text_never_panics(line in "(tessera\\.[a-z]{0,6}=?[a-z0-9:,]{0,8} ?|.){0,8}") {
            let _ = Config::from_cmdline(&line);
        }
    }
}
