//! Names of the sections that hold XDP programs.

use crate::program::ProgramKind;

/// Place where a program runs, and whether it supports packets of several fragments.
pub(super) type Place = (ProgramKind, bool);

/// Returns where the programs of a section run; `None` if the name is not one of XDP. Names are those of
/// libbpf (`xdp`, `xdp.frags`, `xdp/devmap`, `xdp.frags/cpumap`, `?xdp`) and the older ones with any ending
/// (`xdp/NAME`, `xdp_NAME`, `xdp_devmap/NAME`, `xdp1`).
pub(super) fn place_of(name: &str) -> Option<Place> {
    let name = name.strip_prefix('?').unwrap_or(name);
    let (rest, frags) = match name.strip_prefix("xdp.frags") {
        Some(rest) => (rest, true),
        None => (name.strip_prefix("xdp")?, false),
    };
    let ending = match rest.strip_prefix(if frags { &['/'][..] } else { &['/', '_'] }) {
        Some(ending) => ending,
        None => {
            let is_number = rest.bytes().all(|byte| byte.is_ascii_digit());
            return is_number.then_some((ProgramKind::Xdp, frags));
        }
    };
    let kind = match ending.split('/').next() {
        Some("devmap") => ProgramKind::XdpDevmap,
        Some("cpumap") => ProgramKind::XdpCpumap,
        _ => ProgramKind::Xdp,
    };
    Some((kind, frags))
}
#[cfg(test)]
mod tests {
    use super::super::{programs_of, write};
    use crate::program::ProgramKind;
    use crate::{Recipe, XdpAction};

    #[test]
    fn programs_are_found_in_every_section_that_is_named_for_xdp() {
        let recipe = Recipe { counters: true, ..Recipe::verdict(XdpAction::Drop) };
        let program = recipe.program("drop", ProgramKind::Xdp).unwrap();
        for (section, kind, frags) in [
            ("xdp", ProgramKind::Xdp, false),
            ("xdp.frags", ProgramKind::Xdp, true),
            ("xdp1", ProgramKind::Xdp, false),
            ("?xdp", ProgramKind::Xdp, false),
            ("xdp/drop", ProgramKind::Xdp, false),
            ("xdp_drop", ProgramKind::Xdp, false),
            ("xdp_drop/first", ProgramKind::Xdp, false),
            ("xdp.frags/drop", ProgramKind::Xdp, true),
            ("xdp/devmap", ProgramKind::XdpDevmap, false),
            ("xdp_devmap/drop", ProgramKind::XdpDevmap, false),
            ("xdp.frags/cpumap", ProgramKind::XdpCpumap, true),
            ("xdp_cpumap/drop", ProgramKind::XdpCpumap, false),
        ] {
            let file = write::write_section(&program, section).unwrap();
            let programs = programs_of(&file, None).unwrap_or_else(|error| panic!("{section}: {error}"));
            let [back] = &programs[..] else { panic!("{section}") };
            assert_eq!((&back.name[..], back.kind, back.frags), ("drop", kind, frags), "{section}");
            assert_eq!((&back.slots, &back.maps), (&program.slots, &program.maps), "{section}");
            let types = back.btf.as_ref().unwrap_or_else(|| panic!("{section}: no type information"));
            assert_eq!(types.name_of(types.func_info[0].type_id).as_deref(), Some("drop"), "{section}");
        }
    }

    #[test]
    fn a_damaged_file_with_a_renamed_section_is_refused_without_a_panic() {
        let program = Recipe::verdict(XdpAction::Pass).program("pass", ProgramKind::Xdp).unwrap();
        let file = write::write_section(&program, "xdp_pass").unwrap();
        assert!(programs_of(&file, None).is_ok());
        for at in 0..file.len() {
            for value in [0, 0x7f, 0xff] {
                let mut damaged = file.clone();
                damaged[at] = value;
                let _outcome = programs_of(&damaged, None);
            }
            let _outcome = programs_of(&file[..at], None);
        }
        let long = write::write_section(&program, &format!("xdp_{}", "x".repeat(300))).unwrap();
        let error = programs_of(&long, None).unwrap_err().to_string();
        assert!(error.contains("longer than 255 bytes"), "{error}");
    }

    #[test]
    fn a_section_that_only_begins_like_xdp_is_refused_by_name() {
        let program = Recipe::verdict(XdpAction::Pass).program("pass", ProgramKind::Xdp).unwrap();
        let file = write::write_section(&program, "xdpx").unwrap();
        let error = programs_of(&file, None).unwrap_err().to_string();
        assert!(error.contains("xdpx"), "{error}");
    }
}
