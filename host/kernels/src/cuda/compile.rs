//! Compiles CUDA C++ to machine code for one GPU and keeps the result on disk.
//!
//! Owns the sources, the compiler's options and the cache's file names. Must not know what kernels do or launch them.

use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};

use cudarc::nvrtc::{result as nvrtc, sys};
use sha2::{Digest, Sha256};

use super::CudaError;
use crate::libraries;

/// What a source's kernels store activations as.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Precision {
    /// bf16.
    Half,
    /// f32.
    Full,
}

/// A source file, with the storage type and the head dimension it is compiled for, where it needs them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Source {
    /// Norms, rotation, SwiGLU, biases, embeddings.
    Rows(Precision),
    /// Head softmax, clipping, AdamW.
    Step(Precision),
    /// bf16 attention of one head dimension on any GPU.
    Attention(usize),
    /// The same on Hopper.
    AttentionHopper(usize),
    /// f32 attention of one head dimension.
    AttentionFull(usize),
    /// Attention over caches of keys and values.
    Decode(Precision, usize),
    /// Tokens from logits.
    Draw,
    /// Products of few rows, bf16.
    Few,
    /// Products of any number of rows with the same bits, bf16.
    Chain,
    /// Low-rank additions.
    LowRank(Precision),
}

const COMMON: &str = include_str!("common.cuh");

impl Source {
    fn text(self) -> String {
        let body = match self {
            Self::Rows(_) => include_str!("rows.cu"),
            Self::Step(_) => include_str!("step.cu"),
            Self::Draw => concat!(include_str!("filter.cuh"), include_str!("draw.cu")),
            Self::Few => include_str!("few.cu"),
            Self::Chain => concat!(include_str!("mma.cuh"), include_str!("chain.cu")),
            Self::LowRank(_) => include_str!("low_rank.cu"),
            Self::Attention(_) => {
                concat!(
                    include_str!("mma.cuh"),
                    include_str!("tiles.cuh"),
                    include_str!("softmax.cuh"),
                    include_str!("attention.cu")
                )
            }
            Self::AttentionHopper(_) => concat!(
                include_str!("warpgroup.cuh"),
                include_str!("attention_sm90.cu"),
                include_str!("attention_sm90_fused.cu")
            ),
            Self::AttentionFull(_) => include_str!("attention_f32.cu"),
            Self::Decode(Precision::Half, _) => concat!(
                include_str!("caches.cuh"),
                include_str!("mma.cuh"),
                include_str!("tiles.cuh"),
                include_str!("softmax.cuh"),
                include_str!("queries.cu"),
                include_str!("decode.cu")
            ),
            Self::Decode(Precision::Full, _) => concat!(include_str!("caches.cuh"), include_str!("decode_f32.cu")),
        };
        format!("{COMMON}{body}")
    }

    fn options(self, arch: &str) -> Vec<String> {
        // Warpgroup products exist only for the architecture's own target.
        let own = if matches!(self, Self::AttentionHopper(_)) { "a" } else { "" };
        let mut out = vec![format!("--gpu-architecture={arch}{own}"), "--std=c++17".to_owned()];
        if let Self::Rows(p) | Self::Step(p) | Self::LowRank(p) | Self::Decode(p, _) = self
            && p == Precision::Full
        {
            out.push("-DREAL_F32".to_owned());
        }
        if let Self::Attention(dim) | Self::AttentionHopper(dim) | Self::AttentionFull(dim) | Self::Decode(_, dim) =
            self
        {
            out.push(format!("-DD={dim}"));
        }
        out
    }
}

/// Machine code of a source.
pub(super) struct Code {
    /// An ELF file.
    pub bytes: Vec<u8>,
    /// Whether it comes from the cache.
    pub cached: bool,
}

/// Machine code of a source for `arch` (such as `sm_90`), from the cache's folder if it is there.
pub(super) fn cubin(source: Source, arch: &str, cache: Option<&Path>) -> Result<Code, CudaError> {
    match cache.and_then(|dir| stored(&file(dir, source, arch))) {
        Some(bytes) => Ok(Code { bytes, cached: true }),
        None => fresh_cubin(source, arch, cache).map(|bytes| Code { bytes, cached: false }),
    }
}

/// The same, compiled now whatever the cache holds, which holds it afterwards.
pub(super) fn fresh_cubin(source: Source, arch: &str, cache: Option<&Path>) -> Result<Vec<u8>, CudaError> {
    libraries::nvrtc(None)?;
    let bytes = compile(&source.text(), &source.options(arch), arch)?;
    if let Some(dir) = cache {
        // The cache only saves time: a folder that cannot be written costs a compilation at the next start.
        let _ = store(&file(dir, source, arch), &bytes);
    }
    Ok(bytes)
}

/// A source's place in the cache.
fn file(dir: &Path, source: Source, arch: &str) -> PathBuf {
    dir.join(format!("{}.cubin", key(&source.text(), &source.options(arch))))
}

/// The contents of a file of [`store`], if they are what was written there: machine code is not checked by those who load it.
fn stored(file: &Path) -> Option<Vec<u8>> {
    let mut bytes = std::fs::read(file).ok()?;
    let seal = bytes.split_off(bytes.len().checked_sub(SEAL_BYTES)?);
    (bytes.starts_with(b"\x7fELF") && Sha256::digest(&bytes)[..] == seal[..]).then_some(bytes)
}

fn key(text: &str, options: &[String]) -> String {
    let mut hash = Sha256::new();
    hash.update(text.as_bytes());
    for o in options {
        hash.update([0]);
        hash.update(o.as_bytes());
    }
    hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect()
}

/// Bytes of the hash at a file's end.
const SEAL_BYTES: usize = 32;

/// Writes whole or not at all, so that a reader never sees half a file.
fn store(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let part = file.with_extension(format!("part{}", std::process::id()));
    std::fs::write(&part, [bytes, &Sha256::digest(bytes)[..]].concat())?;
    std::fs::rename(&part, file)
}

fn compile(text: &str, options: &[String], arch: &str) -> Result<Vec<u8>, CudaError> {
    let failed = |status: String, log: String| CudaError::Compile { arch: arch.to_owned(), status, log };
    let text = CString::new(text).map_err(|e| failed(e.to_string(), String::new()))?;
    let program = nvrtc::create_program(&text, None).map_err(|e| failed(format!("{e:?}"), String::new()))?;
    // SAFETY: `program` is live until destroyed below; buffers have the sizes that NVRTC asked for.
    unsafe {
        let result = match nvrtc::compile_program(program, options) {
            Err(e) => {
                let log = nvrtc::get_program_log(program).unwrap_or_default();
                let log = log.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect::<Vec<u8>>();
                Err(failed(format!("{e:?}"), String::from_utf8_lossy(&log).into_owned()))
            }
            Ok(()) => read_cubin(program).map_err(|e| failed(format!("{e:?}"), String::new())),
        };
        let _ = nvrtc::destroy_program(program);
        result
    }
}

/// # Safety
/// The program must be live and compiled for a real architecture.
unsafe fn read_cubin(program: sys::nvrtcProgram) -> Result<Vec<u8>, nvrtc::NvrtcError> {
    let mut len = 0usize;
    // SAFETY: the caller's.
    unsafe { sys::nvrtcGetCUBINSize(program, &mut len) }.result()?;
    let mut out = vec![0u8; len];
    // SAFETY: `out` holds `len` bytes.
    unsafe { sys::nvrtcGetCUBIN(program, out.as_mut_ptr().cast::<c_char>()) }.result()?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_back_is_what_was_stored() {
        let dir = tempfile::tempdir().unwrap();
        let file = file(&dir.path().join("new"), Source::Draw, "sm_90");
        assert_eq!(stored(&file), None);
        let code = b"\x7fELF and so on".to_vec();
        store(&file, &code).unwrap();
        assert_eq!(stored(&file), Some(code.clone()));
        let whole = std::fs::read(&file).unwrap();
        for damaged in [
            &b""[..],
            b"\x7fELF",
            b"\x7fELF garbage that is longer than a hash is, for certain",
            &whole[..whole.len() - 1],
        ] {
            std::fs::write(&file, damaged).unwrap();
            assert_eq!(stored(&file), None);
        }
        let mut flipped = whole.clone();
        flipped[6] ^= 1;
        std::fs::write(&file, flipped).unwrap();
        assert_eq!(stored(&file), None);
        // It is compiled again and replaced.
        store(&file, &code).unwrap();
        assert_eq!(stored(&file), Some(code));
    }

    #[test]
    fn the_key_names_text_and_options() {
        let opts = |a: &str| Source::Attention(64).options(a);
        assert_eq!(key("x", &opts("sm_90")), key("x", &opts("sm_90")));
        assert_ne!(key("x", &opts("sm_90")), key("x", &opts("sm_80")));
        assert_ne!(key("x", &opts("sm_90")), key("y", &opts("sm_90")));
        assert_ne!(key("x", &opts("sm_90")), key("x", &Source::Attention(128).options("sm_90")));
        let rows = |p| key("x", &Source::Rows(p).options("sm_90"));
        assert_ne!(rows(Precision::Half), rows(Precision::Full));
    }
}
