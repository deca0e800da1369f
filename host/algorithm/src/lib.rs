//! Loads algorithm plug-ins over the C ABI and validates all they return.
