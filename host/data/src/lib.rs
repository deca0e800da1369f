//! Rows of training data: which files hold them, and what is in these.
//!
//! Owns the formats, how a folder's files are told apart by split and subset, and the place that a row is named by. Must not
//! know what a row means.

mod card;
mod hub;
mod kinds;
mod layout;
mod records;
mod rows;

pub use hub::{Fetched, fetch};
pub use kinds::is_too_many_files;
pub use layout::{Wanted, find, is_file_name};
pub use rows::{Row, rows};

use std::path::{Path, PathBuf};

/// Rows that are no good above this share of all stop the reading: the data is then not what its user thinks it is.
const MAX_BAD_SHARE: f64 = 0.1;
/// So many rows say something about those that come.
const TELLING: u64 = 1000;
/// Rows that are no good and remembered one by one.
const REMEMBERED: usize = 10;

/// Data that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {} as training data: {reason}", path.display())]
pub struct DataError {
    /// The file, folder or dataset.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

fn wrong(path: &Path, reason: impl ToString) -> DataError {
    DataError { path: path.to_path_buf(), reason: reason.to_string() }
}

/// Rows that are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// How many.
    pub count: u64,
    /// Place and reason of the first ten.
    pub first: Vec<(String, String)>,
}

impl Skipped {
    /// Leaves a row out.
    pub fn note(&mut self, place: String, reason: String) {
        self.count += 1;
        if self.first.len() < REMEMBERED {
            self.first.push((place, reason));
        }
    }

    /// Whether data with so many `good` rows beside these can be what its user thinks it is.
    ///
    /// # Errors
    /// No good row, or more than a tenth of bad ones.
    pub fn check_share(&self, path: &Path, good: u64) -> Result<(), DataError> {
        match self.beyond(path, MAX_BAD_SHARE, good) {
            Ok(()) if good == 0 => Err(wrong(path, "there are no rows")),
            checked => checked,
        }
    }

    /// Whether it is worth while to read on after so many `good` rows.
    ///
    /// # Errors
    /// Of a thousand rows or more, more than twice as many are bad as may be in the end.
    pub fn check_so_far(&self, path: &Path, good: u64) -> Result<(), DataError> {
        match good + self.count < TELLING {
            true => Ok(()),
            false => self.beyond(path, 2.0 * MAX_BAD_SHARE, good),
        }
    }

    fn beyond(&self, path: &Path, share: f64, good: u64) -> Result<(), DataError> {
        let (bad, all) = (self.count, good + self.count);
        match self.first.first() {
            Some((place, reason)) if bad as f64 > share * all as f64 => {
                Err(wrong(path, format!("{bad} of {all} rows are unusable; the first is {place}: {reason}")))
            }
            _ => Ok(()),
        }
    }
}
