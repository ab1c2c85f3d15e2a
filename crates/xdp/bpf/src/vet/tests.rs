//! Tests of the static checks: what is reported and what is not.

use super::*;
use crate::insn::{Cond, Operand, Size, Width};
use crate::map::MapDef;
use crate::{Asm, XdpMd};

fn objection(emit: impl FnOnce(&mut Asm)) -> Option<(usize, ObjectionKind)> {
    let mut asm = Asm::new("vetted");
    emit(&mut asm);
    vet(&asm.finish().unwrap()).first().map(|objection| (objection.slot, objection.kind))
}

/// `if r2 COND src goto` with a distance.
fn branch(cond: Cond, src: impl Into<Operand>, off: i16) -> Insn {
    Insn::Branch { width: Width::W64, cond, dst: Reg::R2, src: src.into(), off }
}

/// `r2 = ctx->data; r3 = ctx->data_end`
fn bounds(asm: &mut Asm) -> &mut Asm {
    asm.load(Size::W, Reg::R2, Reg::R1, 0).load(Size::W, Reg::R3, Reg::R1, 4)
}

#[test]
fn unreachable_code_and_endless_loops_are_found() {
    let dead = objection(|asm| {
        asm.mov(Reg::R0, 2).exit().mov(Reg::R0, 1).exit();
    });
    assert_eq!(dead, Some((2, ObjectionKind::Unreachable)));
    let ends_at_7 = objection(|asm| {
        asm.mov(Reg::R0, 2).mov(Reg::R2, 0);
        asm.insn(branch(Cond::Eq, 7, 2)).add(Reg::R2, 1).insn(Insn::Jump { off: -3 });
        asm.exit();
    });
    assert_eq!(ends_at_7, None);
    let endless = objection(|asm| {
        asm.mov(Reg::R0, 2).mov(Reg::R2, Reg::R1).insn(branch(Cond::Eq, Reg::R1, 1)).exit();
        asm.mov(Reg::R2, 0).insn(Insn::Jump { off: -2 });
    });
    assert_eq!(endless, Some((4, ObjectionKind::Endless)));
}

#[test]
fn a_register_that_no_path_has_written_is_found() {
    assert_eq!(
        objection(|asm| {
            asm.exit();
        }),
        Some((0, ObjectionKind::Unset(Reg::R0)))
    );
    let after_call = objection(|asm| {
        asm.mov(Reg::R0, 2).insn(Insn::CallHelper { id: Helper::KtimeGetNs.id() });
        asm.mov(Reg::R0, Reg::R1).exit();
    });
    assert_eq!(after_call, Some((2, ObjectionKind::Unset(Reg::R1))), "a call clobbers it");
    let sometimes = objection(|asm| {
        bounds(asm).mov(Reg::R0, 2).insn(branch(Cond::Gt, Reg::R3, 1)).mov(Reg::R4, 1);
        asm.insn(branch(Cond::Gt, Reg::R3, 1)).add(Reg::R0, Reg::R4).exit();
    });
    assert_eq!(sometimes, None, "the kernel knows that both branches go the same way");
}

#[test]
fn accesses_outside_context_fields_and_stack_are_found() {
    for (off, size) in [(0, Size::B), (0, Size::Dw), (2, Size::W), (24, Size::W), (-4, Size::W)] {
        let found = objection(|asm| {
            asm.load(size, Reg::R0, Reg::R1, off).exit();
        });
        let kind = ObjectionKind::Context { off: off.into(), size: size.bytes() };
        assert_eq!(found, Some((0, kind)));
    }
    let written = objection(|asm| {
        asm.mov(Reg::R0, 2).store(Size::W, Reg::R1, 0, 0).exit();
    });
    assert_eq!(written, Some((1, ObjectionKind::Context { off: 0, size: 4 })));
    assert_eq!(
        objection(|asm| {
            asm.load(Size::W, Reg::R0, Reg::R1, 16).exit();
        }),
        None
    );
    for (off, size, good) in
        [(-512, Size::Dw, true), (-8, Size::Dw, true), (-513, Size::B, false), (-4, Size::Dw, false)]
    {
        let found = objection(|asm| {
            asm.mov(Reg::R0, 2).store(size, Reg::R10, off, 0).exit();
        });
        let kind = ObjectionKind::Stack { off: off.into() };
        assert_eq!(found, (!good).then_some((1, kind)), "{off}");
    }
}

#[test]
fn packet_accesses_without_a_bounds_check_are_found() {
    let unchecked = objection(|asm| {
        bounds(asm).load(Size::B, Reg::R0, Reg::R2, 0).exit();
    });
    assert_eq!(unchecked, Some((2, ObjectionKind::Unchecked)));
    let behind = objection(|asm| {
        bounds(asm).load(Size::B, Reg::R0, Reg::R3, 0).exit();
    });
    assert_eq!(behind, Some((2, ObjectionKind::BehindEnd)));
    let checked = |asm: &mut Asm| {
        bounds(asm).mov(Reg::R0, 1).mov(Reg::R6, Reg::R2).add(Reg::R2, 14);
        asm.insn(branch(Cond::Le, Reg::R3, 1)).exit();
    };
    let good = objection(|asm| {
        checked(asm);
        asm.load(Size::H, Reg::R0, Reg::R6, 12).exit();
    });
    assert_eq!(good, None);
    let moved = objection(|asm| {
        checked(asm);
        asm.mov(Reg::R2, 4).insn(Insn::CallHelper { id: Helper::XdpAdjustHead.id() });
        asm.load(Size::H, Reg::R0, Reg::R6, 12).exit();
    });
    assert_eq!(moved, Some((9, ObjectionKind::Moved)));
}

#[test]
fn lookups_without_a_map_or_a_null_check_are_found() {
    let lookup = |asm: &mut Asm| {
        let map = asm.map(MapDef::array("numbers", 8, 1));
        asm.store(Size::W, Reg::R10, -4, 0).mov(Reg::R2, Reg::R10).add(Reg::R2, -4).load_map(Reg::R1, map);
        asm.insn(Insn::CallHelper { id: Helper::MapLookupElem.id() });
    };
    let unchecked = objection(|asm| {
        lookup(asm);
        asm.load(Size::Dw, Reg::R0, Reg::R0, 0).exit();
    });
    assert_eq!(unchecked, Some((6, ObjectionKind::MaybeNull)));
    let checked = objection(|asm| {
        lookup(asm);
        let null = asm.label();
        asm.branch(Cond::Eq, Reg::R0, 0, null).load(Size::Dw, Reg::R0, Reg::R0, 0).bind(null).exit();
    });
    assert_eq!(checked, None);
    let no_map = objection(|asm| {
        asm.insn(Insn::CallHelper { id: Helper::MapLookupElem.id() }).mov(Reg::R0, 2).exit();
    });
    assert_eq!(no_map, Some((0, ObjectionKind::Argument(Helper::MapLookupElem))));
    let null = objection(|asm| {
        asm.mov(Reg::R2, 0).load(Size::B, Reg::R0, Reg::R2, 0).exit();
    });
    assert_eq!(null, Some((1, ObjectionKind::Number(0))));
}

#[test]
fn code_behind_a_branch_that_is_never_taken_is_not_checked() {
    let found = objection(|asm| {
        asm.mov(Reg::R0, 2).mov(Reg::R2, 0).insn(branch(Cond::Eq, 0, 1));
        asm.load(Size::B, Reg::R0, Reg::R2, 0).exit();
    });
    assert_eq!(found, None);
}

#[test]
fn arguments_of_inner_functions_are_unknown() {
    let found = objection(|asm| {
        let inner = asm.declare("inner", 2);
        bounds(asm).mov(Reg::R1, Reg::R2).call_function(inner).mov(Reg::R0, 2).exit();
        asm.function(inner).load(Size::B, Reg::R6, Reg::R1, 0).exit();
    });
    assert_eq!(found, None, "an inner function need not set r0");
}

#[test]
fn fatal_objections_come_first() {
    let mut asm = Asm::new("mixed");
    bounds(&mut asm).load(Size::B, Reg::R0, Reg::R2, 0).store(Size::W, Reg::R1, 0, 0).exit();
    let found = vet(&asm.finish().unwrap());
    let slots: Vec<_> = found.iter().map(|objection| (objection.slot, objection.is_fatal())).collect();
    assert_eq!(slots, [(3, true), (2, false)]);
}

#[test]
fn an_objection_displays_the_instruction() {
    let mut asm = Asm::new("careless");
    asm.load_ctx(Reg::R2, Reg::R1, XdpMd::Data).load(Size::B, Reg::R0, Reg::R2, 3).exit();
    let objection = vet(&asm.finish().unwrap())[0].to_string();
    assert_eq!(
        objection,
        "slot 1 (r0 = *(u8 *)(r2 +3)): the packet is accessed without a prior comparison with data_end"
    );
}

#[test]
fn programs_of_recipes_have_no_objections() {
    use crate::recipe::{Action, Recipe, Target};
    use crate::{Pick, ProgramKind, XdpAction};
    let action = Action::Redirect {
        target: Target::Cpu,
        entries: 4,
        pick: Pick::Qpn { ways: 4 },
        miss: XdpAction::Pass,
    };
    for recipe in [Recipe::steer(4791, 4), Recipe { action, counters: true, ..Recipe::steer(4791, 4) }] {
        assert_eq!(vet(&recipe.program("made", ProgramKind::Xdp).unwrap()), []);
    }
}
