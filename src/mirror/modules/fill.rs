//! Fills.
