//! Reverse a short text.
