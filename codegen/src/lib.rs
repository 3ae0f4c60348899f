//! The kernel table.
