//! The server's doors over a small real model, in one process. Owns what clients may rely on.

mod access;
mod adapters;
mod admin;
mod bench;
mod chat;
mod completions;
mod generate;
mod guided;
mod malformed;
mod text;
mod wire;
