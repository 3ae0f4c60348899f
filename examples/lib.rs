//! Programs that link tutti. They are a package of their own so that nobody else has to build the crates that they need.
//!
//! This library is empty: the programs stand beside it, one file each.
