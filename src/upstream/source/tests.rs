//! Addresses of every form, and what is refused.
