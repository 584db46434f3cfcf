//! Options of the VM that a bench is about.

use anyhow::{Result, anyhow};
use clap::Parser;

use crate::vm::VmOptions;

/// One vCPU on each of two hosts.
pub(crate) const LAYOUT: &str = "1+1";

/// Options of the VM, as `./x demo` has them.
#[derive(Parser)]
#[command(no_binary_name = true, args_override_self = true, disable_help_flag = true)]
struct Wanted {
    #[command(flatten)]
    vm: VmOptions,
}

/// Options of the VM of a bench: [`LAYOUT`], a lab of its own, `own` words, and the `rest` of the bench's command line,
/// which goes before all that.
pub(crate) fn vm_options(name: &str, own: &[&str], rest: &[String]) -> Result<VmOptions> {
    let name = format!("bench-{name}");
    let words = ["--layout", LAYOUT, "--name", &name].into_iter().chain(own.iter().copied());
    let words = words.map(str::to_owned);
    let wanted = Wanted::try_parse_from(words.chain(rest.iter().cloned()));
    let wanted = wanted.map_err(|error| {
        anyhow!("what stands after `--` goes to the VM, as in ./x demo: {error}")
    })?;
    Ok(wanted.vm)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn words_of_the_command_line_go_before_those_of_the_bench() {
        let found = vm_options("x", &["--tests", "none"], &words("--name other -- --hold 1:2"));
        let found = found.unwrap();

        assert_eq!((found.name.as_str(), found.tests.as_deref()), ("other", Some("none")));
        assert_eq!(found.layout().unwrap().to_string(), LAYOUT);
        assert_eq!(found.bootstrap, ["--hold", "1:2"]);
        assert_eq!(vm_options("x", &[], &[]).unwrap().name, "bench-x");
        assert!(vm_options("x", &[], &words("--layuot 1+1")).is_err());
    }
}
