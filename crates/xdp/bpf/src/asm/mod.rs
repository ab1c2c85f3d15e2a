//! The assembler: one method per instruction, with labels, functions and map references.
//!
//! Jumps name a [`Label`]; [`Asm::finish`] resolves them and writes the type information (BTF). The first
//! function is the program. [`Asm::function`] starts further functions, [`Asm::call_function`] calls them.

mod emit;
mod error;

pub use error::AsmError;

use crate::btf::{FunctionName, describe};
use crate::insn::{Insn, Slot, encode};
use crate::map::{MapDef, MapRef};
use crate::program::{Kfunc, Program, ProgramKind};

/// A place in the program. [`Asm::bind`] puts it in front of an instruction.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Label(usize);

/// A function of the program.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Function(usize);

/// Assembles one program.
///
/// ```
/// use roxie_bpf::{Asm, Cond, Reg, XdpAction, XdpMd};
///
/// let mut asm = Asm::new("queue_0_only");
/// let drop = asm.label();
/// asm.load_ctx(Reg::R2, Reg::R1, XdpMd::RxQueueIndex).branch(Cond::Ne, Reg::R2, 0, drop);
/// asm.ret(XdpAction::Pass).bind(drop).ret(XdpAction::Drop);
/// let program = asm.finish()?;
/// assert!(program.listing().to_string().contains("if r2 != 0x0 goto pc+2"));
/// # Ok::<(), roxie_bpf::AsmError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Asm {
    name: String,
    slots: Vec<Slot>,
    maps: Vec<MapDef>,
    kfuncs: Vec<Kfunc>,
    /// Slot of each label, once it is bound.
    labels: Vec<Option<usize>>,
    functions: Vec<FunctionDef>,
    /// Slots with a jump distance that is not known yet.
    fixups: Vec<(usize, Target)>,
    /// The first error. `finish` reports it, so that calls of the emitting methods can be chained.
    error: Option<AsmError>,
}

#[derive(Clone, Debug)]
struct FunctionDef {
    name: String,
    args: u8,
    slot: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Target {
    /// Distance in the 16-bit offset field.
    Near(Label),
    /// Call of a function, with the distance in the immediate.
    Function(Function),
}

impl Asm {
    /// Starts an empty program. Use only letters, digits and `_` in the name, because it becomes a C
    /// identifier.
    #[must_use]
    pub fn new(name: &str) -> Asm {
        Asm {
            name: name.to_owned(),
            functions: vec![FunctionDef { name: name.to_owned(), args: 1, slot: Some(0) }],
            ..Asm::default()
        }
    }

    /// Adds a map. If the program already has an equal map of this name, it is shared; a different one is an
    /// error.
    pub fn map(&mut self, def: MapDef) -> MapRef {
        if let Some(index) = self.maps.iter().position(|map| map.name == def.name) {
            if self.maps[index] != def {
                self.fail(AsmError::MapRedefined(def.name));
            }
            return MapRef(index as u32);
        }
        self.maps.push(def);
        MapRef(self.maps.len() as u32 - 1)
    }

    /// Returns a new label, which is not bound yet.
    #[must_use]
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds the label to the next instruction.
    pub fn bind(&mut self, label: Label) -> &mut Asm {
        match self.labels.get_mut(label.0) {
            Some(place @ None) => *place = Some(self.slots.len()),
            _ => self.fail(AsmError::BoundTwice(label)),
        }
        self
    }

    /// Declares a function, so that it can be called before its code is emitted.
    #[must_use]
    pub fn declare(&mut self, name: &str, args: u8) -> Function {
        if args > 5 {
            self.fail(AsmError::TooManyArguments(name.to_owned()));
        }
        self.functions.push(FunctionDef { name: name.to_owned(), args, slot: None });
        Function(self.functions.len() - 1)
    }

    /// Starts the code of `function`. The preceding code must end with an exit or a jump, because the
    /// kernel's verifier rejects a function that runs into the next one.
    pub fn function(&mut self, function: Function) -> &mut Asm {
        let here = self.slots.len();
        match self.functions.get_mut(function.0) {
            Some(FunctionDef { slot: place @ None, .. }) => *place = Some(here),
            _ => self.fail(AsmError::DefinedTwice(function)),
        }
        self
    }

    /// Appends any instruction unchanged. The caller sets its jump distance, if it has one.
    pub fn insn(&mut self, insn: Insn) -> &mut Asm {
        encode(&insn, &mut self.slots);
        self
    }

    /// `call function`. The arguments are in R1..R5, the result is in R0.
    pub fn call_function(&mut self, function: Function) -> &mut Asm {
        self.with_target(Insn::CallLocal { off: 0 }, Target::Function(function))
    }

    /// Returns the number of a kernel function in this program.
    pub(crate) fn kfunc(&mut self, kfunc: &Kfunc) -> i32 {
        let index = self.kfuncs.iter().position(|known| known == kfunc).unwrap_or_else(|| {
            self.kfuncs.push(kfunc.clone());
            self.kfuncs.len() - 1
        });
        index as i32
    }

    fn with_target(&mut self, insn: Insn, target: Target) -> &mut Asm {
        self.fixups.push((self.slots.len(), target));
        self.insn(insn)
    }

    fn fail(&mut self, error: AsmError) {
        self.error.get_or_insert(error);
    }

    /// Resolves jumps and calls, writes the type information and returns the program.
    ///
    /// # Errors
    /// The first error of any call on this assembler.
    pub fn finish(mut self) -> Result<Program, AsmError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if self.slots.is_empty() {
            return Err(AsmError::Empty);
        }
        for (slot, target) in std::mem::take(&mut self.fixups) {
            self.resolve(slot, target)?;
        }
        let mut functions = Vec::new();
        for (index, def) in self.functions.iter().enumerate() {
            let slot = def.slot.ok_or(AsmError::NotDefined(Function(index)))?;
            functions.push(FunctionName { name: &def.name, slot: slot as u32, args: def.args });
        }
        functions.sort_by_key(|function| function.slot);
        let btf = describe(&functions);
        Ok(Program {
            name: self.name,
            kind: ProgramKind::Xdp,
            slots: self.slots,
            maps: self.maps,
            kfuncs: self.kfuncs,
            license: Program::LICENSE.to_owned(),
            frags: false,
            btf: Some(btf),
            ..Program::default()
        })
    }

    fn resolve(&mut self, at: usize, target: Target) -> Result<(), AsmError> {
        let to = match target {
            Target::Near(label) => {
                self.labels.get(label.0).copied().flatten().ok_or(AsmError::NotBound(label))?
            }
            Target::Function(function) => self
                .functions
                .get(function.0)
                .and_then(|def| def.slot)
                .ok_or(AsmError::NotDefined(function))?,
        };
        let distance = to as i64 - at as i64 - 1;
        let too_far = AsmError::TooFar { slot: at, distance };
        let slot = &mut self.slots[at];
        match target {
            Target::Near(_) => slot.off = distance.try_into().map_err(|_| too_far)?,
            Target::Function(_) => slot.imm = distance.try_into().map_err(|_| too_far)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
