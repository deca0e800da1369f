//! Stands in for cubecl's LLVM back end in the CUDA build.
//!
//! `cubecl-cuda` links its LLVM back end whether or not it is selected, and building that crate downloads an LLVM
//! tree. This project runs cubecl's CUDA C++ back end (feature `cpp`), so only the names that `cubecl-cuda` mentions
//! are needed. Nothing here may compile a kernel: reaching it is an error that says so.

use cubecl_core::ir::{amd::GfxArch, attributes::BufferIOAttr, nvidia::SmArch};
use cubecl_core::prelude::KernelDefinition;
use cubecl_server::{compiler::CompilationError};

/// The targets of the real back end that `cubecl-cuda` names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LlvmTarget {
    /// PTX for NVIDIA GPUs.
    #[default]
    Nvptx,
}

/// A compiler that refuses every kernel.
#[derive(Clone, Debug, Default)]
pub struct PlironCompiler {
    /// Ignored.
    pub target: LlvmTarget,
}

impl PlironCompiler {
    /// Always an error: the LLVM back end is not part of this build.
    pub fn compile(&mut self, _: KernelDefinition, _: &PlironOptions) -> Result<PlironArtifact, CompilationError> {
        Err(CompilationError::Generic {
            reason: "this build has no LLVM back end; cubecl-cuda must be built with its `cpp` feature".into(),
            backtrace: cubecl_environment::backtrace::BackTrace::capture(),
        })
    }

    /// The language tag of the real back end.
    pub fn lang_tag(&self) -> &'static str {
        "ll"
    }
}

/// The options `cubecl-cuda` fills in.
#[derive(Clone, Debug, Default)]
pub struct PlironOptions {
    /// AMD architecture.
    pub arch: Option<GfxArch>,
    /// NVIDIA architecture.
    pub sm_arch: Option<SmArch>,
    /// PTX version.
    pub ptx_version: Option<nvptx::ptx_version::PtxVersion>,
    /// Layout of the kernel's parameter block.
    pub grid_constants: bool,
}

/// What a compiler would give back.
#[derive(Clone)]
pub enum PlironArtifact {
    /// PTX text.
    NvptxCode(NvptxModule),
    /// Anything else.
    Other,
}

/// A compiled PTX module; never built here.
#[derive(Clone, Debug)]
pub struct NvptxModule {
    /// NUL-terminated PTX.
    pub ptx: Vec<core::ffi::c_char>,
    /// Entry symbol.
    pub entrypoint: String,
    /// IR text.
    pub ir: String,
    /// Bytes of shared memory.
    pub shared_memory_size: usize,
    /// Access modes of the buffers.
    pub io: Vec<BufferIOAttr>,
}

/// PTX versions.
pub mod nvptx {
    /// PTX versions.
    pub mod ptx_version {
        /// A PTX version; this build selects none.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct PtxVersion(());

        impl PtxVersion {
            /// Always `None`.
            pub fn for_driver(_driver: i32) -> Option<Self> {
                None
            }
        }

        impl core::fmt::Display for PtxVersion {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str("ptx")
            }
        }
    }
}

/// Feature restriction of the real back end.
pub mod shared {
    /// Feature restriction of the real back end.
    pub mod lowered_features {
        /// The GPU target.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum GpuTarget {
            /// NVIDIA.
            Nvptx,
        }

        /// Leaves the properties as they are: the C++ back end lowers all of them.
        pub fn restrict_features(_: &mut cubecl_core::ir::DeviceProperties, _: GpuTarget) {}
    }
}
