//! Manual pages and shell completions, made from the description of the command line (`roxie` below), and the
//! files by which build systems find the program.

use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;

use crate::failure::{During, Outcome};
use crate::output;

/// The date of the pages: that of the last change of the version, since builds must be equal.
const DATE: &str = "2026-11-24";

/// For pkg-config: the libraries against which programs for roxie are built are those of rdma-core.
const PKG_CONFIG: &str = concat!(include_str!("roxie.pc"), "Version: ", env!("CARGO_PKG_VERSION"), "\n");

/// A generated file of an installation: its path below the prefix, and its contents.
pub(super) type Page = (String, Vec<u8>);

/// Returns the manual pages, as file names and contents.
pub(super) fn manual(roxie: &Command) -> io::Result<Vec<Page>> {
    let mut root = roxie.clone().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    page(&root, &mut pages)?;
    Ok(pages)
}

/// Adds the page of `command` and those of its subcommands. Their names are joined by `-`.
fn page(command: &Command, pages: &mut Vec<Page>) -> io::Result<()> {
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

/// Stands for the interfaces in a script, until the expression of the shell replaces it.
const INTERFACES: &str = "@IF@";
/// Stands for the devices of these interfaces with the first name, as `--device` takes them.
const DEVICES: &str = "@NAME=IF@";

/// The completion script of `shell`.
pub(super) fn completions(roxie: &Command, shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut with_names(roxie.clone()), "roxie", &mut script);
    let (before, after, interfaces, devices) = match shell {
        // `compgen -W` expands its words, and an interface may be called `$(id)`.
        Shell::Bash => ("", "", "\\$(ls /sys/class/net)", "\\$(ls /sys/class/net | sed s/^/roxie0=/)"),
        Shell::Zsh => ("(", ")", "_net_interfaces", "{compadd roxie0=${^$(ls /sys/class/net)}}"),
        Shell::Fish => ("", "\\t''", "(ls /sys/class/net)", "(ls /sys/class/net | sed s/^/roxie0=/)"),
        _ => ("", "", "lo", "roxie0=lo"),
    };
    let mut script = String::from_utf8_lossy(&script).into_owned();
    for (place, expression) in [(INTERFACES, interfaces), (DEVICES, devices)] {
        script = script.replace(&format!("{before}{place}{after}"), expression);
    }
    if shell == Shell::Fish {
        // The generator leaves arguments without an option out.
        let xdp = roxie.get_subcommands().filter(|command| command.get_name() == "xdp");
        let on_it = xdp.flat_map(Command::get_subcommands);
        for command in on_it.filter(|command| command.get_positionals().any(|arg| names(arg).is_some())) {
            let on = format!("using_subcommand xdp; and __fish_seen_subcommand_from {}", command.get_name());
            script += &format!("complete -c roxie -n \"__fish_roxie_{on}\" -f -a \"{interfaces}\"\n");
        }
    }
    script.into()
}

/// What stands for the values of an argument that is an interface or a device.
fn names(arg: &clap::Arg) -> Option<&'static str> {
    match arg.get_value_names()?.first()? {
        name if name.starts_with("IF") => Some(INTERFACES),
        name if name.starts_with("NAME=IF") => Some(DEVICES),
        _ => None,
    }
}

/// `command` with one possible value for each argument that is an interface or a device.
fn with_names(command: Command) -> Command {
    let with_name = |arg: clap::Arg| match names(&arg) {
        Some(name) => arg.value_parser([name]),
        None => arg,
    };
    command.mut_args(with_name).mut_subcommands(with_names)
}

/// Where the pages and scripts are below a prefix.
pub(super) fn of_installation(roxie: &Command) -> io::Result<Vec<Page>> {
    let mut pages: Vec<Page> =
        manual(roxie)?.into_iter().map(|(name, text)| (format!("share/man/man1/{name}"), text)).collect();
    for (path, shell) in [
        ("share/bash-completion/completions/roxie", Shell::Bash),
        ("share/zsh/site-functions/_roxie", Shell::Zsh),
        ("share/fish/vendor_completions.d/roxie.fish", Shell::Fish),
    ] {
        pages.push((path.to_owned(), completions(roxie, shell)));
    }
    pages.push(("share/pkgconfig/roxie.pc".to_owned(), PKG_CONFIG.into()));
    pages.push(("share/cmake/roxie/roxieConfig.cmake".to_owned(), include_bytes!("roxie.cmake").into()));
    Ok(pages)
}

/// Writes the manual pages into `dir`.
pub(super) fn write_manual(roxie: &Command, dir: &Path) -> Outcome {
    output::make_dirs(dir)?;
    let pages = manual(roxie).during("making the manual pages")?;
    pages.iter().try_for_each(|(name, text)| output::replace(&dir.join(name), text, 0o644))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Args;

    /// Commands that print no data, or data in another format: Prometheus, HTML, pcap, CDI.
    const WITHOUT_JSON: [&str; 29] = [
        "run",
        "pair",
        "cdi",
        "xdp attach",
        "xdp detach",
        "xdp map set",
        "xdp map delete",
        "xdp object",
        "xdp send",
        "hook attach",
        "hook detach",
        "hook frames",
        "hook map set",
        "hook map delete",
        "capture record",
        "capture annotate",
        "capture report",
        "metrics",
        "lab up",
        "lab down",
        "lab exec",
        "lab-hold",
        "demo-server",
        "demo-client",
        "self install",
        "self remove",
        "self bundle",
        "self man",
        "self completions",
    ];

    /// The full names of all commands that have no subcommand, and whether they print JSON.
    fn leaves(command: &Command, name: &str, found: &mut Vec<(String, bool)>) {
        let mut children = command.get_subcommands().peekable();
        if children.peek().is_none() {
            let json = command.get_arguments().any(|arg| arg.get_id() == "json");
            found.push((name.trim().to_owned(), json));
        }
        children.for_each(|child| leaves(child, &format!("{name} {}", child.get_name()), found));
    }

    #[test]
    fn every_command_that_prints_data_prints_json_too() {
        let mut found = Vec::new();
        leaves(&Args::command().disable_help_subcommand(true), "", &mut found);
        assert!(found.len() > WITHOUT_JSON.len() + 15, "{found:?}");
        let wrong: Vec<_> =
            found.iter().filter(|(name, json)| *json == WITHOUT_JSON.contains(&name.as_str())).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    #[test]
    fn interfaces_and_devices_are_completed() {
        for (shell, lines) in [
            (
                Shell::Bash,
                ["compgen -W \"\\$(ls /sys/class/net)\" -- \"${cur}\"", "| sed s/^/roxie0=/)\" -- "],
            ),
            (
                Shell::Zsh,
                [
                    ":netdev -- Network interface:_net_interfaces'",
                    ":{compadd roxie0=${^$(ls /sys/class/net)}}' \\",
                ],
            ),
            (
                Shell::Fish,
                [
                    "-a \"(ls /sys/class/net | sed s/^/roxie0=/)\"",
                    "from attach\" -f -a \"(ls /sys/class/net)\"",
                ],
            ),
        ] {
            let script = String::from_utf8(completions(&Args::command(), shell)).expect("text");
            assert!(!script.contains(INTERFACES) && !script.contains(DEVICES), "{shell}");
            for line in lines {
                assert!(script.contains(line), "{shell}: {line}");
            }
        }
        let script = String::from_utf8(completions(&Args::command(), Shell::Bash)).expect("text");
        let ask = "for words in 'run --netdev' 'run --device' 'capture read -i' 'xdp attach'; do
                       COMP_WORDS=(roxie $words ''); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
                       _roxie roxie '' \"${COMP_WORDS[-2]}\"; echo \" ${COMPREPLY[*]} \"
                   done";
        // It is too long for an argument.
        let file = std::env::temp_dir().join(format!("roxie-completions-{:016x}", sys::random_u64()));
        std::fs::write(&file, format!("{script}\n{ask}")).expect("written");
        let output = std::process::Command::new("bash").arg(&file).output().expect("bash runs");
        std::fs::remove_file(&file).expect("removed");
        let offered = String::from_utf8_lossy(&output.stdout).into_owned();
        let of = |word| offered.lines().filter(|line| line.contains(word)).count();
        assert_eq!((of(" lo "), of(" roxie0=lo ")), (3, 1), "{offered} {output:?}");
    }

    #[test]
    fn every_command_has_a_manual_page() {
        let pages = manual(&Args::command()).expect("pages");
        let mut found = Vec::new();
        leaves(&Args::command().disable_help_subcommand(true), "", &mut found);
        let hidden = ["lab-hold", "demo-server", "demo-client"];
        for (name, _) in found.iter().filter(|(name, _)| !hidden.contains(&name.as_str())) {
            let page = format!("roxie-{}.1", name.replace(' ', "-"));
            let text = pages.iter().find(|(file, _)| *file == page).map(|(_, text)| text.as_slice());
            assert!(text.is_some_and(|text| text.len() > 200), "no page {page}");
        }
    }
}
