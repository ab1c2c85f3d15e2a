//! The text form of hooks: `OBJECT[:PROGRAM]`, `count`, `impair:loss=1%`, `police:rate=125M`, several
//! joined by `+`.

use bpf::Program;
use bpf::vet::vet;

use super::{Count, Hook, HookError, Impair, Police, object, sample};

/// The description of a hook: files are read, but nothing is created. Can be sent to another process.
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
    /// Parses stages joined by `+`, each either a native one (`count`, `sample:...`, `impair:...`,
    /// `police:...`) or an object file, with the name of the program where it has several. Reads the files.
    ///
    /// # Errors
    /// What is wrong with the text or a file; see [`HookError::remedy`].
    pub fn read(text: &str) -> Result<HookPlan, HookError> {
        let stage = |text: &str| match text.trim() {
            "" => Err(HookError::Empty),
            text if is_native(text) => Ok(PlannedStage::Native(text.to_owned())),
            text => Ok(PlannedStage::Program(object::program(text)?)),
        };
        Ok(HookPlan { stages: text.split('+').map(stage).collect::<Result<_, _>>()? })
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

/// Makes the paths in `text` absolute, so that it names the same hook in every directory.
///
/// # Errors
/// If there is no current directory.
pub fn absolute(text: &str) -> Result<String, HookError> {
    let stage = |text: &str| {
        let text = text.trim();
        if is_native(text) || text.is_empty() {
            return Ok(text.to_owned());
        }
        let path = std::path::absolute(text).map_err(|error| HookError::File { path: text.into(), error })?;
        Ok(path.to_string_lossy().into_owned())
    };
    Ok(text.split('+').map(stage).collect::<Result<Vec<_>, _>>()?.join("+"))
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
    fn an_absolute_hook_is_the_same_in_every_directory() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        let text = absolute("count+x.o:prog + impair:loss=1% +/a/b.o+").unwrap();
        assert_eq!(text, format!("count+{here}/x.o:prog+impair:loss=1%+/a/b.o+"));
    }

    #[test]
    fn stages_are_joined_in_order() {
        let hook = Hook::parse("count + impair:loss=50%+count").unwrap();
        assert_eq!(hook.name(), "count+impair:loss=50%+count");
        for wrong in ["", "+", "count+", "count:x", "/no/such/file.o", "impair:loss=2"] {
            assert!(Hook::parse(wrong).is_err(), "{wrong:?}");
        }
        let missing = Hook::parse("/no/such/file.o:prog").unwrap_err();
        assert!(matches!(missing, HookError::File { .. }) && missing.remedy().is_some(), "{missing}");
    }
}
