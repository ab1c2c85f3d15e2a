//! The description of a hook: stages joined by `+`, of which some are built in (`count`, `impair:loss=1%`,
//! `police:rate=125M`), and the others programs.
//!
//! The device loads no object files. `roxie run` loads them, writes the plan into a private file, and puts
//! `loaded:PATH` into the environment; `roxie hook attach` sends the plan through the control socket.

use std::io::{self, Read};
use std::path::Path;

use bpf::Program;
use bpf::vet::vet;
use sys::{Dir, Untrusted};

use super::{Count, Hook, HookError, Impair, Police, sample};

/// The description of a hook, of which nothing is created yet.
#[derive(Clone, Debug, PartialEq)]
pub struct HookPlan {
    pub(super) stages: Vec<PlannedStage>,
}

/// One stage of a plan.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PlannedStage {
    /// A native stage, by name and parameters.
    Native(String),
    /// An eBPF program.
    Program(Program),
}

impl HookPlan {
    /// Start of a text that names the file of a plan ([`to_bytes`](Self::to_bytes)) in place of stages. The
    /// file is in a private directory of this user.
    pub const LOADED: &str = "loaded:";

    /// Parses built-in stages joined by `+` (`count`, `sample:...`, `impair:...`, `police:...`), or reads the
    /// plan that `loaded:PATH` names.
    ///
    /// # Errors
    /// What is wrong with the text or the file; see [`HookError::remedy`].
    pub fn read(text: &str) -> Result<HookPlan, HookError> {
        HookPlan::read_with(text, |stage| Err(HookError::NoSuchStage { text: stage.to_owned() }))
    }

    /// As [`read`](Self::read), but `program` loads each stage that is not built in.
    ///
    /// # Errors
    /// Those of `read` and `program`.
    pub fn read_with<E: From<HookError>>(
        text: &str,
        program: impl Fn(&str) -> Result<Program, E>,
    ) -> Result<HookPlan, E> {
        if let Some(path) = text.strip_prefix(Self::LOADED) {
            return Ok(loaded(Path::new(path))?);
        }
        let stage = |text: &str| match text.trim() {
            "" => Err(HookError::Empty.into()),
            text if is_native(text) => Ok(PlannedStage::Native(text.to_owned())),
            text => Ok(PlannedStage::Program(program(text)?)),
        };
        Ok(HookPlan { stages: text.split('+').map(stage).collect::<Result<_, E>>()? })
    }

    /// Whether all stages are built in.
    #[must_use]
    pub fn is_native(&self) -> bool {
        self.stages.iter().all(|stage| matches!(stage, PlannedStage::Native(_)))
    }

    /// Lists what the kernel would refuse in the programs although it runs here, for their authors.
    #[must_use]
    pub fn doubts(&self) -> Vec<String> {
        let doubts = |stage: &PlannedStage| match stage {
            PlannedStage::Native(_) => None,
            PlannedStage::Program(program) => {
                let doubts = vet(program).into_iter().next();
                doubts.map(|doubt| format!("program {}: the kernel would refuse it: {doubt}", program.name))
            }
        };
        self.stages.iter().filter_map(doubts).collect()
    }

    /// Returns the same plan without type information, which only readers of the maps need.
    #[must_use]
    pub fn without_types(mut self) -> HookPlan {
        for stage in &mut self.stages {
            if let PlannedStage::Program(program) = stage {
                program.btf = None;
            }
        }
        self
    }

    #[cfg(feature = "fuzz")]
    pub(super) fn maps(&self) -> impl Iterator<Item = &bpf::MapDef> {
        self.stages.iter().flat_map(|stage| match stage {
            PlannedStage::Native(_) => &[],
            PlannedStage::Program(program) => &program.maps[..],
        })
    }

    /// Creates the hook.
    ///
    /// # Errors
    /// If parameters are invalid, a program is invalid, or its maps cannot be created.
    pub fn build(&self) -> Result<Hook, HookError> {
        let mut hooks = self.stages.iter().map(|stage| match stage {
            PlannedStage::Native(text) => native(text),
            PlannedStage::Program(program) => Hook::program(program),
        });
        let first = hooks.next().ok_or(HookError::Empty)??;
        hooks.try_fold(first, |hook, next| Ok(hook.then(next?)))
    }
}

impl Hook {
    /// Creates a hook from text, as [`HookPlan::read`] takes it.
    ///
    /// # Errors
    /// Those of [`HookPlan::read`] and [`HookPlan::build`].
    pub fn parse(text: &str) -> Result<Hook, HookError> {
        HookPlan::read(text)?.build()
    }
}

/// Reads a plan from the file that a process of this user wrote into its private directory.
fn loaded(path: &Path) -> Result<HookPlan, HookError> {
    let failed = |error| HookError::File { path: path.to_owned(), error };
    let bytes = read(path).map_err(failed)?;
    HookPlan::from_bytes(&bytes).ok_or_else(|| HookError::NoPlan { path: path.to_owned() })
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dir = Dir::own(dir).map_err(|why| match why {
        Untrusted::Failed { error, .. } => error,
        why => io::Error::new(io::ErrorKind::PermissionDenied, why.to_string()),
    })?;
    let mut bytes = Vec::new();
    // Of a longer file only so much that it is refused.
    dir.open(name)?.take(HookPlan::BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn is_native(text: &str) -> bool {
    matches!(text.split(':').next(), Some("count" | "impair" | "police" | "sample"))
}

fn native(text: &str) -> Result<Hook, HookError> {
    let (word, parameters) = text.split_once(':').unwrap_or((text, ""));
    if word == "sample" {
        return Ok(sample::hook(parameters)?.named(text));
    }
    let stage = match word {
        "count" => Count::parse(parameters)?.stage(),
        "impair" => Impair::parse(parameters)?.stage(),
        "police" => Police::parse(parameters)?.stage(),
        _ => return Err(HookError::Empty),
    };
    Ok(Hook::new(text, vec![stage]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_joined_in_order() {
        let hook = Hook::parse("count + impair:loss=50%+count").unwrap();
        assert_eq!(hook.name(), "count+impair:loss=50%+count");
        for wrong in ["", "+", "count+", "count:x", "/no/such/file.o", "impair:loss=2"] {
            assert!(Hook::parse(wrong).is_err(), "{wrong:?}");
        }
        let object = Hook::parse("count+x.o:prog").unwrap_err();
        assert!(matches!(object, HookError::NoSuchStage { .. }) && object.remedy().is_some(), "{object}");
    }

    #[test]
    fn a_plan_is_read_from_a_file_in_a_private_directory() {
        let path = std::env::temp_dir().join(format!("roxie-plan-{:016x}", sys::random_u64()));
        let dir = Dir::prove(&path, sys::Walk { make: Some(0o700), ..sys::Walk::default() }).unwrap();
        let program = bpf::Recipe::steer(4791, 4).program("steer", bpf::ProgramKind::Xdp).unwrap();
        let plan = HookPlan::read_with("count+x.o", |_| Ok::<_, HookError>(program.clone())).unwrap();
        assert!(!plan.is_native());
        dir.replace("plan".as_ref(), &plan.to_bytes(), 0o600).unwrap();
        let text = format!("{}{}", HookPlan::LOADED, path.join("plan").display());
        assert_eq!(HookPlan::read(&text).unwrap().without_types(), plan.without_types());
        assert_eq!(Hook::parse(&text).unwrap().name(), "count+steer");

        dir.replace("plan".as_ref(), b"count", 0o600).unwrap();
        assert!(matches!(HookPlan::read(&text), Err(HookError::NoPlan { .. })));
        // Another user could change it.
        dir.set_mode(0o755).unwrap();
        let refused = HookPlan::read(&text).unwrap_err();
        assert!(matches!(refused, HookError::File { .. }) && refused.remedy().is_some(), "{refused}");
        for missing in ["loaded:", "loaded:/", "loaded:/no/such/plan", "loaded:..", "loaded:/dev/zero"] {
            assert!(matches!(HookPlan::read(missing), Err(HookError::File { .. })), "{missing}");
        }
        std::fs::remove_dir_all(path).unwrap();
    }
}
