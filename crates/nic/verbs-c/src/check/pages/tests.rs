//! The table of protected memory.

use super::*;

fn entry(pages: (usize, usize), rights: Rights) -> Entry {
    Entry { buffer: pages, pages, rights, ..Entry::NONE }
}

/// What the kernel says of each page.
fn rights_of(first: usize, count: usize) -> String {
    let page = page_size();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
    let right = |at: usize| {
        let is_it = |line: &&str| {
            let (first, rest) = line.split_once('-').expect("a range");
            let end = rest.split_once(' ').expect("rights").0;
            let number = |text| usize::from_str_radix(text, 16).expect("a number");
            (number(first)..number(end)).contains(&at)
        };
        let line = maps.lines().find(is_it).expect("mapped");
        line.split_once(' ').expect("rights").1.chars().take(2).filter(|c| *c != '-').last().unwrap_or('-')
    };
    (0..count).map(|nth| right(first + nth * page)).collect()
}

/// A mapping of a huge page cannot be split, as one at the limit of mappings cannot.
#[test]
fn pages_that_cannot_be_split_are_open_when_the_larger_entry_ends() {
    let huge = 2 << 20;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
    // SAFETY: a new mapping.
    let memory =
        unsafe { libc::mmap(std::ptr::null_mut(), huge, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        println!("skipped: needs a huge page (vm.nr_hugepages)");
        return;
    }
    let first = memory.addr();
    let mut table = Box::new(Table::new());
    let whole = table.add(entry((first, first + huge), Rights::Nothing)).expect("memory");
    table.add(entry((first, first + page_size()), Rights::Nothing)).expect("memory");
    table.remove(whole);
    assert_eq!(rights_of(first, 1), "w");
    // SAFETY: mapped above.
    unsafe { libc::munmap(memory, huge) };
}

#[test]
fn pages_of_several_entries_have_the_rights_of_the_strictest() {
    let page = page_size();
    let memory = vec![0_u8; 64 * page];
    let first = memory.as_ptr().addr().next_multiple_of(page);
    let range = |from: usize, to: usize| (first + from * page, first + to * page);
    let mut table = Box::new(Table::new());
    let one = table.add(entry(range(0, 4), Rights::Read)).expect("memory");
    let other = table.add(entry(range(2, 6), Rights::Nothing)).expect("memory");
    let third = table.add(entry(range(1, 3), Rights::Read)).expect("memory");
    assert_eq!(rights_of(first, 7), "rr----w");
    table.open(first + 5, first + 6);
    assert_eq!(rights_of(first, 7), "wr----w");
    table.remove(other);
    assert_eq!(rights_of(first, 7), "wrrrwww");
    let again = table.add(entry(range(0, 1), Rights::Read)).expect("memory");
    assert_eq!(rights_of(first, 7), "rrrrwww", "the open page is protected again");
    table.remove(one);
    assert_eq!(rights_of(first, 7), "rrrwwww");
    [third, again].into_iter().for_each(|number| _ = table.remove(number));
    assert_eq!(rights_of(first, 7), "wwwwwww");
    table.add(entry(range(0, 2), Rights::Nothing));
    table.remove_range(first + page, first + page + 1);
    assert_eq!((rights_of(first, 7), table.entries.len), ("wwwwwww".to_owned(), 0));
}
