//! A list of checks, one line each as they end, and a verdict. Owns the form; must not know what is checked.

use crate::failure::Failure;
use crate::logging;

/// A detail for the reader, or what is wrong.
pub type Found = Result<String, String>;

/// The checks that failed so far.
#[derive(Default)]
pub struct Report {
    failed: Vec<String>,
}

impl Report {
    /// Tells what came of a check.
    ///
    /// # Errors
    /// Nobody is there to read.
    pub fn add(&mut self, name: &str, found: Found) -> Result<(), Failure> {
        let (mark, text) = match &found {
            Ok(detail) => ("ok", detail),
            Err(reason) => ("FAIL", reason),
        };
        if found.is_err() {
            self.failed.push(name.to_owned());
        }
        logging::print(&format!("{mark:<5} {name:<12} {text}")).map(|_| ())
    }

    /// Tells something that is no check.
    ///
    /// # Errors
    /// As [`Report::add`].
    pub fn note(name: &str, text: &str) -> Result<(), Failure> {
        logging::print(&format!("{:<5} {name:<12} {text}", "note")).map(|_| ())
    }

    /// The verdict on what is called `name`: the exit code is 1 where something failed.
    ///
    /// # Errors
    /// As [`Report::add`].
    pub fn end(&self, name: &str) -> Result<u8, Failure> {
        if self.failed.is_empty() {
            return logging::print(&format!("`{name}` keeps the contract"));
        }
        let failed = self.failed.join(", ");
        logging::print(&format!("`{name}` does not keep the contract: these checks failed: {failed}"))?;
        Ok(1)
    }
}
