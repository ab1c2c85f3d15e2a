//! The files in which the processes of the command record their findings.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::failure::{During, Outcome};

use super::ends::{End, Ends};

/// One line of a file.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Line {
    Process { command: String },
    Finding(Finding),
    End(End),
}

/// A mistake of the application, with addresses.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Finding {
    pub(super) kind: String,
    pub(super) text: String,
    pub(super) stacks: Vec<Stack>,
    /// The numbers of the queue pair and of its peer, for findings about a connection.
    #[serde(default)]
    pub(super) ends: Option<(u32, u32)>,
    /// The process that made it, and its command line.
    #[serde(skip)]
    pub(super) process: u32,
    #[serde(skip)]
    pub(super) command: String,
}

/// A call stack.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Stack {
    /// What happened there.
    pub(super) what: String,
    pub(super) thread: String,
    /// Object files and addresses in them, innermost first.
    pub(super) frames: Vec<(String, u64)>,
}

/// The directory with one file for each process.
#[derive(Debug)]
pub(super) struct Findings {
    dir: PathBuf,
    files: HashMap<u32, Reader>,
    ends: Ends,
}

/// How far a file has been read.
#[derive(Debug, Default)]
struct Reader {
    position: u64,
    command: String,
}

impl Findings {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), files: HashMap::new(), ends: Ends::default() }
    }

    /// Processes that opened the device.
    pub(super) fn processes(&self) -> usize {
        self.files.len()
    }

    /// Calls `f` with the findings since the last call.
    pub(super) fn read(&mut self, mut f: impl FnMut(Finding) -> Outcome) -> Outcome {
        for entry in fs::read_dir(&self.dir).during(&self.dir.display().to_string())?.flatten() {
            let path = entry.path();
            let process = path.file_stem().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
            let Some(process) = process else { continue };
            let reader = self.files.entry(process).or_default();
            for line in reader.lines(&path)? {
                match serde_json::from_str(&line).during("a finding")? {
                    Line::Process { command } => reader.command = command,
                    Line::Finding(finding) => {
                        f(Finding { process, command: reader.command.clone(), ..finding })?;
                    }
                    Line::End(end) => {
                        for finding in self.ends.add(end, process) {
                            f(Finding { command: reader.command.clone(), ..finding })?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

impl Reader {
    /// The whole lines that were added.
    fn lines(&mut self, path: &Path) -> Outcome<Vec<String>> {
        let mut text = String::new();
        let read = File::open(path).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.position))?;
            file.read_to_string(&mut text)
        });
        read.during(&path.display().to_string())?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.position += whole as u64;
        Ok(text[..whole].lines().map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_whole_line_is_read_once() {
        let dir = std::env::temp_dir().join(format!("roxie-findings-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory for the test");
        let file = dir.join("7.jsonl");
        let finding = r#"{"type":"finding","kind":"leaked-mr","text":"t","stacks":[]}"#;
        let started = r#"{"type":"process","command":"./prog"}"#;
        fs::write(&file, format!("{started}\n{finding}\n{}", &finding[..9])).expect("written");
        let mut findings = Findings::new(&dir);
        let mut seen = Vec::new();
        let mut read = |findings: &mut Findings| {
            findings.read(|f| {
                seen.push((f.process, f.kind, f.command));
                Ok(())
            })
        };
        read(&mut findings).expect("readable");
        read(&mut findings).expect("readable");
        fs::write(&file, format!("{started}\n{finding}\n{finding}\n")).expect("written");
        read(&mut findings).expect("readable");
        let one = (7, "leaked-mr".to_owned(), "./prog".to_owned());
        assert_eq!(seen, [one.clone(), one]);
        assert_eq!(findings.processes(), 1);
        fs::remove_dir_all(dir).expect("cleaned");
    }
}
