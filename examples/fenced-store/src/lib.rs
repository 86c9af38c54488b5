//! An example of a protected resource.
