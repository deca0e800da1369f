//! Pages against a simple model: what every sequence holds, and memory that remembers who wrote what.

use super::{Memory, PAGE, Pages};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Where tables begin; below are pages.
const TABLES: u64 = 1 << 40;
/// How far apart they are.
const APART: u64 = 1 << 20;

/// Memory that is there: by address, what pages and tables hold.
#[derive(Default)]
struct Live {
    pages: BTreeMap<u64, [u64; PAGE]>,
    tables: BTreeMap<u64, Vec<u64>>,
    next: u64,
}

/// Memory, as a GPU's driver has it.
#[derive(Clone, Default)]
struct Fake {
    live: Rc<RefCell<Live>>,
    /// How much can be had before it fails.
    left: Rc<Cell<usize>>,
}

struct Page(u64, Rc<RefCell<Live>>);
struct Table(u64, Rc<RefCell<Live>>);

impl Drop for Page {
    fn drop(&mut self) {
        assert!(self.1.borrow_mut().pages.remove(&self.0).is_some(), "a page is freed twice");
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        assert!(self.1.borrow_mut().tables.remove(&self.0).is_some(), "a table is freed twice");
    }
}

impl Fake {
    fn next(&self) -> Result<u64, ()> {
        self.left.set(self.left.get().checked_sub(1).ok_or(())?);
        let mut live = self.live.borrow_mut();
        live.next += APART;
        Ok(live.next)
    }
}

impl Memory<Page> for Fake {
    type Table = Table;
    type Error = ();

    fn page(&self) -> Result<Page, ()> {
        let address = self.next()?;
        self.live.borrow_mut().pages.insert(address, [u64::MAX; PAGE]);
        Ok(Page(address, self.live.clone()))
    }

    fn copy(&self, from: &Page, to: &mut Page, positions: usize) -> Result<(), ()> {
        let mut live = self.live.borrow_mut();
        let old = live.pages[&from.0];
        live.pages.get_mut(&to.0).ok_or(())?[..positions].copy_from_slice(&old[..positions]);
        Ok(())
    }

    fn table(&self, len: usize) -> Result<Table, ()> {
        let address = TABLES + self.next()?;
        self.live.borrow_mut().tables.insert(address, vec![u64::MAX; len]);
        Ok(Table(address, self.live.clone()))
    }

    fn address(&self, page: &Page) -> u64 {
        page.0
    }

    fn address_of(&self, table: &Table) -> u64 {
        table.0
    }
}

/// One sequence, and what it must hold.
#[derive(Clone)]
struct Sequence {
    pages: Pages<Page, Table>,
    holds: Vec<u64>,
}

#[derive(Clone, Debug)]
enum Step {
    Create,
    /// So many positions more. The second number is how much memory can be had.
    Append(usize, usize, Option<usize>),
    Fork(usize),
    Truncate(usize, usize),
    Drop(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0usize..64;
    // Around the ends of pages, and of the smallest table.
    let many = prop_oneof![1usize..4, 60usize..70, Just(PAGE), 120usize..300, Just(65 * PAGE)];
    let left = prop::option::weighted(0.15, 0usize..6);
    prop_oneof![
        1 => Just(Step::Create),
        8 => (which.clone(), many, left).prop_map(|(at, n, left)| Step::Append(at, n, left)),
        3 => which.clone().prop_map(Step::Fork),
        2 => (which.clone(), 0usize..400).prop_map(|(at, n)| Step::Truncate(at, n)),
        2 => which.prop_map(Step::Drop),
    ]
}

/// What a GPU does in a pass: it brings tables up to date, then writes and reads positions through them.
struct Gpu<'a>(&'a Fake);

impl Gpu<'_> {
    fn bring(&self, pairs: &[u64]) {
        for pair in pairs.chunks_exact(2) {
            let (entry, page) = (pair[0], pair[1]);
            let mut live = self.0.live.borrow_mut();
            let (start, table) = live.tables.range_mut(..=entry).next_back().unwrap();
            table[((entry - start) / 8) as usize] = page;
        }
    }

    fn page_of(&self, table: u64, position: usize) -> u64 {
        self.0.live.borrow().tables[&table][position / PAGE]
    }

    fn write(&self, table: u64, position: usize, value: u64) {
        let page = self.page_of(table, position);
        self.0.live.borrow_mut().pages.get_mut(&page).unwrap()[position % PAGE] = value;
    }

    fn read(&self, table: u64, position: usize) -> u64 {
        self.0.live.borrow().pages[&self.page_of(table, position)][position % PAGE]
    }
}

/// Everything that holds whatever was done.
fn check(fake: &Fake, sequences: &[Sequence]) {
    let mut used = BTreeSet::new();
    for Sequence { pages, holds } in sequences {
        assert_eq!(pages.len(), holds.len());
        assert_eq!(pages.pages.len(), holds.len().div_ceil(PAGE), "a page that holds nothing");
        for (i, want) in holds.iter().enumerate() {
            let page = &pages.pages[i / PAGE];
            assert_eq!(fake.live.borrow().pages[&page.0][i % PAGE], *want, "position {i} of {}", holds.len());
        }
        let own: BTreeSet<u64> = pages.pages.iter().map(|page| page.0).collect();
        assert_eq!(own.len(), pages.pages.len(), "a page twice in one sequence");
        used.extend(own);
    }
    assert_eq!(fake.live.borrow().pages.keys().copied().collect::<BTreeSet<u64>>(), used, "pages leak");
    assert!(fake.live.borrow().tables.len() <= sequences.len(), "tables leak");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever is created, appended, forked, cut, dropped and fails: every sequence holds what was written for it, no page is
    /// written for two, none leaks, and tables name the pages.
    #[test]
    fn pages_hold_what_was_written_for_a_sequence(steps in prop::collection::vec(step(), 1..40)) {
        let (fake, mut value) = (Fake::default(), 0u64);
        let mut sequences = vec![Sequence { pages: Pages::default(), holds: Vec::new() }];
        for step in steps {
            let count = sequences.len().max(1);
            match step {
                Step::Create => sequences.push(Sequence { pages: Pages::default(), holds: Vec::new() }),
                Step::Fork(at) => sequences.extend(sequences.get(at % count).cloned()),
                Step::Truncate(at, len) => {
                    let Some(Sequence { pages, holds }) = sequences.get_mut(at % count) else { continue };
                    pages.truncate(len);
                    holds.truncate(len);
                }
                Step::Drop(at) => {
                    if !sequences.is_empty() {
                        sequences.swap_remove(at % count);
                    }
                }
                Step::Append(at, more, left) => {
                    let Some(Sequence { pages, holds }) = sequences.get_mut(at % count) else { continue };
                    let (before, growth, gpu) = (fake.live.borrow().pages.len(), pages.growth(more), Gpu(&fake));
                    fake.left.set(left.unwrap_or(usize::MAX));
                    let mut pairs = Vec::new();
                    let Ok(found) = pages.grow(&fake, more, &mut pairs) else {
                        pages.shrink();
                        check(&fake, &sequences);
                        continue;
                    };
                    prop_assert_eq!(fake.live.borrow().pages.len() - before, growth, "growth is what is taken");
                    prop_assert!((holds.len() + more..holds.len() + more + PAGE).contains(&found.capacity));
                    gpu.bring(&pairs);
                    for position in holds.len()..holds.len() + more {
                        value += 1;
                        gpu.write(found.table, position, value);
                        holds.push(value);
                    }
                    pages.stored(more);
                    let read: Vec<u64> = (0..holds.len()).map(|position| gpu.read(found.table, position)).collect();
                    prop_assert_eq!(&read, holds);
                }
            }
            check(&fake, &sequences);
        }
        sequences.clear();
        check(&fake, &sequences);
        prop_assert!(fake.live.borrow().tables.is_empty());
    }
}
