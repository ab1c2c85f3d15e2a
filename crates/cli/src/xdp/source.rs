//! The program to load: from an object file, or from a recipe.

use std::path::Path;

use bpf::object::Candidate;
use bpf::recipe::Target;
use bpf::{Action, Program, ProgramKind, Stage};

use super::args::SourceArgs;
use super::fill::Fill;
use super::recipe;
use crate::failure::{During, Failure, Outcome};
use crate::hook::object::{list, programs as candidates};

/// A program, and the initial entries of its maps.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) program: Program,
    /// The same for the network stack, where `program` would complete checksums that are completed later, or
    /// lose what it redirects to a CPU, or what is longer than an interface takes; `None` if it does neither.
    pub(super) plain: Option<Program>,
    /// Whether a part is an object file, which completes no checksums.
    pub(super) has_object: bool,
    /// Initial entries, each with the index of its map.
    pub(super) fill: Vec<(usize, Fill)>,
    /// The last blocks of a program made from recipes.
    pub(super) actions: Vec<Action>,
    /// See [`recipe::Cooked::queues`].
    pub(super) queues: Option<u32>,
}

/// Loads the program that the arguments name.
pub(super) fn load(args: &SourceArgs) -> Outcome<Source> {
    if let Some(text) = &args.recipe {
        return parts(text);
    }
    let Some(path) = &args.object else {
        return Err(Failure::new("neither an object file nor a recipe").code(2));
    };
    let meant = path.to_str().filter(|_| !path.exists()).and_then(recipe::meant);
    let program = one_of(path, args.section.as_deref(), args.prog.as_deref());
    let program = program.map_err(|failure| failure.hint_if(meant))?;
    Ok(Source { program, plain: None, has_object: true, fill: Vec::new(), actions: Vec::new(), queues: None })
}

/// All programs that the arguments name: those of an object file unless one is chosen.
pub(super) fn load_all(args: &SourceArgs) -> Outcome<Vec<Program>> {
    match &args.object {
        Some(path) if args.prog.is_none() && args.section.is_none() => {
            let name = path.display().to_string();
            let mut all = candidates(path)?;
            if !all.iter().any(|one| one.kind == Some(ProgramKind::Xdp)) {
                return Err(without_xdp(&all)).during(&name);
            }
            all.retain(|one| one.kind == Some(ProgramKind::Xdp));
            all.into_iter().map(|found| found.program.during(&name)).collect()
        }
        _ => load(args).map(|source| vec![source.program]),
    }
}

/// Loads the program for an entry of a map that `FILE` or `FILE:PROGRAM` names.
pub(crate) fn entry_program(text: &str, kind: ProgramKind) -> Outcome<Program> {
    let (path, name) = object_of(text)
        .ok_or_else(|| Failure::new(format!("{text}: no such object file (FILE.o or FILE.o:PROGRAM)")))?;
    let all = candidates(path)?;
    let is_it = |one: &&Candidate| one.is(None, name) && (name.is_some() || one.kind == Some(kind));
    let found: Vec<_> = all.iter().filter(is_it).cloned().collect();
    if let [one] = &found[..] {
        return Ok(Program { kind, ..one.program.clone().during(text)? });
    }
    let (what, all) = if found.is_empty() { ("no such program", all) } else { ("several programs", found) };
    let section = match kind {
        ProgramKind::XdpCpumap => " in a section xdp/cpumap",
        ProgramKind::XdpDevmap => " in a section xdp/devmap",
        _ => "",
    };
    let section = if name.is_none() { section } else { "" };
    Err(Failure::new(format!("{text}: {what}{section}"))
        .hint(format!("name one of them, as in FILE.o:PROGRAM: {}", list(&all))))
}

/// Makes a program of recipes and object files that are joined by `+`.
fn parts(text: &str) -> Outcome<Source> {
    let wrong = |error: &dyn std::fmt::Display| Failure::new(format!("recipe {text}: {error}")).code(2);
    let (mut programs, mut plains, mut fills) = (Vec::new(), Vec::new(), Vec::new());
    let (mut has_object, mut differs) = (false, false);
    let (mut actions, mut queues) = (Vec::new(), None);
    for part in split(text) {
        if let Some((path, name)) = object_of(part) {
            programs.push(one_of(path, None, name)?);
            plains.extend(programs.last().cloned());
            has_object = true;
            fills.push(Vec::new());
            continue;
        }
        let cooked = recipe::parse(part)?;
        let make = |recipe: &bpf::Recipe| {
            recipe.program(&cooked.name, ProgramKind::Xdp).map_err(|error| wrong(&error))
        };
        programs.push(make(&cooked.recipe)?);
        let mut plain = cooked.recipe.clone();
        plain.stages.retain(|stage| *stage != Stage::Checksum);
        if matches!(plain.action, Action::Redirect { target: Target::Dev, .. }) {
            plain.stages.push(Stage::Mtu);
        }
        // In the network stack, the kernel (6.18) loses packets that a multi-buffer program redirects to
        // another CPU: a UDP datagram arrives there with an invalid IP header.
        plain.frags &= cooked.fill.iter().all(|fill| fill.cpus().is_none());
        differs |= plain != cooked.recipe;
        plains.push(make(&plain)?);
        fills.push(cooked.fill);
        actions.push(cooked.recipe.action);
        queues = queues.max(cooked.queues);
    }
    let mut fill = Vec::new();
    let index = |program: &Program, fill: &Fill| program.map(fill.map()).map(bpf::MapRef::index);
    if let [program] = &programs[..] {
        fill.extend(fills.concat().into_iter().filter_map(|fill| Some((index(program, &fill)?, fill))));
        let plain = differs.then(|| plains.swap_remove(0));
        return Ok(Source { program: programs.swap_remove(0), plain, has_object, fill, actions, queues });
    }
    let joined = bpf::join("roxie_joined", &programs).map_err(|error| wrong(&error))?;
    for ((program, fills), first) in programs.iter().zip(fills).zip(&joined.first_map) {
        fill.extend(fills.into_iter().filter_map(|fill| Some((index(program, &fill)? + first, fill))));
    }
    let plain = differs.then(|| bpf::join("roxie_joined", &plains)).transpose();
    let plain = plain.map_err(|error| wrong(&error))?.map(|joined| joined.program);
    Ok(Source { program: joined.program, plain, has_object, fill, actions, queues })
}

/// Splits at each `+` that a recipe's name or an object file follows: other ones are within parameters.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut start) = (Vec::new(), 0);
    for (at, _) in text.match_indices('+') {
        let rest = &text[at + 1..];
        let next = rest.split('+').next().unwrap_or(rest);
        if recipe::is_name(next.split(':').next().unwrap_or(next)) || object_of(next).is_some() {
            parts.push(text[start..at].trim());
            start = at + 1;
        }
    }
    parts.push(text[start..].trim());
    parts
}

/// The object file that `PATH` or `PATH:PROGRAM` names, if it is there.
fn object_of(text: &str) -> Option<(&Path, Option<&str>)> {
    let text = text.trim();
    if recipe::is_name(text.split(':').next().unwrap_or(text)) {
        return None;
    }
    let whole = Path::new(text);
    if whole.is_file() || text.ends_with(".o") {
        return Some((whole, None));
    }
    let (path, name) = text.rsplit_once(':')?;
    (Path::new(path).is_file() || path.ends_with(".o")).then_some((Path::new(path), Some(name)))
}

/// The program of an object file with this section and name.
fn one_of(path: &Path, section: Option<&str>, program: Option<&str>) -> Outcome<Program> {
    let name = path.display().to_string();
    let chosen = choose(candidates(path)?, section, program).during(&name)?;
    chosen.program.during(&name)
}

/// Finds the program with this section and name, whatever the section; without both, the one that is for
/// interfaces by the name of its section.
fn choose(all: Vec<Candidate>, section: Option<&str>, name: Option<&str>) -> Result<Candidate, String> {
    let is_named = section.is_some() || name.is_some();
    let mut found: Vec<_> = all
        .iter()
        .filter(|one| one.is(section, name) && (is_named || one.kind == Some(ProgramKind::Xdp)))
        .cloned()
        .collect();
    if let [one] = &mut found[..] {
        if let Ok(program) = &mut one.program {
            program.kind = ProgramKind::Xdp;
        }
        return Ok(found.swap_remove(0));
    }
    Err(match (found.is_empty(), section, name) {
        (true, Some(section), None) => {
            format!("no program in a section '{section}'; there are: {}", list(&all))
        }
        (true, _, Some(name)) => format!("no such program '{name}'; there are: {}", list(&all)),
        (true, None, None) => without_xdp(&all),
        (false, ..) => format!("several programs, choose one with --prog: {}", list(&found)),
    })
}

fn without_xdp(all: &[Candidate]) -> String {
    format!("no program is in a section of XDP, choose one with --prog: {}", list(all))
}

#[cfg(test)]
mod tests {
    use bpf::{Recipe, XdpAction};

    use super::*;

    fn programs() -> Vec<Candidate> {
        let program = |name: &str, kind, section: &str| {
            let program = Recipe::verdict(XdpAction::Pass).program(name, kind).unwrap();
            let kind = (section != "prog").then_some(kind);
            Candidate { name: name.to_owned(), section: section.to_owned(), kind, program: Ok(program) }
        };
        vec![
            program("first", ProgramKind::Xdp, "xdp"),
            program("second", ProgramKind::Xdp, "xdp.frags"),
            program("third", ProgramKind::Xdp, "xdp.frags"),
            program("inner", ProgramKind::XdpCpumap, "xdp/cpumap"),
            program("other", ProgramKind::Xdp, "prog"),
        ]
    }

    #[test]
    fn a_program_is_found_by_section_or_name() {
        let name = |section, prog| choose(programs(), section, prog).map(|program| program.name);
        assert_eq!(name(Some("xdp"), None), Ok("first".to_owned()));
        assert_eq!(name(None, Some("third")), Ok("third".to_owned()));
        assert_eq!(name(Some("xdp.frags"), Some("second")), Ok("second".to_owned()));
        // What the user names is meant, whatever the section says.
        assert_eq!(name(Some("prog"), None), Ok("other".to_owned()));
        let inner = choose(programs(), Some("xdp/cpumap"), None).unwrap();
        assert_eq!((&inner.name[..], inner.program.unwrap().kind), ("inner", ProgramKind::Xdp));
        let unnamed: Vec<_> = programs().drain(3..).collect();
        let error = choose(unnamed, None, None).unwrap_err();
        assert!(error.ends_with("with --prog: inner (xdp/cpumap), other (prog)"), "{error}");
        for (section, prog, want) in [
            (None, None, "choose one with --prog: first (xdp), second (xdp.frags), third (xdp.frags)"),
            (Some("xdp.frags"), None, "choose one with --prog: second (xdp.frags), third (xdp.frags)"),
            (Some("tc"), None, "no program in a section 'tc'; there are: first (xdp)"),
            (
                Some("xdp"),
                Some("second"),
                "no such program 'second'; there are: first (xdp), second (xdp.frags)",
            ),
            (None, Some("nonesuch"), "inner (xdp/cpumap), other (prog)"),
        ] {
            let error = name(section, prog).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
