//! The program to load: from an object file, or from a recipe.

use bpf::object::Candidate;
use bpf::{Action, Program, ProgramKind};
use roxie::hook::{KernelFacts, read_object};

use super::args::SourceArgs;
use super::fill::Fill;
use super::recipe;
use crate::failure::{During, Failure, Outcome};

/// A program, and the initial entries of its maps.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) program: Program,
    pub(super) fill: Vec<Fill>,
    /// The last block of a program made from a recipe.
    pub(super) action: Option<Action>,
    /// See [`recipe::Cooked::queues`].
    pub(super) queues: Option<u32>,
}

/// Loads the program that the arguments name.
pub(super) fn load(args: &SourceArgs) -> Outcome<Source> {
    if let Some(text) = &args.recipe {
        let cooked = recipe::parse(text)?;
        let program = cooked.recipe.program(&cooked.name, ProgramKind::Xdp);
        let program = program.map_err(|error| Failure::new(format!("recipe {text}: {error}")).code(2))?;
        let action = Some(cooked.recipe.action);
        return Ok(Source { program, fill: cooked.fill, action, queues: cooked.queues });
    }
    let Some(path) = &args.object else {
        return Err(Failure::new("neither an object file nor a recipe").code(2));
    };
    let name = path.display().to_string();
    let object = read_object(path).during(&name)?;
    let found = bpf::object::candidates(&object, &KernelFacts::read().kernel()).during(&name)?;
    let chosen = choose(found, args.section.as_deref(), args.prog.as_deref()).during(&name)?;
    let program = chosen.program.during(&name)?;
    Ok(Source { program, fill: Vec::new(), action: None, queues: None })
}

/// Finds the program with this section and name.
fn choose(
    all: Vec<Candidate>,
    wanted_section: Option<&str>,
    wanted: Option<&str>,
) -> Result<Candidate, String> {
    let (all, others): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|program| program.kind == ProgramKind::Xdp);
    let list = |programs: &[Candidate]| {
        let words = programs.iter().map(|program| format!("{} ({})", program.name, program.section));
        words.collect::<Vec<_>>().join(", ")
    };
    if let Some(program) = others.iter().find(|program| {
        wanted_section.is_some_and(|wanted| wanted == program.section) || wanted == Some(&program.name)
    }) {
        return Err(format!(
            "{} is for an entry of a map, not for an interface",
            list(std::slice::from_ref(program))
        ));
    }
    let mut found: Vec<Candidate> = all
        .iter()
        .filter(|program| wanted_section.is_none_or(|wanted| wanted == program.section))
        .filter(|program| wanted.is_none_or(|wanted| wanted == program.name))
        .cloned()
        .collect();
    if found.len() == 1 {
        return Ok(found.swap_remove(0));
    }
    Err(match (found.is_empty(), wanted_section, wanted) {
        (true, Some(wanted), None) => {
            format!("no program in a section '{wanted}'; there are: {}", list(&all))
        }
        (true, ..) => format!("no such program; there are: {}", list(&all)),
        (false, ..) => format!("several programs, choose one with --prog: {}", list(&found)),
    })
}

#[cfg(test)]
mod tests {
    use bpf::{Recipe, XdpAction};

    use super::*;

    fn programs() -> Vec<Candidate> {
        let program = |name: &str, kind, section: &str| {
            let program = Recipe::verdict(XdpAction::Pass).program(name, kind).unwrap();
            Candidate { name: name.to_owned(), section: section.to_owned(), kind, program: Ok(program) }
        };
        vec![
            program("first", ProgramKind::Xdp, "xdp"),
            program("second", ProgramKind::Xdp, "xdp.frags"),
            program("third", ProgramKind::Xdp, "xdp.frags"),
            program("inner", ProgramKind::XdpCpumap, "xdp/cpumap"),
        ]
    }

    #[test]
    fn a_program_is_found_by_section_or_name() {
        let name = |section, prog| choose(programs(), section, prog).map(|program| program.name);
        assert_eq!(name(Some("xdp"), None), Ok("first".to_owned()));
        assert_eq!(name(None, Some("third")), Ok("third".to_owned()));
        assert_eq!(name(Some("xdp.frags"), Some("second")), Ok("second".to_owned()));
        for (section, prog, want) in [
            (None, None, "choose one with --prog: first (xdp), second (xdp.frags), third (xdp.frags)"),
            (Some("xdp.frags"), None, "choose one with --prog: second (xdp.frags), third (xdp.frags)"),
            (Some("tc"), None, "no program in a section 'tc'; there are: first (xdp)"),
            (Some("xdp"), Some("second"), "no such program"),
            (None, Some("inner"), "inner (xdp/cpumap) is for an entry of a map"),
        ] {
            let error = name(section, prog).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
