//! `roxie xdp detach`.

use roxie::xdp::{Mode, RemoveError, remove};

use super::args::DetachArgs;
use super::{interface, known_as};
use crate::failure::{Failure, Outcome};
use crate::terminal::Terminal;

/// Detaches the program.
pub(super) fn detach(args: &DetachArgs) -> Outcome {
    let link = interface(&args.netdev)?;
    let wanted = link.xdp.iter().filter(|there| match args.mode {
        Mode::Auto => true,
        Mode::Only(mode) => there.mode == mode,
    });
    let wanted: Vec<_> = wanted.copied().collect();
    if wanted.is_empty() {
        let there = link.xdp.first().map(|there| format!("there is one in {} mode", there.mode));
        return Err(Failure::new(format!("{}: no XDP program to detach", link.name)).hint_if(there));
    }
    for there in wanted {
        let name = known_as(there.program_id);
        let what = format!("{name} (id {}, {} mode)", there.program_id, there.mode);
        remove(link.index, there, args.force).map_err(|error| {
            let hint = match &error {
                RemoveError::Held(_) => Some("a process or a pin may use it; detach it with --force"),
                RemoveError::Kernel(error) => (error.kind() == std::io::ErrorKind::PermissionDenied)
                    .then_some("needs CAP_NET_ADMIN: try with sudo"),
            };
            Failure::new(format!("{}: {what}: {error}", link.name)).hint_if(hint)
        })?;
        Terminal::stdout().line(&format!("{}: {what} detached", link.name));
    }
    Ok(())
}
