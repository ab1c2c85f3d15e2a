//! Names of the sections that hold XDP programs.

use crate::program::ProgramKind;

/// Returns where the programs of a section run, `None` if the name is not one of XDP, and whether they
/// support packets of several fragments. Names are those of libbpf (`xdp`, `xdp.frags`, `xdp/devmap`,
/// `xdp.frags/cpumap`, `?xdp`) and the older ones with any ending (`xdp/NAME`, `xdp_NAME`,
/// `xdp_devmap/NAME`, `xdp1`).
pub(super) fn place_of(name: &str) -> (Option<ProgramKind>, bool) {
    let name = name.strip_prefix('?').unwrap_or(name);
    let (rest, frags) = match name.strip_prefix("xdp.frags") {
        Some(rest) => (rest, true),
        None => match name.strip_prefix("xdp") {
            Some(rest) => (rest, false),
            None => return (None, false),
        },
    };
    let kind = match rest.strip_prefix(if frags { &['/'][..] } else { &['/', '_'] }) {
        Some(ending) => match ending.split('/').next() {
            Some("devmap") => Some(ProgramKind::XdpDevmap),
            Some("cpumap") => Some(ProgramKind::XdpCpumap),
            _ => Some(ProgramKind::Xdp),
        },
        None => rest.bytes().all(|byte| byte.is_ascii_digit()).then_some(ProgramKind::Xdp),
    };
    (kind, frags)
}

#[cfg(test)]
mod tests {
    use super::super::{Kernel, ObjectError, candidates, programs_of, write};
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
    fn a_program_in_a_section_of_any_name_is_found_if_it_is_named() {
        let program = Recipe::verdict(XdpAction::Pass).program("pass", ProgramKind::Xdp).unwrap();
        for (section, frags) in [("xdpx", false), ("prog", false), ("xdp my", false), ("xdp.frags_x", true)] {
            let file = write::write_section(&program, section).unwrap();
            assert_eq!(programs_of(&file, None), Err(ObjectError::NoPrograms), "{section}");
            let [found] = &candidates(&file, &Kernel::default()).unwrap()[..] else { panic!("{section}") };
            assert!(found.is(Some(section), None) && found.is(None, Some("pass")), "{section}");
            assert!(!found.is(Some("xdp"), None) && !found.is(Some(section), Some("other")), "{section}");
            let linked = found.program.as_ref().unwrap();
            assert_eq!((found.kind, linked.kind, linked.frags), (None, ProgramKind::Xdp, frags));
        }
    }
}
