//! Functions and lines of addresses, from symbol tables and debug information.

use std::collections::HashMap;
use std::fs;

use addr2line::Loader;
use serde::Serialize;

/// A place in the source of the application.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub(super) struct Place {
    /// The function; the file and address if its name is not known.
    pub(super) function: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) line: Option<u32>,
}

impl Place {
    /// Whether this is an inline function of the headers of libibverbs or librdmacm.
    pub(super) fn is_header(&self) -> bool {
        let in_dir = |dir: &str| self.file.as_ref().is_some_and(|file| file.contains(dir));
        in_dir("/infiniband/") && self.file.as_ref().is_some_and(|file| file.ends_with(".h"))
            || in_dir("/rdma/rdma_verbs.h")
    }
}

/// The object files that were read.
#[derive(Default)]
pub(super) struct Symbols(HashMap<String, Option<Loader>>);

impl Symbols {
    /// The places of an address: the inlined functions first.
    pub(super) fn find(&mut self, file: &str, address: u64) -> Vec<Place> {
        let loader = self.0.entry(file.to_owned()).or_insert_with(|| load(file));
        let mut places = Vec::new();
        if let Some(loader) = loader {
            places = lines(loader, address);
            if places.is_empty()
                && let Some(symbol) = loader.find_symbol(address)
            {
                places.push(Place { function: demangled(symbol), ..Place::default() });
            }
        }
        if places.is_empty() {
            let name = file.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("?");
            places.push(Place { function: format!("{name}+{address:#x}"), ..Place::default() });
        }
        places
    }
}

/// Reads an object file that a process of the command names. Opening a pipe would wait for its writer.
fn load(file: &str) -> Option<Loader> {
    let is_file = fs::metadata(file).is_ok_and(|meta| meta.is_file());
    is_file.then(|| Loader::new(file).ok()).flatten()
}

/// The functions and lines of debug information.
fn lines(loader: &Loader, address: u64) -> Vec<Place> {
    let mut places = Vec::new();
    let Ok(mut frames) = loader.find_frames(address) else { return places };
    while let Ok(Some(frame)) = frames.next() {
        let name = frame.function.as_ref().and_then(|name| name.demangle().ok().map(|n| n.into_owned()));
        let function = name.or_else(|| loader.find_symbol(address).map(demangled));
        let location = frame.location;
        places.push(Place {
            function: function.unwrap_or_else(|| "?".to_owned()),
            file: location.as_ref().and_then(|at| at.file).map(str::to_owned),
            line: location.and_then(|at| at.line),
        });
    }
    places
}

fn demangled(symbol: &str) -> String {
    addr2line::demangle_auto(symbol.into(), None).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_address_has_the_name_of_its_file() {
        let places = Symbols::default().find("/no/such/file.so", 0x10);
        assert_eq!(places[0].function, "file.so+0x10");
    }

    #[test]
    fn a_pipe_in_place_of_an_object_file_is_not_opened() {
        let path = std::env::temp_dir().join(format!("roxie-symbols-{}", std::process::id()));
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRUSR).expect("a directory for files");
        let (sender, found) = std::sync::mpsc::channel();
        let name = path.to_str().expect("it is ASCII").to_owned();
        std::thread::spawn(move || sender.send(Symbols::default().find(&name, 1)));
        let places = found.recv_timeout(std::time::Duration::from_secs(60));
        fs::remove_file(path).expect("the test made it");
        assert_eq!(places.map(|places| places.len()), Ok(1));
    }

    #[test]
    fn inline_functions_of_the_headers_are_known() {
        let place = |file: &str| Place { file: Some(file.to_owned()), ..Place::default() };
        assert!(place("/usr/include/infiniband/verbs.h").is_header());
        assert!(!place("/home/a/infiniband/test.c").is_header());
    }
}
