//! References: where an environment is published. Owns their text form; reaches no registry.

use crate::RegistryError;
use std::fmt;

/// `oci://registry/name:version[@sha256:…]`; at least one of version and digest is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Host and port.
    pub registry: String,
    /// Name in the registry, with its folders.
    pub repository: String,
    /// The version; a registry may give it another content later.
    pub version: Option<String>,
    /// SHA-256 of the manifest, in hex: names one content for good.
    pub digest: Option<String>,
}

/// How references begin.
const SCHEME: &str = "oci://";

impl Reference {
    /// Whether `text` is meant to be a reference.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Reads a reference.
    ///
    /// # Errors
    /// [`RegistryError::Reference`] says what is wrong.
    pub fn parse(text: &str) -> Result<Self, RegistryError> {
        let bad = |reason| RegistryError::Reference { text: text.to_owned(), reason };
        let rest = text.strip_prefix(SCHEME).ok_or(bad("it must begin with oci://"))?;
        let (rest, digest) = match rest.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (rest, None),
        };
        let digest = match digest {
            None => None,
            Some(digest) => match digest.strip_prefix("sha256:").filter(|hex| is_digest(hex)) {
                Some(hex) => Some(hex.to_owned()),
                None => return Err(bad("after @ there must be sha256: and 64 digits of 0-9 a-f")),
            },
        };
        let (registry, name) = rest.split_once('/').ok_or(bad("after the registry there must be / and a name"))?;
        let (repository, version) = match name.split_once(':') {
            Some((repository, version)) => (repository, Some(version)),
            None => (name, None),
        };
        let host = |c: char| c.is_ascii_alphanumeric() || ".-:[]".contains(c);
        if registry.is_empty() || !registry.chars().all(host) {
            return Err(bad("the registry is a host, with a port if need be"));
        }
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
        let part = |part: &str| {
            let edges = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            part.chars().all(plain) && part.starts_with(edges) && part.ends_with(edges)
        };
        if !repository.split('/').all(part) {
            return Err(bad("a name is of a-z 0-9 . _ - and /"));
        }
        let word = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let begins = |v: &str| v.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        if version.is_some_and(|v| !begins(v) || v.len() > 128 || !v.chars().all(word)) {
            return Err(bad("a version is of letters, digits and . _ -"));
        }
        if version.is_none() && digest.is_none() {
            return Err(bad("it must name a version or a digest"));
        }
        Ok(Reference {
            registry: registry.into(),
            repository: repository.into(),
            version: version.map(str::to_owned),
            digest,
        })
    }

    /// The same with a digest.
    pub fn pinned(&self, digest: &str) -> Self {
        Reference { digest: Some(digest.to_owned()), ..self.clone() }
    }

    /// What to ask the registry for: the digest, else the version.
    pub(crate) fn wanted(&self) -> String {
        match (&self.digest, &self.version) {
            (Some(digest), _) => format!("sha256:{digest}"),
            (None, version) => version.clone().unwrap_or_default(),
        }
    }

    /// Whether the registry is on this machine, where it needs no TLS.
    pub(crate) fn is_local(&self) -> bool {
        let host = self.registry.rsplit_once(':').map_or(self.registry.as_str(), |(host, _)| host);
        ["localhost", "127.0.0.1", "[::1]"].contains(&host)
    }
}

fn is_digest(hex: &str) -> bool {
    hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.registry, self.repository)?;
        self.version.iter().try_for_each(|version| write!(f, ":{version}"))?;
        self.digest.iter().try_for_each(|digest| write!(f, "@sha256:{digest}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read_and_written() {
        let digest = "a1".repeat(32);
        for text in [
            "oci://ghcr.io/me/words:1.0.0".to_owned(),
            format!("oci://localhost:5000/words:latest@sha256:{digest}"),
            format!("oci://127.0.0.1:80/a/b-c/d.e@sha256:{digest}"),
        ] {
            assert_eq!(Reference::parse(&text).unwrap().to_string(), text);
        }
        let reference = Reference::parse("oci://localhost:5000/a/words:1").unwrap();
        assert_eq!((reference.wanted().as_str(), reference.is_local()), ("1", true));
        assert_eq!(reference.pinned(&digest).wanted(), format!("sha256:{digest}"));
        assert!(!Reference::parse("oci://localhost.example.org/a:1").unwrap().is_local());
        for bad in [
            "ghcr.io/me/words:1",
            "oci://words:1",
            "oci://ghcr.io/words",
            "oci:///words:1",
            "oci://ghcr.io/:1",
            "oci://ghcr.io/Words:1",
            "oci://ghcr.io/../words:1",
            "oci://ghcr.io/a//b:1",
            "oci://ghcr.io/words:",
            "oci://ghcr.io/words:1 2",
            "oci://user@ghcr.io/words:1",
            "oci://ghcr.io/words:1@sha256:abc",
            "oci://ghcr.io/words:1@md5:00",
        ] {
            let error = Reference::parse(bad).unwrap_err().to_string();
            assert!(error.contains(bad), "{error}");
        }
    }
}
