//! Descriptions: files in TOML, presets, and values that the command line varies.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

use ::sim::Spec;
use serde::Deserialize;
use toml::{Table, Value};

use super::USAGE;
use crate::failure::{Failure, Outcome};

/// Names and texts of the presets.
const PRESETS: [(&str, &str); 9] = [
    ("incast", include_str!("presets/incast.toml")),
    ("dumbbell", include_str!("presets/dumbbell.toml")),
    ("leaf-spine", include_str!("presets/leaf-spine.toml")),
    ("all-reduce", include_str!("presets/all-reduce.toml")),
    ("dcqcn-fairness", include_str!("presets/dcqcn-fairness.toml")),
    ("dcqcn-incast", include_str!("presets/dcqcn-incast.toml")),
    ("irn", include_str!("presets/irn.toml")),
    ("hpcc-incast", include_str!("presets/hpcc-incast.toml")),
    ("hpcc-web-search", include_str!("presets/hpcc-web-search.toml")),
];
/// Most bytes of a file: a description has some hundred.
const FILE_MAX: u64 = 1 << 20;

/// A description with certain values.
#[derive(Clone, Debug)]
pub(super) struct Variant {
    /// What distinguishes it, such as `ecn=on`; empty if there is only one.
    pub(super) name: String,
    pub(super) spec: Spec,
}

/// A key and the values that it has in turn, such as `ecn=on,off`.
#[derive(Clone, Debug)]
pub(crate) struct Vary {
    key: String,
    values: Vec<String>,
}

impl FromStr for Vary {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let usage = || "write a key and its values, such as ecn=on,off or workload.load=0.3,0.5".to_owned();
        let (key, values) = text.split_once('=').ok_or_else(usage)?;
        let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
        let is_empty = key.is_empty() || values.iter().any(String::is_empty);
        if is_empty { Err(usage()) } else { Ok(Self { key: key.to_owned(), values }) }
    }
}

impl Vary {
    /// The number of values.
    pub(super) fn count(&self) -> usize {
        self.values.len()
    }

    /// Sets the key to this value. `workload.KEY` sets it in each workload.
    fn apply(&self, table: &mut Table, value: &str) {
        let value = parse_value(value);
        match self.key.split_once('.') {
            None => {
                table.insert(self.key.clone(), value);
            }
            Some((list, key)) => {
                for entry in table.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                    if let Some(entry) = entry.as_table_mut() {
                        entry.insert(key.to_owned(), value.clone());
                    }
                }
            }
        }
    }
}

/// A value as the command line has it: `on` and `off`, a number, or a word.
fn parse_value(text: &str) -> Value {
    match text {
        "on" | "true" => Value::Boolean(true),
        "off" | "false" => Value::Boolean(false),
        _ => {
            let whole = text.parse().ok().map(Value::Integer);
            let number = || text.parse().ok().map(Value::Float);
            whole.or_else(number).unwrap_or_else(|| Value::String(text.to_owned()))
        }
    }
}

/// The description with all combinations of the varied values.
pub(super) fn variants(description: &Path, vary: &[Vary]) -> Outcome<Vec<Variant>> {
    let mut lists = vary.iter().filter_map(|key| key.key.split_once('.'));
    if let Some((list, _)) = lists.find(|(list, _)| *list != "workload") {
        let failure = Failure::new(format!("--vary: a description has no list '{list}'"));
        return Err(failure.hint("use KEY, or workload.KEY").code(USAGE));
    }
    let (table, name) = read(description)?;
    let mut tables = vec![(String::new(), table)];
    for key in vary {
        let with = |(name, table): &(String, Table), value: &String| {
            let mut table = table.clone();
            key.apply(&mut table, value);
            (format!("{name} {}={value}", key.key).trim_start().to_owned(), table)
        };
        tables =
            tables.iter().flat_map(|table| key.values.iter().map(move |value| with(table, value))).collect();
    }
    tables.into_iter().map(|(variant, table)| check(table, &name, variant)).collect()
}

fn check(table: Table, file: &str, name: String) -> Outcome<Variant> {
    let with = if name.is_empty() { String::new() } else { format!(" with {name}") };
    let wrong = |why: &dyn std::fmt::Display| {
        let why = why.to_string();
        let failure = Failure::new(format!("{file}{with}: {}", why.trim_end().replace('\n', ", ")));
        failure.hint("docs/fabric.md has the keys and their values").code(USAGE)
    };
    let spec = Spec::deserialize(table).map_err(|error| wrong(&error))?;
    spec.check().map_err(|error| wrong(&error))?;
    Ok(Variant { name, spec })
}

/// The description of a preset or a file, and how messages call it.
fn read(description: &Path) -> Outcome<(Table, String)> {
    let name = description.display().to_string();
    let preset = PRESETS.iter().find(|(preset, _)| *preset == name).map(|(_, text)| (*text).to_owned());
    let text = match preset {
        Some(text) => text,
        None => {
            let names: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
            let missing = |error: std::io::Error| {
                let failure = Failure::new(format!("reading {name}: {error}")).code(USAGE);
                failure.hint(format!("give a file, or a preset: {}", names.join(", ")))
            };
            let mut text = String::new();
            let file = File::open(description).map_err(missing)?;
            let length = file.take(FILE_MAX + 1).read_to_string(&mut text).map_err(missing)? as u64;
            if length > FILE_MAX {
                return Err(
                    Failure::new(format!("{name} is larger than 1 MiB, so it is no description")).code(USAGE)
                );
            }
            text
        }
    };
    // Deserialized as a whole first: its errors then have lines and columns.
    let table = toml::from_str::<Spec>(&text).and_then(|_| toml::from_str::<Table>(&text));
    let table = table.map_err(|error| {
        let failure = Failure::new(format!("{name} is no description of a data centre")).code(USAGE);
        let lines = error.to_string().trim_end().lines().map(str::to_owned).collect::<Vec<_>>();
        failure.lines(lines).hint("docs/fabric.md has the keys and their values")
    })?;
    Ok((table, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_a_description() {
        for (name, _) in PRESETS {
            let found =
                variants(Path::new(name), &[]).unwrap_or_else(|failure| panic!("{name}: {failure:?}"));
            assert_eq!(found.len(), 1, "{name}");
        }
    }

    #[test]
    fn varied_keys_give_all_combinations() {
        let vary =
            ["ecn=on,off", "workload.size=1KiB,2KiB,3KiB"].map(|text| text.parse().expect("two parts"));
        let found = variants(Path::new("incast"), &vary).expect("both keys exist");
        let names: Vec<&str> = found.iter().map(|variant| variant.name.as_str()).collect();
        assert_eq!(names.len(), 6);
        assert_eq!((names[0], names[5]), ("ecn=on workload.size=1KiB", "ecn=off workload.size=3KiB"));
        assert!(found[0].spec.ecn && !found[5].spec.ecn);
        assert_eq!(found[5].spec.workload[0].size, Some(::sim::Bytes(3072)));
    }

    #[test]
    fn wrong_keys_and_values_are_refused_by_name() {
        let failure = |text: &str| {
            let vary: Vary = text.parse().expect(text);
            variants(Path::new("incast"), &[vary]).expect_err(text).what
        };
        for (text, named) in [
            ("ecm=on", "ecm"),
            ("ecn=perhaps", "boolean"),
            ("rate=10", "rate"),
            ("rate=10Gb", "10Gbit/s"),
            ("mtu=1500", "1500 is no path MTU"),
            ("workload.kind=incest", "incast"),
            ("workload.dscp=64", "64"),
            ("hosts=1", "1 hosts"),
            ("hosts=100000000", "100000000"),
            ("loss=1.5", "loss"),
            ("topology=leaf-spine", "leaves"),
        ] {
            assert!(failure(text).contains(named), "{text}: {}", failure(text));
        }
        for text in ["", "ecn", "=on", "ecn=", "ecn=on,"] {
            assert!(text.parse::<Vary>().is_err(), "{text}");
        }
    }
}
