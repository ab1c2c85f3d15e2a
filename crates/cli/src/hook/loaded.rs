//! Hands the hooks of a command to its processes: the libraries load no object files.
//!
//! A hook with programs becomes a file in a private directory, and the environment names the file. Equal
//! hooks share a file. It is removed a week after its last use, unless a process names it.

use std::ffi::OsStr;
use std::time::SystemTime;

use roxie_hook::HookPlan;
use sys::Dir;

use crate::failure::{During, Failure, Outcome};
use crate::own::unpacked;
use crate::user_dir::{self, not_trusted};

/// Start of the directory's name; the fingerprint of the hook follows.
pub(crate) const PREFIX: &str = "hook-";
const FILE: &str = "plan";

/// Writes the hook into its file; returns the text that names it.
pub(super) fn text(plan: HookPlan) -> Outcome<String> {
    text_in(user_dir::base_dir()?.dir(), plan)
}

fn text_in(base: &Dir, plan: HookPlan) -> Outcome<String> {
    let bytes = encoded(plan).ok_or_else(exceeds)?;
    let name = format!("{PREFIX}{:016x}", user_dir::fingerprint(&bytes));
    let dir = base.private(OsStr::new(&name)).map_err(|why| not_trusted(&why))?;
    let path = dir.path().join(FILE);
    let now = SystemTime::now();
    // First: another command removes what was not used for long. Only that removal reads it.
    dir.set_modified(now).ok();
    if dir.read(OsStr::new(FILE)).ok().as_ref() != Some(&bytes) {
        dir.replace(OsStr::new(FILE), &bytes, 0o600).writing(&path)?;
    }
    unpacked::sweep(base, PREFIX, now, unpacked::UNUSED);
    let path = path.to_str().ok_or_else(|| Failure::new(format!("{}: not UTF-8", path.display())))?;
    Ok(format!("{}{path}", HookPlan::LOADED))
}

/// Why processes refuse a hook that this program has built.
pub(super) fn exceeds() -> Failure {
    Failure::new(format!("the hook exceeds a limit of processes: {}", HookPlan::LIMITS)).code(2)
}

/// The hook as bytes, if the processes will accept it. Only readers of its maps need the types.
pub(super) fn encoded(plan: HookPlan) -> Option<Vec<u8>> {
    let accepted = |bytes: &Vec<u8>| HookPlan::from_bytes(bytes).is_some();
    let whole = Some(plan.to_bytes()).filter(accepted);
    whole.or_else(|| Some(plan.without_types().to_bytes()).filter(accepted))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use bpf::{ProgramKind, Recipe, XdpAction};
    use roxie_hook::HookError;
    use sys::Walk;

    use super::*;

    #[test]
    fn equal_hooks_share_a_file_that_the_device_reads() {
        let path = std::path::Path::new("/tmp").join(format!("roxie-loaded-{:016x}", sys::random_u64()));
        let base = Dir::prove(&path, Walk { make: Some(0o700), ..Walk::default() }).expect("made");
        let plan = |action| {
            let program = Recipe::verdict(action).program("p", ProgramKind::Xdp).expect("a program");
            HookPlan::read_with("count+x.o", |_| Ok::<_, HookError>(program.clone())).expect("a plan")
        };
        let text = |action| text_in(&base, plan(action)).expect("written");
        let (drop, pass) = (text(XdpAction::Drop), text(XdpAction::Pass));
        assert_eq!((text(XdpAction::Drop), base.names().expect("listed").len()), (drop.clone(), 2));
        let read = |text: &str| HookPlan::read(text).expect("a plan").without_types();
        assert_eq!(read(&drop), plan(XdpAction::Drop).without_types());
        // What another program wrote there is replaced.
        let file = pass.strip_prefix(HookPlan::LOADED).expect("a file");
        fs::write(file, "nothing").expect("written");
        assert_eq!(text(XdpAction::Pass), pass);
        assert_eq!(read(&pass), plan(XdpAction::Pass).without_types());
        fs::remove_dir_all(path).expect("cleaned");
    }
}
