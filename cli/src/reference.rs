//! The options as a page of Markdown, `docs/options.md`: for each subcommand a table with a row for each option, and
//! a section for each option that has more to say. `./x docs` writes it; a test compares it with what is in git.
//!
//! Not clap-markdown: its lists do not tell which options are required or may be repeated, and no other page can link
//! to one of them.

use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, Command};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

const PREFACE: &str = "\
# Options of `tessera`

`./x docs` makes this page from the sources (`cli/src`). `tessera SUBCOMMAND --help` prints the same.

There is a section for each subcommand and each of its own, and a row for each option. An option marked * may be given several times.
In the column *default*, *required* means that the option must be given, and `-` that there is none.
Options whose names are links have more to say below the table. Every subcommand has `--help`.
";

/// Renders a command with its visible subcommands and options. Their help is taken for Markdown.
pub(crate) fn markdown(command: &Command) -> String {
    let mut page = Page { text: PREFACE.to_owned(), told: HashMap::new() };
    page.section(command, command.get_name());
    page.sections_below(command, command.get_name());
    page.text
}

struct Page {
    text: String,
    /// Anchor of each explanation, by the option's name and the text: subcommands share options.
    told: HashMap<(String, String), String>,
}

impl Page {
    fn sections_below(&mut self, command: &Command, path: &str) {
        for subcommand in command.get_subcommands().filter(|one| !one.is_hide_set()) {
            let path = format!("{path} {}", subcommand.get_name());
            self.section(subcommand, &path);
            self.sections_below(subcommand, &path);
        }
    }

    fn section(&mut self, command: &Command, path: &str) {
        let about = command.get_long_about().or_else(|| command.get_about());
        let about = about.map(ToString::to_string).unwrap_or_default();
        self.text += &format!("\n## {path}\n\n{}\n", sentence(&marked(&about)));
        let options: Vec<_> = command.get_arguments().filter(|one| !one.is_hide_set()).collect();
        if !options.is_empty() {
            self.text += "\n| option | value | default | what it does |\n|---|---|---|---|\n";
        }
        let mut new = Vec::new();
        for option in options {
            let name = name(option);
            let anchor = format!("{}-{name}", command.get_name());
            let link =
                explanation(option).map(|text| match self.told.entry((name.clone(), text)) {
                    Entry::Occupied(known) => known.get().clone(),
                    Entry::Vacant(place) => {
                        new.push(place.key().clone());
                        place.insert(anchor).clone()
                    }
                });
            self.text += &row(option, &name, link.as_deref());
        }
        if let Some(end) = command.get_after_long_help().or_else(|| command.get_after_help()) {
            self.text += &format!("\n```text\n{end}\n```\n");
        }
        for (name, text) in new {
            self.text += &format!("\n### {} {name}\n\n{text}\n", command.get_name());
        }
    }
}

fn name(option: &Arg) -> String {
    option.get_long().map_or_else(|| option.get_id().to_string(), |long| format!("--{long}"))
}

/// What does not fit into the table: all of a long help, and what each value means.
fn explanation(option: &Arg) -> Option<String> {
    let long = option.get_long_help().map(ToString::to_string);
    let values: Vec<_> = values(option).iter().filter_map(meaning).collect();
    if long.is_none() && values.is_empty() {
        return None;
    }
    let help = option.get_help().map(ToString::to_string).unwrap_or_default();
    let long = long.unwrap_or(help);
    let (first, rest) = long.split_once("\n\n").unwrap_or((&long, ""));
    let parts = [sentence(&marked(first)), marked(rest), values.join("\n")];
    Some(parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n"))
}

fn meaning(value: &PossibleValue) -> Option<String> {
    let help = value.get_help()?.to_string();
    Some(format!("- `{}`: {}", value.get_name(), sentence(&marked(&help))))
}

fn values(option: &Arg) -> Vec<PossibleValue> {
    if !option.get_action().takes_values() {
        return Vec::new();
    }
    option.get_possible_values().into_iter().filter(|value| !value.is_hide_set()).collect()
}

fn row(option: &Arg, name: &str, link: Option<&str>) -> String {
    let shown = match link {
        Some(anchor) => format!("[`{name}`](#{anchor})"),
        None => format!("`{name}`"),
    };
    let short = option.get_short().map(|short| format!(", `-{short}`")).unwrap_or_default();
    let repeated = if matches!(option.get_action(), ArgAction::Append) { " *" } else { "" };
    let defaults = option.get_default_values().iter().map(|value| value.to_string_lossy());
    let defaults = codes(defaults);
    let default = match defaults.as_str() {
        _ if option.is_required_set() => "required",
        "" => "-",
        given => given,
    };
    let help = option.get_help().map(ToString::to_string).unwrap_or_default();
    let help = sentence(&marked(&help)).replace('|', "\\|").replace('\n', " ");
    format!("| {shown}{short}{repeated} | {} | {default} | {help} |\n", value(option))
}

/// What an option is given. A name such as `a|b` lists choices.
fn value(option: &Arg) -> String {
    let values = values(option);
    if !values.is_empty() {
        return codes(values.iter().map(PossibleValue::get_name));
    }
    if !option.get_action().takes_values() {
        return String::new();
    }
    let names = option.get_value_names().unwrap_or_default();
    codes(names.iter().flat_map(|name| name.split('|')))
}

fn codes(words: impl Iterator<Item: AsRef<str>>) -> String {
    words.map(|word| format!("`{}`", word.as_ref())).collect::<Vec<_>>().join(", ")
}

/// Ends with a full stop, which clap leaves out.
fn sentence(text: &str) -> String {
    if text.is_empty() || text.ends_with('.') { text.to_owned() } else { format!("{text}.") }
}

/// Help with marks that a terminal does not need: options as code, pages of `docs/` as links.
fn marked(text: &str) -> String {
    let (mut marked, mut code) = (String::new(), false);
    for word in text.split_inclusive(char::is_whitespace) {
        let opens = word.len() - word.trim_start_matches('(').len();
        let (opening, path) = word.split_at(opens);
        let page = path.strip_prefix("docs/").and_then(|page| page.split_once(".md"));
        match page {
            Some((page, rest)) if !code => {
                marked += &format!("{opening}[{page}.md]({page}.md){rest}");
            }
            _ if !code && word.starts_with("--") => {
                let end = word.find(|c: char| c != '-' && !c.is_ascii_alphanumeric());
                let (option, rest) = word.split_at(end.unwrap_or(word.len()));
                marked += &format!("`{option}`{rest}");
            }
            _ => marked += word,
        }
        code ^= word.matches('`').count() % 2 == 1;
    }
    marked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        let kind =
            Arg::new("kind").long("kind").value_name("a|b").help("Kind, `a|b`").default_value("a");
        let long = "Where, unlike --kind\n\n- `x`: see docs/page.md.\n- `--y z`: not --kind.";
        let at =
            Arg::new("at").long("at").value_name("AT").required(true).action(ArgAction::Append);
        let at = at.help("Where, unlike --kind").long_help(long);
        let choice = Arg::new("choice")
            .long("choice")
            .value_parser([PossibleValue::new("one").help("The first"), PossibleValue::new("two")]);
        let secret = Arg::new("secret").long("secret").hide(true);
        let flag = Arg::new("flag")
            .long("flag")
            .short('f')
            .action(ArgAction::SetTrue)
            .help("On (docs/page.md)");
        let first = Command::new("first").about("Does it").args([kind, at.clone(), choice, secret]);
        let second = Command::new("second").args([flag, at]).after_help("status\n  0  good");
        let hidden = Command::new("hidden").hide(true);
        Command::new("it").about("All").subcommands([first, second, hidden])
    }

    #[test]
    fn every_visible_option_has_a_row() {
        let page = markdown(&command());

        for row in [
            "| `--kind` | `a`, `b` | `a` | Kind, `a\\|b`. |",
            "| [`--at`](#first---at) * | `AT` | required | Where, unlike `--kind`. |",
            "| [`--choice`](#first---choice) | `one`, `two` | - |  |",
            "| `--flag`, `-f` |  | - | On ([page.md](page.md)). |",
        ] {
            assert!(page.lines().any(|line| line == row), "{row}\n{page}");
        }
        assert!(!page.contains("secret") && !page.contains("hidden"), "{page}");
    }

    #[test]
    fn long_help_is_a_section_once() {
        let page = markdown(&command());

        let section = "### first --at\n\nWhere, unlike `--kind`.\n\n- `x`: see [page.md](page.md).\n\
                       - `--y z`: not `--kind`.\n";
        assert!(page.contains(section), "{page}");
        assert_eq!(page.matches("(#first---at)").count(), 2, "{page}");
        assert!(!page.contains("### second"), "{page}");
        assert!(page.contains("### first --choice\n\n- `one`: The first.\n"), "{page}");
        assert!(page.ends_with("\n```text\nstatus\n  0  good\n```\n"), "{page}");
    }
}
