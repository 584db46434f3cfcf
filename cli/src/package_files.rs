//! Files of packages that are made from the options: completions of shells, and manuals.
//!
//! ```text
//!   options --> bash, zsh, fish: complete/tessera.bash, _tessera, tessera.fish
//!           \-> man/tessera.1, tessera-VERB.1, tessera-VERB-VERB.1, ... of whatever is not hidden
//! ```

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::{Shell, generate_to};
use std::fs::create_dir_all;
use std::path::Path;

const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// Writes them below a folder, which is made if it is not there.
pub(crate) fn write(command: Command, folder: &Path) -> Result<()> {
    let (shells, manuals) = (folder.join("complete"), folder.join("man"));
    for made in [&shells, &manuals] {
        create_dir_all(made).with_context(|| format!("make {}", made.display()))?;
    }
    for shell in SHELLS {
        let written = generate_to(shell, &mut command.clone(), "tessera", &shells);
        written.with_context(|| format!("write the completions of {shell}"))?;
    }
    let written = clap_mangen::generate_to(command, &manuals);
    written.with_context(|| format!("write the manuals into {}", manuals.display()))
}
