//! One file of a commit, from the hub into the cache. Owns how a download is gone on with and what it takes to be believed;
//! must not know which files are wanted.

use crate::cache::Cache;
use crate::client::{Client, Told, Trouble};
use crate::repo::is_whole;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use ureq::http::{StatusCode, header};
use url::Url;

/// Bytes after which a download that breaks off is as good as new.
const MUCH: u64 = 1 << 20;
/// Bytes that are read at a time.
const CHUNK: usize = 1 << 17;

/// Has the file at `url` be in the commit's folder, whole; content that the cache has is not fetched. `listed` is how many
/// bytes the file must have.
pub(crate) fn download(
    (client, cache): (&Client, &Cache),
    url: &Url,
    (commit, file, listed): (&str, &str, Option<u64>),
) -> Result<(), Trouble> {
    let mut told = client.persist((file, true), || client.head(url))?;
    if let Some(other) = told.commit.as_ref().filter(|told| *told != commit) {
        return Err(Trouble::Bad(format!("the hub was asked for commit {commit} and answers for {other}")));
    }
    match (told.size, listed) {
        (Some(told), Some(listed)) if told != listed => {
            return Err(Trouble::Bad(format!("the hub has {told} bytes of it, and lists {listed}; try again")));
        }
        (size, listed) => told.size = size.or(listed),
    }
    let blob = cache.blob(&told.etag);
    if !is_whole(&blob, told.size) {
        let mut part = cache.part(&told.etag).map_err(Trouble::Disk)?;
        fill(client, (file, url), &told, &mut part.file)?;
        part.place(&blob).map_err(Trouble::Disk)?;
    }
    cache.point(commit, file, &told.etag).map_err(Trouble::Disk)
}

/// Fills a part up to what was told of the file.
fn fill(client: &Client, (file, url): (&str, &Url), told: &Told, part: &mut File) -> Result<(), Trouble> {
    let left_over = part.metadata().map_err(Trouble::Disk)?.len();
    let mut anew = left_over == 0;
    let is_sum = is_sha256(&told.etag);
    // As many bytes as the file has, or more, were left by nobody who knew what they are worth.
    if told.size.is_none_or(|size| left_over > size || (left_over == size && !is_sum)) {
        part.set_len(0).map_err(Trouble::Disk)?;
        anew = true;
    }
    loop {
        client.persist((file, true), || go_on(client, url, told.size, part))?;
        if !is_sum || sha256(part).map_err(Trouble::Disk)? == told.etag {
            return Ok(());
        }
        part.set_len(0).map_err(Trouble::Disk)?;
        if anew {
            let etag = &told.etag;
            return Err(Trouble::Bad(format!(
                "its bytes do not have the SHA-256 {etag} that the hub names; try again"
            )));
        }
        // Bytes that were left over may be of something else.
        anew = true;
    }
}

/// Fetches what a part lacks.
fn go_on(client: &Client, url: &Url, size: Option<u64>, part: &mut File) -> Result<(), Trouble> {
    let mut at = part.seek(SeekFrom::End(0)).map_err(Trouble::Disk)?;
    if size == Some(at) {
        return Ok(());
    }
    let mut response = client.get(url, at)?;
    let range = response.headers().get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok());
    let goes_on = response.status() == StatusCode::PARTIAL_CONTENT
        && range.is_some_and(|range| range.starts_with(&format!("bytes {at}-")));
    let anew = response.status() == StatusCode::OK;
    if at > 0 && !goes_on {
        part.set_len(0).and_then(|()| part.rewind()).map_err(Trouble::Disk)?;
        at = 0;
    }
    if !(goes_on || anew) {
        return Err(Trouble::passing("it gives another part than the one asked for"));
    }
    let begun = at;
    let broken = |reason: String, at: u64| Trouble::Passing { reason, wait: None, moved: at - begun >= MUCH };
    let size = size.or_else(|| if goes_on { total(range?) } else { response.body().content_length() });
    let mut body = response.body_mut().as_reader();
    let mut chunk = vec![0; CHUNK];
    loop {
        let got = match body.read(&mut chunk) {
            Ok(0) => break,
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(broken(format!("the download broke off after {at} bytes: {error}"), at)),
        };
        part.write_all(&chunk[..got]).map_err(Trouble::Disk)?;
        at += got as u64;
        if size.is_some_and(|size| at > size) {
            part.set_len(0).map_err(Trouble::Disk)?;
            return Err(Trouble::passing("more bytes came than the file has"));
        }
    }
    match size.filter(|size| *size != at) {
        Some(size) => Err(broken(format!("the download ended after {at} of {size} bytes"), at)),
        None => Ok(()),
    }
}

/// The bytes of the whole, by the `Content-Range` of a part of it.
fn total(range: &str) -> Option<u64> {
    range.rsplit_once('/')?.1.parse().ok()
}

/// Whether a name of content is its SHA-256.
fn is_sha256(etag: &str) -> bool {
    etag.len() == 64 && etag.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn sha256(file: &mut File) -> io::Result<String> {
    file.rewind()?;
    let mut sum = Sha256::new();
    io::copy(file, &mut sum)?;
    Ok(sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
