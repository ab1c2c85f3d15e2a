//! `roxie xdp detach`.

use roxie::xdp::{Mode, RemoveError, remove};

use super::args::DetachArgs;
use super::{interface, known_as};
use crate::failure::{Failure, Outcome};
use crate::terminal::Terminal;

/// Detaches the program.
pub(super) fn detach(args: &DetachArgs) -> Outcome {
    let link = interface(&args.netdev)?;
    let wanted = link.xdp.iter().filter(|there| match args.mode.mode() {
        Mode::Auto => true,
        Mode::Only(mode) => there.mode == mode,
    });
    let wanted: Vec<_> = wanted.copied().collect();
    if wanted.is_empty() {
        let failure = Failure::new(format!("{}: no XDP program to detach", link.name));
        return Err(match link.xdp.first() {
            Some(there) => failure.hint(format!("there is one in {} mode", there.mode)),
            None => failure,
        });
    }
    for there in wanted {
        let name = known_as(there.program_id);
        let what = format!("{name} (id {}, {} mode)", there.program_id, there.mode);
        remove(link.index, there, args.force).map_err(|error| {
            let failure = Failure::new(format!("{}: {what}: {error}", link.name));
            match &error {
                RemoveError::Held(_) => failure.hint("a process or a pin may use it; detach it with --force"),
                RemoveError::Kernel(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    failure.hint("needs CAP_NET_ADMIN: try with sudo")
                }
                RemoveError::Kernel(_) => failure,
            }
        })?;
        Terminal::stdout().line(&format!("{}: {what} detached", link.name));
    }
    Ok(())
}
