//! Which pages hold the positions of a sequence, and the table by which they are found.
//!
//! Owns when a page is shared, when it is copied, and what a table must be told. Must not know what memory pages are in or what is
//! stored there.

use std::sync::Arc;

/// Positions of a page; as in `caches.cuh`.
pub const PAGE: usize = 64;

/// Entries of the smallest table; every larger one is a power of two times this.
const SMALLEST_TABLE: usize = 64;

/// Where pages of type `P` and tables are made.
pub(crate) trait Memory<P> {
    type Table;
    type Error;

    /// A page of undefined contents.
    fn page(&self) -> Result<P, Self::Error>;

    /// Copies what the first `positions` of a page hold.
    fn copy(&self, from: &P, to: &mut P, positions: usize) -> Result<(), Self::Error>;

    /// A table with room for `len` addresses, of undefined contents.
    fn table(&self, len: usize) -> Result<Self::Table, Self::Error>;

    /// What stands in tables for a page.
    fn address(&self, page: &P) -> u64;

    /// The address of a table's first entry.
    fn address_of(&self, table: &Self::Table) -> u64;
}

/// The pages of one sequence. A clone shares all of them; of those that are shared only the last one, if it is not full, is copied
/// when one of the two goes on.
pub(crate) struct Pages<P, L> {
    pages: Vec<Arc<P>>,
    table: Option<Table<L>>,
    len: usize,
}

/// Addresses of the pages.
struct Table<L> {
    list: L,
    /// How many it has room for.
    entries: usize,
    /// Those that are as they should be.
    right: usize,
}

impl<P, L> Default for Pages<P, L> {
    fn default() -> Self {
        Pages { pages: Vec::new(), table: None, len: 0 }
    }
}

impl<P, L> Clone for Pages<P, L> {
    fn clone(&self) -> Self {
        Pages { pages: self.pages.clone(), table: None, len: self.len }
    }
}

/// Where a pass finds a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Address of its table.
    pub table: u64,
    /// Positions that its pages have room for.
    pub capacity: usize,
}

impl<P, L> Pages<P, L> {
    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Forgets all positions from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.pages.truncate(self.len.div_ceil(PAGE));
        if let Some(table) = &mut self.table {
            table.right = table.right.min(self.pages.len());
        }
    }

    /// Pages that `more` positions would take: further ones, and a copy of the last one where it is shared.
    pub fn growth(&self, more: usize) -> usize {
        let copied = usize::from(more > 0 && self.shares_last());
        (self.len + more).div_ceil(PAGE).saturating_sub(self.pages.len()) + copied
    }

    /// Whether the next position belongs to a page that somebody else has too.
    fn shares_last(&self) -> bool {
        self.pages.get(self.len / PAGE).is_some_and(|page| Arc::strong_count(page) > 1)
    }

    /// Makes room for `more` positions in pages that nobody else has. What is to be written into tables for it comes to `pairs`:
    /// the address of an entry, and what it becomes. After an error [`Pages::shrink`] must follow.
    pub fn grow<M: Memory<P, Table = L>>(
        &mut self,
        memory: &M,
        more: usize,
        pairs: &mut Vec<u64>,
    ) -> Result<Found, M::Error> {
        if self.shares_last() {
            let at = self.len / PAGE;
            let mut own = memory.page()?;
            memory.copy(&self.pages[at], &mut own, self.len % PAGE)?;
            self.pages[at] = Arc::new(own);
            if let Some(table) = &mut self.table {
                table.right = table.right.min(at);
            }
        }
        while self.pages.len() * PAGE < self.len + more {
            self.pages.push(Arc::new(memory.page()?));
        }
        let table = match self.table.take().filter(|table| table.entries >= self.pages.len()) {
            Some(enough) => enough,
            None => {
                let entries = self.pages.len().next_power_of_two().max(SMALLEST_TABLE);
                Table { list: memory.table(entries)?, entries, right: 0 }
            }
        };
        let table = self.table.insert(table);
        let start = memory.address_of(&table.list);
        for (i, page) in self.pages.iter().enumerate().skip(table.right) {
            pairs.extend([start + (i * size_of::<u64>()) as u64, memory.address(page)]);
        }
        table.right = self.pages.len();
        Ok(Found { table: start, capacity: self.pages.len() * PAGE })
    }

    /// Forgets what [`Pages::grow`] did for a call that failed: its pages, and what its table was to hold.
    pub fn shrink(&mut self) {
        self.pages.truncate(self.len.div_ceil(PAGE));
        self.table = None;
    }

    /// Counts positions that were stored.
    pub fn stored(&mut self, more: usize) {
        self.len += more;
    }
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
