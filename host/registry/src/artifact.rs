//! The layout of an environment in a registry: an OCI image manifest whose layers are the component and the files published
//! with it. Owns media types, annotations and which file names are safe; must not know how blobs travel.

use crate::{Reference, RegistryError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Media type of the manifest.
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media types of WASM components in registries.
const CONFIG: &str = "application/vnd.wasm.config.v0+json";
const COMPONENT: &str = "application/wasm";
const ASSET: &str = "application/vnd.prl.asset.v1";
/// Annotation with the name of a published file.
const TITLE: &str = "org.opencontainers.image.title";

/// A file published with a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asset {
    /// A relative path with `/`.
    pub name: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// What is pushed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Package {
    /// The component.
    pub component: Vec<u8>,
    /// Files published with it.
    pub assets: Vec<Asset>,
    /// Its name, version and description, for people who look at the registry.
    pub annotations: BTreeMap<String, String>,
    /// Interfaces it imports.
    pub imports: Vec<String>,
    /// Interfaces it exports.
    pub exports: Vec<String>,
}

/// Something in the registry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub media_type: String,
    pub digest: String,
    pub size: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl Descriptor {
    fn of(media_type: &str, bytes: &[u8], name: Option<&str>) -> Self {
        Descriptor {
            media_type: media_type.into(),
            digest: format!("sha256:{}", sha256(bytes)),
            size: bytes.len() as u64,
            annotations: name.map(|name| (TITLE.to_owned(), name.to_owned())).into_iter().collect(),
        }
    }

    /// The digest in hex.
    pub fn hex(&self) -> &str {
        self.digest.strip_prefix("sha256:").unwrap_or_default()
    }
}

/// A manifest, as far as it matters here.
#[derive(Clone, Debug, Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Descriptor>,
}

/// SHA-256 in hex.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Package {
    /// The blobs and the manifest that names them. The same package always gives the same bytes.
    pub(crate) fn encode(&self) -> (Vec<(Descriptor, Vec<u8>)>, Vec<u8>) {
        let component = Descriptor::of(COMPONENT, &self.component, None);
        let config = json!({
            "created": "1970-01-01T00:00:00Z",
            "architecture": "wasm",
            "os": "wasip2",
            "layerDigests": [component.digest],
            "component": { "exports": self.exports, "imports": self.imports },
        });
        let config = config.to_string().into_bytes();
        let mut blobs = vec![(Descriptor::of(CONFIG, &config, None), config), (component, self.component.clone())];
        let assets = self.assets.iter();
        blobs.extend(assets.map(|a| (Descriptor::of(ASSET, &a.bytes, Some(&a.name)), a.bytes.clone())));
        let layers: Vec<&Descriptor> = blobs[1..].iter().map(|(descriptor, _)| descriptor).collect();
        let manifest: Value = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": blobs[0].0,
            "layers": layers,
            "annotations": self.annotations,
        });
        let manifest = manifest.to_string().into_bytes();
        (blobs, manifest)
    }
}

/// The component and the files of a manifest, by the paths they get.
pub(crate) fn files(reference: &Reference, manifest: &[u8]) -> Result<Vec<(String, Descriptor)>, RegistryError> {
    let not = |reason: String| RegistryError::NotAnEnvironment { reference: reference.to_string(), reason };
    let manifest: Manifest = serde_json::from_slice(manifest).map_err(|e| not(format!("its manifest: {e}")))?;
    let mut files = Vec::new();
    for layer in manifest.layers {
        if layer.hex().len() != 64 {
            return Err(not(format!("its layer `{}` has no SHA-256", layer.digest)));
        }
        match layer.media_type.as_str() {
            COMPONENT => files.push(("env.wasm".to_owned(), layer)),
            ASSET => {
                let name = layer.annotations.get(TITLE).cloned().unwrap_or_default();
                if !is_safe(&name) {
                    return Err(not(format!("a file of it is called `{name}`")));
                }
                files.push((format!("assets/{name}"), layer));
            }
            // Somebody's signature or description.
            _ => {}
        }
    }
    match files.iter().filter(|(name, _)| name == "env.wasm").count() {
        1 => Ok(files),
        count => Err(not(format!("it has {count} layers of type {COMPONENT} where there should be one"))),
    }
}

/// A relative path that leads nowhere but down.
fn is_safe(name: &str) -> bool {
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains(['\\', '\0', ':']);
    name.len() <= 1024 && name.split('/').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_encoded_alike_and_read_back() {
        let assets = vec![Asset { name: "words/en.txt".into(), bytes: b"abc".to_vec() }];
        let package = Package { component: b"wasm".to_vec(), assets, ..Package::default() };
        let (blobs, manifest) = package.encode();
        assert_eq!((blobs.len(), package.encode()), (3, (blobs.clone(), manifest.clone())));
        let reference = Reference::parse("oci://h/n:1").unwrap();
        let files = files(&reference, &manifest).unwrap();
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["env.wasm", "assets/words/en.txt"]);
        assert_eq!(files[0].1, blobs[1].0);
    }

    #[test]
    fn names_that_lead_out_are_refused() {
        let reference = Reference::parse("oci://h/n:1").unwrap();
        for name in ["../x", "/x", "a/../../x", ".hidden", "", "a//b", "a\\b"] {
            let assets = vec![Asset { name: name.into(), bytes: Vec::new() }];
            let package = Package { component: b"wasm".to_vec(), assets, ..Package::default() };
            let error = files(&reference, &package.encode().1).unwrap_err();
            assert!(error.to_string().contains("is called"), "{name}: {error}");
        }
        let none = br#"{"layers": [{"mediaType": "application/tar", "digest": "sha256:00", "size": 1}]}"#;
        assert!(files(&reference, none).is_err());
        assert!(files(&reference, b"{}").unwrap_err().to_string().contains("0 layers"));
    }
}
