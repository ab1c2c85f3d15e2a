//! The processes of a command, as the files say in which they record what they do.

use std::collections::HashMap;

/// Bits of a process number (proc(5): `pid_max` is 2^22 at most).
const NUMBER_BITS: u32 = 22;

/// Processes with one number that are told apart: what fits above the number.
const TOKENS_MAX: usize = 1 << (u32::BITS - NUMBER_BITS);

/// Tells apart processes with the same number: those of several PID namespaces, and programs that one process
/// has executed one after the other.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// The tokens of the processes with each number.
    tokens: HashMap<u32, Vec<u64>>,
}

impl Processes {
    /// What `roxie` calls a process: its number, and above it how many others with that number came first.
    /// Beyond a thousand with one number, which no command has but a hostile one, they count as one.
    pub(crate) fn id(&mut self, number: u32, token: u64) -> u32 {
        let number = self::number(number);
        let tokens = self.tokens.entry(number).or_default();
        let before = tokens.iter().position(|known| *known == token).unwrap_or_else(|| {
            if tokens.len() < TOKENS_MAX {
                tokens.push(token);
            }
            tokens.len() - 1
        });
        number | (before as u32) << NUMBER_BITS
    }
}

/// The number that the process has, or had, in its PID namespace.
pub(crate) fn number(id: u32) -> u32 {
    id & ((1 << NUMBER_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_with_the_same_number_stay_apart() {
        let mut processes = Processes::default();
        let ids = [(7, 1), (7, 2), (8, 1), (7, 1)].map(|(number, token)| processes.id(number, token));
        assert_eq!((ids[0], ids[2], ids[3]), (7, 8, 7));
        assert_ne!(ids[1], ids[0]);
        assert_eq!(ids.map(number), [7, 7, 8, 7]);
        let last = (0..5000).map(|token| processes.id(9, token)).last();
        assert_eq!(last.map(number), Some(9));
        assert_eq!(number(processes.id(u32::MAX, 1)), (1 << NUMBER_BITS) - 1);
    }
}
