//! Documents in a file: tokens are read when they are drawn, so that memory does not grow with them.
//!
//! Owns the layout of that file, which nobody reads in another run. Must not know the order of draws, nor where the file is.
//!
//! A document lies at its place as its number of tokens (u32), its ids (u32 each) and its mask (a bit each), little-endian.

use crate::Document;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};

const WORD: usize = size_of::<u32>();

/// Takes documents in; [`SpoolWriter::finish`] gives them back by number.
pub struct SpoolWriter {
    file: BufWriter<File>,
    /// Where each document ends.
    ends: Vec<u64>,
    at: u64,
    tokens: u64,
    sum: crc32fast::Hasher,
}

impl SpoolWriter {
    /// Writes to a file that is empty, open for reading too, and nobody else's.
    pub fn new(file: File) -> Self {
        let file = BufWriter::with_capacity(1 << 18, file);
        SpoolWriter { file, ends: Vec::new(), at: 0, tokens: 0, sum: crc32fast::Hasher::new() }
    }

    /// Appends a document.
    ///
    /// # Errors
    /// The file cannot be written; a mask that is not as long as the document.
    pub fn push(&mut self, document: &Document) -> io::Result<()> {
        let bytes = encode(document)?;
        self.file.write_all(&bytes)?;
        self.sum.update(&bytes);
        self.tokens += document.ids.len() as u64;
        self.at += bytes.len() as u64;
        self.ends.push(self.at);
        Ok(())
    }

    /// All that was appended.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(self) -> io::Result<Spool> {
        let SpoolWriter { file, mut ends, tokens, sum, .. } = self;
        ends.shrink_to_fit();
        Ok(Spool { file: file.into_inner()?, ends, tokens, crc32: sum.finalize() })
    }
}

/// A document as it lies in the file.
pub(crate) fn encode(document: &Document) -> io::Result<Vec<u8>> {
    let Document { ids, mask } = document;
    let count = u32::try_from(ids.len()).ok().filter(|_| ids.len() == mask.len());
    let count = count.ok_or_else(|| {
        let text = format!("a document of {} tokens with a mask of {}", ids.len(), mask.len());
        io::Error::new(io::ErrorKind::InvalidInput, text)
    })?;
    let mut bytes = Vec::with_capacity(WORD * (ids.len() + 1) + ids.len().div_ceil(8));
    for word in std::iter::once(&count).chain(ids) {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(mask.chunks(8).map(|bits| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit))));
    Ok(bytes)
}

/// Documents by number. In memory each takes eight bytes.
#[derive(Debug)]
pub struct Spool {
    file: File,
    ends: Vec<u64>,
    tokens: u64,
    crc32: u32,
}

impl Spool {
    /// Number of documents.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Tokens of all documents.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// CRC-32 of the file as it was written.
    pub(crate) fn crc32(&self) -> u32 {
        self.crc32
    }

    /// Document `at`, which must be below [`Spool::len`].
    ///
    /// # Errors
    /// The file cannot be read or has been tampered with.
    pub fn get(&mut self, at: usize) -> io::Result<Document> {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        let mut bytes = vec![0; (self.ends[at] - start) as usize];
        self.file.seek(SeekFrom::Start(start))?;
        self.file.read_exact(&mut bytes)?;
        let mut words = bytes.chunks_exact(WORD).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        let count = words.next().unwrap_or_default() as usize;
        if bytes.len() != WORD * (count + 1) + count.div_ceil(8) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its documents have been written over"));
        }
        let ids = words.take(count).collect();
        let bits = &bytes[WORD * (count + 1)..];
        Ok(Document { ids, mask: (0..count).map(|t| bits[t / 8] >> (t % 8) & 1 == 1).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_goes_in_comes_out_in_any_order(
            documents in prop::collection::vec(prop::collection::vec((any::<u32>(), any::<bool>()), 0..40), 1..20),
            seed in any::<usize>(),
        ) {
            let documents: Vec<Document> = documents.into_iter().map(|tokens| {
                let (ids, mask) = tokens.into_iter().unzip();
                Document { ids, mask }
            }).collect();
            let mut writer = SpoolWriter::new(tempfile::tempfile().unwrap());
            documents.iter().for_each(|document| writer.push(document).unwrap());
            let mut spool = writer.finish().unwrap();
            prop_assert_eq!(spool.len(), documents.len());
            for n in 0..2 * documents.len() {
                let at = n.wrapping_mul(7).wrapping_add(seed) % documents.len();
                prop_assert_eq!(&spool.get(at).unwrap(), &documents[at]);
            }
        }
    }

    #[test]
    fn what_does_not_fit_together_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut writer = SpoolWriter::new(file.reopen().unwrap());
        assert!(writer.push(&Document { ids: vec![1, 2], mask: vec![true] }).is_err());
        writer.push(&Document { ids: vec![1, 2], mask: vec![true, false] }).unwrap();
        let mut spool = writer.finish().unwrap();
        std::fs::write(file.path(), [9; 13]).unwrap();
        assert!(spool.get(0).unwrap_err().to_string().contains("written over"));
        std::fs::write(file.path(), []).unwrap();
        assert!(spool.get(0).is_err());
    }
}
