//! Extended type information (`.BTF.ext`): which function begins where, source lines, and the records that
//! adapt instructions to the kernel's structures (CO-RE).

use crate::btf::reader::{Types, word};

/// Lengths of the three kinds of records, at least and at most.
const RECORD_MIN: [usize; 3] = [8, 16, 16];
const RECORD_MAX: usize = 256;

/// A record that names an instruction by its byte offset in a section.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    pub(super) at: u32,
    /// All of the record, with `at`.
    bytes: &'a [u8],
}

impl Record<'_> {
    /// Returns the 32-bit number with this index.
    pub(super) fn word(&self, index: usize) -> u32 {
        word(self.bytes, index * 4).unwrap_or(0)
    }
}

/// The records of one kind, by section.
pub(super) type Records<'a> = Vec<(&'a str, Vec<Record<'a>>)>;

/// The records of a file.
#[derive(Debug, Default)]
pub(super) struct Ext<'a> {
    pub(super) functions: Records<'a>,
    pub(super) lines: Records<'a>,
    pub(super) adaptations: Records<'a>,
}

impl<'a> Ext<'a> {
    /// Returns the records, or what is wrong with them.
    pub(super) fn parse(ext: &'a [u8], types: &Types<'a>) -> Result<Self, &'static str> {
        const WRONG: &str = "its extended type information is malformed";
        let header_len = word(ext, 4).ok_or(WRONG)? as usize;
        let body = ext.get(header_len..).ok_or(WRONG)?;
        let mut all = [Vec::new(), Vec::new(), Vec::new()];
        for (index, records) in all.iter_mut().enumerate() {
            let at = 8 + index * 8;
            // Older headers have no adaptations.
            if at + 8 > header_len {
                continue;
            }
            let (start, len) = (word(ext, at).ok_or(WRONG)?, word(ext, at + 4).ok_or(WRONG)?);
            let part = body.get(start as usize..).and_then(|part| part.get(..len as usize)).ok_or(WRONG)?;
            if !part.is_empty() {
                *records = list(part, types, RECORD_MIN[index]).ok_or(WRONG)?;
            }
        }
        let [functions, lines, adaptations] = all;
        Ok(Self { functions, lines, adaptations })
    }
}

fn list<'a>(part: &'a [u8], types: &Types<'a>, min: usize) -> Option<Records<'a>> {
    let record_len = word(part, 0)? as usize;
    if !(min..=RECORD_MAX).contains(&record_len) || !record_len.is_multiple_of(4) {
        return None;
    }
    let (mut sections, mut rest) = (Vec::new(), &part[4..]);
    while !rest.is_empty() {
        let (section, count) = (types.name(word(rest, 0)?)?, word(rest, 4)? as usize);
        let (records, behind) = rest.get(8..)?.split_at_checked(count.checked_mul(record_len)?)?;
        rest = behind;
        let record = |bytes: &'a [u8]| Some(Record { at: word(bytes, 0)?, bytes });
        sections.push((section, records.chunks_exact(record_len).map_while(record).collect()));
    }
    Some(sections)
}

/// Returns the records of bytes `start..end` of a section, in order.
pub(super) fn within<'r, 'a>(
    records: &'r Records<'a>,
    section: &str,
    start: u64,
    end: u64,
) -> Vec<&'r Record<'a>> {
    let of_section = records.iter().filter(|(name, _)| *name == section).flat_map(|(_, records)| records);
    let mut found: Vec<_> =
        of_section.filter(|record| (start..end).contains(&u64::from(record.at))).collect();
    found.sort_by_key(|record| record.at);
    found
}
