//! The ibverbs-utils that only query: ibv_devices, ibv_devinfo.

use roxie_tests::lab::Side;
use roxie_tests::place::{Family, Place};

use crate::case::{Case, good, roxie, says};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for place in Place::all().into_iter().filter(|place| place.family == Family::V4) {
        cases.push(look(place, &["ibv_devices"], &["roxie0"]));
        let facts = ["hca_id:\troxie0", "PORT_ACTIVE", "link_layer:\t\tEthernet"];
        cases.push(look(place, &["ibv_devinfo"], &facts));
        cases.push(look(place, &["ibv_devinfo", "-v"], &["max_qp:", "max_sge:", "GID[  0]:", "RoCE v2"]));
    }
    cases
}

fn look(place: Place, program: &'static [&'static str], facts: &[&'static str]) -> Case {
    let facts = facts.to_vec();
    Case::new(place, &program.join(" "), program[0], move |lab, name| {
        let mut words = vec!["run", "--netdev", lab.netdev(&place), "--"];
        words.extend(program);
        let ended = good(roxie(lab, &place, Side::Server, name, &words)?)?;
        facts.iter().try_for_each(|fact| says(&ended, fact))
    })
}
