//! The adapters and the examples, on both engines. Libraries run as they come from their registry.

#[macro_use]
mod support;

mod adapters;
mod examples;
mod hyper;
