//! `roxie xdp map`: the maps of the program on an interface.

use bpf::Types;
use clap::Args as ClapArgs;
use std::rc::Rc;
use sys::bpf::Program;

use super::interface;
use crate::bpf_data::{Kernel, Source, Table, unseen};
use crate::failure::{Failure, Outcome};

/// An interface with a program.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct NetdevArgs {
    /// Network interface
    #[arg(value_name = "IF")]
    pub(crate) netdev: String,
}

impl Source for NetdevArgs {
    fn subject(&self) -> String {
        self.netdev.clone()
    }

    fn tables(&self) -> Outcome<Vec<Box<dyn Table>>> {
        let (tables, _types) = of_program(&self.netdev)?;
        Ok(tables.into_iter().map(|table| Box::new(table) as Box<dyn Table>).collect())
    }
}

/// The maps of the program on an interface, and its types.
pub(super) fn of_program(netdev: &str) -> Outcome<(Vec<Kernel>, Option<Rc<Types>>)> {
    let link = interface(netdev)?;
    let there = link.xdp.first().ok_or_else(|| {
        Failure::new(format!("{netdev}: no XDP program")).hint("'roxie xdp attach' puts one there")
    })?;
    let program = Program::by_id(there.program_id).map_err(|error| unseen(netdev, &error))?;
    Kernel::all(netdev, &program).map_err(|error| unseen(netdev, &error))
}
