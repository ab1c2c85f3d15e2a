//! `roxie env`: the variables that put the device into a program, for `eval` or as JSON.

use std::ffi::OsString;
use std::path::Path;

use crate::args::{DeviceArgs, EnvArgs, PortArgs, TrafficArgs};
use crate::failure::Outcome;
use crate::hook::args::HookArgs;
use crate::library::Libraries;
use crate::terminal;

/// The environment of programs that use the device.
pub(crate) fn variables(
    device: &DeviceArgs,
    port: &PortArgs,
    hooks: &HookArgs,
    traffic: &TrafficArgs,
) -> Outcome<Vec<(&'static str, OsString)>> {
    device.check()?;
    port.choice()?;
    let traffic = traffic.words()?;
    let (ingress, egress) = hooks.texts()?;
    let dir = Libraries::find()?.link()?;
    let mut variables = vec![("LD_LIBRARY_PATH", prepend(&dir, std::env::var_os("LD_LIBRARY_PATH")))];
    let named = [
        ("ROXIE_NETDEV", device.netdev.clone()),
        ("ROXIE_NAME", device.name.clone()),
        ("ROXIE_PORT", port.port.clone()),
        ("ROXIE_XDP_MODE", port.xdp_mode.clone()),
        ("ROXIE_SHM", port.shm.clone()),
        ("ROXIE_INGRESS", ingress),
        ("ROXIE_EGRESS", egress),
    ];
    variables.extend(named.into_iter().chain(traffic).filter_map(|(key, value)| Some((key, value?.into()))));
    Ok(variables)
}

/// Prints the variables.
pub(crate) fn print(args: &EnvArgs) -> Outcome {
    let variables = variables(&args.device, &args.port, &args.hooks, &args.traffic)?;
    if args.json {
        let map: serde_json::Map<String, serde_json::Value> = variables
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.to_string_lossy().into_owned().into()))
            .collect();
        terminal::print(&serde_json::Value::Object(map).to_string());
    } else {
        for (key, value) in &variables {
            terminal::print(&format!("export {key}={}", quote(&value.to_string_lossy())));
        }
    }
    Ok(())
}

/// `dir`, then the old value; an empty entry would mean the current directory.
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

/// Quotes a word for a POSIX shell.
fn quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,+=@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
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
    fn words_survive_the_shell() {
        assert_eq!(quote("/tmp/roxie-0/lib:/x"), "/tmp/roxie-0/lib:/x");
        assert_eq!(quote("a b"), "'a b'");
        assert_eq!(quote("it's"), "'it'\\''s'");
        assert_eq!(quote(""), "''");
    }
}
