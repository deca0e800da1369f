//! The C ABI of algorithm plug-ins.
