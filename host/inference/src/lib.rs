//! The in-process engine: scheduler, KV cache, sampler.
