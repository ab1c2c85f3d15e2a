//! Fuses pairs and triples of operations that occur in every packet parser.
//!
//! Only the first operation of a sequence changes. It does the work of all, reads the others in place and
//! skips them. The others stay, so that jumps to them still work.

use super::op::{Code, Op};

/// Fuses every such sequence.
pub(super) fn fuse(ops: &mut [Op]) {
    for at in 0..ops.len() {
        let fused = match ops[at..] {
            [mov, add, end, ..]
                if is_copy_and_add(mov, add) && end.code == Code::Gt64 && end.dst == add.dst =>
            {
                Op { code: Code::AddThenGt, imm: add.imm, ..mov }
            }
            [mov, add, ..] if is_copy_and_add(mov, add) => Op { code: Code::CopyAdd, imm: add.imm, ..mov },
            [load, branch, ..] if branch.dst == load.dst => {
                let code = match (load.code, branch.code) {
                    (Code::Load8, Code::Eq64Imm) => Code::Load8ThenEq,
                    (Code::Load16, Code::Eq64Imm) => Code::Load16ThenEq,
                    (Code::Load32, Code::Eq64Imm) => Code::Load32ThenEq,
                    (Code::Load8, Code::Ne64Imm) => Code::Load8ThenNe,
                    (Code::Load16, Code::Ne64Imm) => Code::Load16ThenNe,
                    (Code::Load32, Code::Ne64Imm) => Code::Load32ThenNe,
                    _ => continue,
                };
                Op { code, ..load }
            }
            _ => continue,
        };
        ops[at] = fused;
    }
}

/// `dst = src; dst += constant`
fn is_copy_and_add(mov: Op, add: Op) -> bool {
    mov.code == Code::Mov64 && add.code == Code::Add64Imm && add.dst == mov.dst
}
