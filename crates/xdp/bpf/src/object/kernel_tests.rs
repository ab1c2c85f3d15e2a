//! Tests of what programs take from the kernel, of programs that cannot be linked beside others that can,
//! and of the machine's callbacks, tail calls and maps of maps.

use std::path::Path;
use std::sync::Arc;

use super::{Candidate, Kernel, ObjectError, candidates, clang};
use crate::map::Map;
use crate::program::Program;
use crate::vet::vet;
use crate::vm::{Env, FaultKind, Image, LoadErrorKind, Machine, XdpBuff};
use crate::{Initial, MapKind, XdpAction};

struct Host;

impl Env for Host {
    fn ktime_ns(&mut self) -> u64 {
        0
    }

    fn random(&mut self) -> u32 {
        0
    }
}

const CONFIG: &str = "CONFIG_BPF=y\nCONFIG_ROXIE_NUMBER=0x10e1\nCONFIG_ROXIE_TEXT=\"ab\"\n";

/// Returns the types that the running kernel would have: those of the file, with its own structures.
fn types_of(file: &[u8]) -> Vec<u8> {
    use object::{Object, ObjectSection};
    let file = object::read::elf::ElfFile64::<object::Endianness>::parse(file).unwrap();
    file.section_by_name(".BTF").unwrap().data().unwrap().to_vec()
}

fn built(name: &str) -> Option<Vec<u8>> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/object/{name}.c"));
    let built = if own.exists() { clang::build_file(&own, "v3") } else { clang::build(name, "v3") };
    built.map_err(|reason| println!("{reason}")).ok()
}

fn named(all: &[Candidate], name: &str) -> Result<Program, ObjectError> {
    all.iter().find(|one| one.name == name).unwrap_or_else(|| panic!("no {name}")).program.clone()
}

fn image(program: &Program) -> (Image, Vec<Arc<Map>>) {
    let maps: Vec<_> = program.maps.iter().map(|def| Map::new(def, 1).unwrap()).collect();
    assert_eq!(vet(program), [], "{}\n{}", program.name, program.listing());
    (Image::new(program, maps.clone()).unwrap(), maps)
}

/// Runs it on a packet of this length.
fn run(image: &Image, len: usize) -> XdpAction {
    let mut buffer = vec![0; 1000];
    let mut buff = XdpBuff::new(&mut buffer, 256..256 + len).unwrap();
    let outcome = Machine::new(0).run(image, &mut buff, &mut Host);
    assert_eq!(outcome.fault, None);
    outcome.action()
}

fn value(program: &Program, maps: &[Arc<Map>], map: &str, key: u32) -> u64 {
    let bytes = maps[program.map(map).unwrap().index()].lookup(&key.to_le_bytes()).unwrap();
    u64::from_le_bytes(*bytes.first_chunk().unwrap())
}

#[test]
fn version_and_configuration_of_the_kernel_are_constants_of_the_program() {
    let Some(file) = built("kernel") else { return };
    let run_with = |kernel: &Kernel<'_>| {
        let program = named(&candidates(&file, kernel)?, "configured")?;
        Ok::<_, ObjectError>(run(&image(&program).0, 60))
    };
    let kernel = Kernel { version: Some(6 << 16 | 12 << 8), config: Some(CONFIG), ..Kernel::default() };
    assert_eq!(run_with(&kernel), Ok(XdpAction::Tx));
    let (short, _) = CONFIG.split_at(13);
    assert_eq!(
        run_with(&Kernel { config: Some(short), ..kernel }),
        Ok(XdpAction::Pass),
        "weak externs are 0"
    );
    let error = run_with(&Kernel { config: None, ..kernel }).unwrap_err().to_string();
    assert!(error.contains("extern CONFIG_BPF"), "{error}");
    assert_eq!(Kernel::version_of("6.12.3-amd64\n"), Some(6 << 16 | 12 << 8 | 3));
    assert_eq!(Kernel::version_of("linux"), None);
}

#[test]
fn a_program_that_cannot_be_linked_does_not_affect_the_others() {
    let Some(file) = built("kernel") else { return };
    let types = types_of(&file);
    let kernel = Kernel { types: Some(&types), version: Some(1 << 19), config: Some(CONFIG), cpus: None };
    let all = candidates(&file, &kernel).unwrap();
    assert_eq!(run(&image(&named(&all, "plain").unwrap()).0, 60), XdpAction::Tx);
    for (name, reason) in [
        ("broken_map", "map unknown: type 999 is not supported for XDP"),
        ("broken_map", "section xdp+"),
        ("broken_map", "symbol unknown"),
    ] {
        let error = named(&all, name).unwrap_err().to_string();
        assert!(error.contains(reason), "{name}: {error}");
    }
    // Without the kernel's types only the programs that adapt to them need these.
    let kernel = Kernel { types: None, ..kernel };
    let all = candidates(&file, &kernel).unwrap();
    assert!(named(&all, "plain").is_ok());
    assert_eq!(named(&all, "adapted").unwrap_err(), ObjectError::NeedsKernelTypes);
}

#[test]
fn functions_of_the_kernel_are_linked_by_name() {
    let Some(file) = built("kernel") else { return };
    let Some(calls) = built("calls") else { return };
    let kernel = |types| Kernel { types, version: Some(1 << 19), config: Some(CONFIG), cpus: None };
    // A kernel without any of the functions and structures.
    let other = types_of(&calls);
    let all = candidates(&file, &kernel(Some(&other))).unwrap();
    let error = named(&all, "broken_call").unwrap_err().to_string();
    assert!(error.contains("roxie_needed_function") && error.contains("no such function"), "{error}");
    assert_eq!(run(&image(&named(&all, "asks_first").unwrap()).0, 60), XdpAction::Drop);
    assert_eq!(run(&image(&named(&all, "adapted").unwrap()).0, 60), XdpAction::Aborted);
    // Unknown types: the name stays, and the machine looks at it.
    let all = candidates(&file, &kernel(None)).unwrap();
    let hashed = named(&all, "hashed").unwrap();
    assert!(hashed.is_device_bound() && hashed.kfuncs[0].name == "bpf_xdp_metadata_rx_hash");
    assert_eq!(run(&image(&hashed).0, 60), XdpAction::Pass, "no metadata");
    let unknown = named(&all, "broken_call").unwrap();
    let maps = unknown.maps.iter().map(|def| Map::new(def, 1).unwrap()).collect();
    let kind = Image::new(&unknown, maps).unwrap_err().kind;
    assert_eq!(kind, LoadErrorKind::Kfunc("roxie_needed_function".to_owned()));
}

#[test]
fn callbacks_run_once_for_each_iteration_and_entry() {
    let Some(file) = built("calls") else { return };
    let program = named(&candidates(&file, &Kernel::default()).unwrap(), "callbacks").unwrap();
    let (image, maps) = image(&program);
    let value = |key| value(&program, &maps, "results", key);
    // 70 & 63 = 6 iterations; index 6 would stop.
    run(&image, 70);
    assert_eq!((value(0), value(1)), (6, (1 + 2 + 3 + 4 + 5) * 3));
    assert_eq!((value(2), value(3)), (1, 6 * 70), "one entry with key 70 & 31");
    // Index 0..5 of the outer loop, each with that many inner iterations.
    assert_eq!(value(4), 5);
    // 51 iterations until index 3 stops.
    run(&image, 51);
    assert_eq!(value(0), 6 + 4);
}

#[test]
fn a_callback_that_never_ends_uses_up_the_budget() {
    let Some(file) = built("calls") else { return };
    let program = named(&candidates(&file, &Kernel::default()).unwrap(), "callbacks").unwrap();
    let (image, _) = image(&program);
    let mut buffer = vec![0; 400];
    let mut buff = XdpBuff::new(&mut buffer, 256..319).unwrap();
    let outcome = Machine::new(0).with_budget(200).run(&image, &mut buff, &mut Host);
    assert_eq!(outcome.fault.unwrap().kind, FaultKind::Budget);
}

#[test]
fn a_tail_call_runs_the_program_that_the_definition_names() {
    let Some(file) = built("calls") else { return };
    let program = named(&candidates(&file, &Kernel::default()).unwrap(), "chain").unwrap();
    let steps = &program.maps[program.map("steps").unwrap().index()];
    let entry = |key, name: &str| (key, Initial::Program(name.to_owned()));
    assert_eq!(
        (steps.kind, &steps.entries[..]),
        (MapKind::ProgArray, &[entry(1, "middle"), entry(3, "last")][..])
    );
    let (image, maps) = image(&program);
    assert_eq!(run(&image, 61), XdpAction::Tx, "middle, then last");
    assert_eq!(run(&image, 63), XdpAction::Tx, "last");
    assert_eq!(run(&image, 60), XdpAction::Pass, "no entry 0");
    let counts: Vec<u64> = (5..8).map(|key| value(&program, &maps, "results", key)).collect();
    assert_eq!(counts, [1, 1, 2]);
}

#[test]
fn maps_of_maps_queues_and_bloom_filters_work_as_in_the_kernel() {
    let Some(file) = built("calls") else { return };
    let all = candidates(&file, &Kernel::default()).unwrap();
    let program = named(&all, "inner_maps").unwrap();
    let (image_, maps) = image(&program);
    assert_eq!(run(&image_, 60), XdpAction::Pass, "first inner map");
    assert_eq!(run(&image_, 61), XdpAction::Tx, "second inner map");
    assert_eq!(run(&image_, 62), XdpAction::Drop, "no third one");
    assert_eq!(value(&program, &maps, "first_inner", 0), 60);
    assert_eq!(value(&program, &maps, "second_inner", 1), 61);
    let program = named(&all, "queues").unwrap();
    let (image_, maps) = image(&program);
    let value = |key| value(&program, &maps, "results", key);
    assert_eq!([60, 60, 61, 61, 64].map(|len| run(&image_, len)), {
        use XdpAction::{Pass, Tx};
        [Pass, Tx, Pass, Tx, Pass]
    });
    assert_eq!((value(0), value(1), value(2)), (5, 5, 120), "61 takes the oldest, 60, twice");
}

#[test]
fn maps_without_a_size_get_an_entry_for_each_cpu() {
    let Some(file) = built("kernel") else { return };
    let kernel = Kernel { version: Some(1 << 19), config: Some(CONFIG), cpus: Some(6), ..Kernel::default() };
    let all = candidates(&file, &kernel).unwrap();
    let program = named(&all, "unsized").unwrap();
    assert_eq!(program.maps[program.map("per_cpu").unwrap().index()].max_entries, 6);
    let all = candidates(&file, &Kernel { cpus: None, ..kernel }).unwrap();
    let error = named(&all, "unsized").unwrap_err().to_string();
    assert!(error.contains("map per_cpu: its definition has 0 entries"), "{error}");
}
