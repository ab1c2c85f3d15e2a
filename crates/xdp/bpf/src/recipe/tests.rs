//! Tests which recipes assemble. The machine (`vm`) and the kernel are used to test what the programs do.

use super::super::*;
use super::*;

fn roce(action: Action) -> Recipe {
    Recipe { action, ..Recipe::steer(4791, 4) }
}

#[test]
fn a_recipe_with_a_plain_verdict_has_two_instructions() {
    for action in [XdpAction::Aborted, XdpAction::Drop, XdpAction::Pass, XdpAction::Tx] {
        let program = Recipe::verdict(action).program("v", ProgramKind::Xdp).unwrap();
        assert_eq!(program.slots.len(), 2);
        assert_eq!(program.slots[0].imm, action.number() as i32);
        assert!(program.maps.is_empty());
    }
}

#[test]
fn the_steering_program_has_the_maps_that_its_loader_fills() {
    let program =
        Recipe { frags: true, ..Recipe::steer(4791, 8) }.program("steer", ProgramKind::Xdp).unwrap();
    let slots = &program.maps[program.map(SLOTS).unwrap().index()];
    assert_eq!(
        (slots.kind, slots.key_size, slots.value_size, slots.max_entries),
        (MapKind::Array, 4, 4, 4096)
    );
    let xsks = &program.maps[program.map("xsks").unwrap().index()];
    assert_eq!((xsks.kind, xsks.max_entries), (MapKind::Xskmap, 8));
    assert_eq!(program.flags(), Program::HAS_FRAGS);
    let addresses = &program.maps[program.map(ADDRESSES).unwrap().index()];
    assert_eq!((addresses.kind, addresses.key_size), (MapKind::Hash, 16));
    assert_eq!(program.map("counters"), None);
}

#[test]
fn a_block_that_needs_unparsed_fields_is_refused() {
    let refused = |recipe: Recipe| recipe.program("x", ProgramKind::Xdp).unwrap_err();
    let all = Recipe { select: Select::All, ..Recipe::steer(4791, 1) };
    assert_eq!(refused(all), RecipeError::NeedsSource("the destination address"));
    let ip = Recipe { stages: vec![Stage::Owned], select: Select::Ip, ..Recipe::verdict(XdpAction::Pass) };
    assert_eq!(refused(ip), RecipeError::NeedsDestQp("ownership of QPNs"));
    let police = Police { bytes_per_s: 1 << 20, burst_bytes: 1 << 20, entries: 16 };
    let all = Recipe { stages: vec![Stage::Police(police)], ..Recipe::verdict(XdpAction::Pass) };
    assert_eq!(refused(all), RecipeError::NeedsSource("policing"));
    let spread = Action::Redirect {
        target: Target::Cpu,
        entries: 4,
        pick: Pick::Qpn { ways: 4 },
        miss: XdpAction::Pass,
    };
    let ip = Recipe { select: Select::Ip, stages: Vec::new(), ..roce(spread) };
    assert_eq!(refused(ip), RecipeError::NeedsDestQp("selection by QPN"));
    assert_eq!(refused(roce(Action::Verdict(XdpAction::Redirect))), RecipeError::NoTarget);
    for name in ["", "0x", "with space", "sixteen_letters_", "ä"] {
        let error = Recipe::verdict(XdpAction::Pass).program(name, ProgramKind::Xdp).unwrap_err();
        assert_eq!(error, RecipeError::Name(name.to_owned()));
    }
}

#[test]
fn numbers_outside_their_range_are_refused() {
    let stage = |stage| Recipe { stages: vec![stage], ..Recipe::steer(4791, 1) };
    let sample = Sample { snap_len: 128, every: 1, ring_bytes: 4096, wakeup_bytes: 0 };
    let police = Police { bytes_per_s: 1 << 20, burst_bytes: 1, entries: 1 };
    for recipe in [
        stage(Stage::Sample(Sample { snap_len: 0, ..sample })),
        stage(Stage::Sample(Sample { snap_len: 4096, ..sample })),
        stage(Stage::Sample(Sample { every: 0, ..sample })),
        stage(Stage::Sample(Sample { every: u32::MAX, ..sample })),
        stage(Stage::Sample(Sample { ring_bytes: 5000, ..sample })),
        stage(Stage::Sample(Sample { wakeup_bytes: 4096, ..sample })),
        stage(Stage::Access(Access { default_allow: true, entries: 0 })),
        stage(Stage::Police(Police { bytes_per_s: 1023, ..police })),
        stage(Stage::Police(Police { burst_bytes: 0, ..police })),
        stage(Stage::Police(Police { entries: 0, ..police })),
        Recipe::steer(0, 1),
        Recipe::steer(4791, 0),
        roce(Action::Forward { ports: 0 }),
    ] {
        let error = recipe.program("x", ProgramKind::Xdp).unwrap_err();
        assert!(matches!(error, RecipeError::Range(_)), "{recipe:?}: {error}");
    }
    assert!(stage(Stage::Sample(sample)).program("x", ProgramKind::Xdp).is_ok());
}
