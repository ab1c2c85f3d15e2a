//! Manual pages and shell completions, made from the description of the command line.

use std::io;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;

/// The date of the pages: that of the last change of the version, since builds must be equal.
const DATE: &str = "2026-11-24";

/// A generated file of an installation: its path below the prefix, and its contents.
pub(super) type Page = (String, Vec<u8>);

/// Returns the manual pages, as file names and contents.
pub(super) fn manual() -> io::Result<Vec<Page>> {
    let mut root = Args::command().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    page(&root, &mut pages)?;
    Ok(pages)
}

/// Adds the page of `command` and those of its subcommands. Their names are joined by `-`.
fn page(command: &clap::Command, pages: &mut Vec<Page>) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone())
        .date(DATE)
        .source(concat!("roxie ", env!("CARGO_PKG_VERSION")))
        .manual("RDMA in user space")
        .render(&mut text)?;
    pages.push((format!("{name}.1"), text));
    command.get_subcommands().filter(|child| !child.is_hide_set()).try_for_each(|child| page(child, pages))
}

/// The completion script of `shell`.
pub(super) fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "roxie", &mut script);
    script
}

/// Where the pages and scripts are below a prefix.
pub(super) fn of_installation() -> io::Result<Vec<Page>> {
    let mut pages: Vec<Page> =
        manual()?.into_iter().map(|(name, text)| (format!("share/man/man1/{name}"), text)).collect();
    for (path, shell) in [
        ("share/bash-completion/completions/roxie", Shell::Bash),
        ("share/zsh/site-functions/_roxie", Shell::Zsh),
        ("share/fish/vendor_completions.d/roxie.fish", Shell::Fish),
    ] {
        pages.push((path.to_owned(), completions(shell)));
    }
    Ok(pages)
}

/// Writes the manual pages into `dir`.
pub(super) fn write_manual(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    manual()?.iter().try_for_each(|(name, text)| super::replace(&dir.join(name), text, 0o644))
}
