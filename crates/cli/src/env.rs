//! `roxie env`: the variables that put the device into a program, for `eval` or as JSON.

use std::ffi::OsString;
use std::path::Path;

use clap::Args as ClapArgs;

use crate::failure::{Outcome, nearest};
use crate::library::{AUDIT, Libraries};
use crate::nic_args::NicArgs;
use crate::terminal;
use roxie_capture::shell::quote;

/// Print the environment variables that 'roxie run' sets
///
/// As commands for a POSIX shell (eval), or as one JSON object. With these variables, every program that
/// the shell starts sees the devices, as under 'roxie run'.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("help/env.txt"))]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    pub(crate) nic: NicArgs,
    /// Print one JSON object instead of shell commands
    #[arg(long)]
    pub(crate) json: bool,
}

/// The environment of programs that use the device.
pub(crate) fn variables(nic: &NicArgs) -> Outcome<Vec<(&'static str, OsString)>> {
    let NicArgs { device, port, hooks, traffic } = nic;
    device.check()?;
    port.choice()?;
    let traffic = traffic.words(device)?;
    let (ingress, egress) = hooks.texts()?;
    let dir = Libraries::find()?.link()?;
    let mut variables = vec![
        ("LD_LIBRARY_PATH", prepend(&dir, std::env::var_os("LD_LIBRARY_PATH"))),
        ("LD_AUDIT", prepend(&dir.join(AUDIT), std::env::var_os("LD_AUDIT"))),
        ("GLIBC_TUNABLES", tunables(std::env::var_os("GLIBC_TUNABLES"), STATIC_TLS)),
    ];
    let named = [
        ("ROXIE_PORT", port.port.clone()),
        ("ROXIE_XDP_MODE", port.xdp_mode.clone()),
        ("ROXIE_SHM", port.shm.clone()),
        ("ROXIE_INGRESS", ingress),
        ("ROXIE_EGRESS", egress),
    ];
    let devices = device.words();
    variables.extend(
        devices.into_iter().chain(named).chain(traffic).filter_map(|(key, value)| Some((key, value?.into()))),
    );
    Ok(variables)
}

/// Prints the variables.
pub(crate) fn print(args: &EnvArgs) -> Outcome {
    let variables = variables(&args.nic)?;
    if args.json {
        let map: serde_json::Map<String, serde_json::Value> = variables
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.to_string_lossy().into_owned().into()))
            .collect();
        terminal::json(&serde_json::Value::Object(map));
    } else {
        for (key, value) in &variables {
            terminal::print(&format!("export {key}={}", quote(&value.to_string_lossy())));
        }
    }
    Ok(())
}

/// The variables that roxie, its packages and its tests read, without `ROXIE_`.
const KNOWN: &str = "NETDEV NAME DEVICES GIDS PORT XDP_MODE XSK_BURSTS SHM ENGINES QPNS CHAOS INGRESS EGRESS \
                     ECN RATE_LIMIT FLUSH_ICRC KEEPALIVE USERS GUARD STATS QUIET CHECK CHECK_OPTIONS CAPTURE \
                     CAPTURE_SNAP TRACE TRACE_EVENTS RUN TAP LOG DOMAIN PROGRAM FILE SHA256 BIN_DIR LOG_DIR \
                     BLESS SEEDS";

/// Variables of which a wrong value would have no effect, or another one, and their values.
const VALUES: [(&str, &[&str]); 4] = [
    ("STATS", &["0", "1"]),
    ("QUIET", &["0", "1"]),
    ("LOG", &["0", "1", "errors", "calls", "all"]),
    ("XSK_BURSTS", &["udp", "ring"]),
];

/// Names the variables and values that have no effect.
pub(crate) fn warn_of_unknown() {
    let known: Vec<&str> = KNOWN.split(' ').collect();
    for (name, value) in std::env::vars_os() {
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix("ROXIE_")) else { continue };
        let value = value.to_string_lossy();
        let values = VALUES.iter().find(|(name, _)| *name == rest).map_or(&[][..], |(_, values)| values);
        if !values.is_empty() && !value.is_empty() && !values.contains(&&*value) {
            say!("roxie: ROXIE_{rest}={value} is none of {}", values.join(", "));
        } else if !known.contains(&rest) && !rest.starts_with("TEST_") {
            let near = nearest(rest, &known).map(|near| format!("; did you mean ROXIE_{near}?"));
            roxie::notice(format_args!("ROXIE_{rest} has no effect{}", near.unwrap_or_default()));
        }
    }
}

/// Room for thread-local variables of libraries that ask for static room (`DF_STATIC_TLS`, as jemalloc), in
/// bytes. With an audit library the loader no longer counts what the program is linked to, and has room for
/// 1.6 KiB. The stack of each thread holds it, so it is small.
pub(crate) const STATIC_TLS: u32 = 8192;
/// The same for programs that link a sanitizer: libtsan of GCC 12 needs 767 KiB.
pub(crate) const STATIC_TLS_OF_SANITIZER: u32 = 1 << 20;

/// The tunables of glibc (ld.so(8)) with room for `bytes` of static TLS, unless the user has set that. The
/// value of an outer `roxie run` is replaced.
pub(crate) fn tunables(old: Option<OsString>, bytes: u32) -> OsString {
    const NAME: &str = "glibc.rtld.optional_static_tls=";
    let ours = format!("{NAME}{bytes}");
    match old.filter(|old| !old.is_empty()) {
        Some(old) if old.to_string_lossy().contains(NAME) => {
            let outer = format!("{NAME}{STATIC_TLS}");
            let parts = old.to_string_lossy().into_owned();
            let parts = parts.split(':').map(|part| if part == outer { &ours } else { part });
            parts.collect::<Vec<_>>().join(":").into()
        }
        Some(mut old) => {
            old.push(":");
            old.push(ours);
            old
        }
        None => ours.into(),
    }
}

/// `dir`, a directory or file, then the old value; an empty entry would mean the current directory.
fn prepend(dir: &Path, old: Option<OsString>) -> OsString {
    let mut path = dir.as_os_str().to_owned();
    if let Some(old) = old.filter(|old| !old.is_empty()) {
        let first = old.to_string_lossy().split(':').next() == Some(&*dir.to_string_lossy());
        if first {
            return old;
        }
        path.push(":");
        path.push(old);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_comes_first_and_once() {
        let dir = Path::new("/run/roxie");
        assert_eq!(prepend(dir, None), "/run/roxie");
        assert_eq!(prepend(dir, Some("".into())), "/run/roxie");
        assert_eq!(prepend(dir, Some("/a:/b".into())), "/run/roxie:/a:/b");
        assert_eq!(prepend(dir, Some("/run/roxie:/a".into())), "/run/roxie:/a");
    }

    #[test]
    fn the_documented_variables_are_known() {
        let Some(page) = crate::pages_tests::page("reference.md") else { return };
        let rows = page.lines().filter(|line| line.starts_with("| `ROXIE_"));
        let cells =
            rows.filter_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.split("ROXIE_").skip(1));
        let is_other = |c: char| !(c.is_ascii_uppercase() || c == '_');
        let documented: Vec<&str> = cells.filter_map(|rest| rest.split(is_other).next()).collect();
        let known: Vec<&str> = KNOWN.split(' ').collect();
        let unknown: Vec<_> = documented.iter().filter(|name| !known.contains(name)).collect();
        assert!(documented.len() > 25 && unknown.is_empty(), "{unknown:?} of {documented:?}");
        let others = ["PROGRAM", "FILE", "SHA256", "BIN_DIR", "LOG_DIR", "BLESS", "SEEDS"];
        let undocumented: Vec<_> =
            known.iter().filter(|name| !documented.contains(name) && !others.contains(name)).collect();
        assert!(undocumented.is_empty(), "{undocumented:?}");
        assert_eq!(nearest("NETDEB", &known), Some("NETDEV"));
        assert_eq!(nearest("HOMEPAGE", &known), None);
    }

    #[test]
    fn tunables_are_added_unless_the_user_has_set_them() {
        let room = "glibc.rtld.optional_static_tls";
        assert_eq!(tunables(None, 8), format!("{room}=8").as_str());
        assert_eq!(tunables(Some("a.b=1".into()), 8), format!("a.b=1:{room}=8").as_str());
        assert_eq!(
            tunables(Some("glibc.rtld.optional_static_tls=5".into()), 8),
            format!("{room}=5").as_str()
        );
        let of_outer_run = format!("a.b=1:{room}={STATIC_TLS}:c.d=2");
        assert_eq!(tunables(Some(of_outer_run.into()), 9), format!("a.b=1:{room}=9:c.d=2").as_str());
    }
}
