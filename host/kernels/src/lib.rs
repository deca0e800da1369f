//! Fused decoder operations with hand-written backward passes.
