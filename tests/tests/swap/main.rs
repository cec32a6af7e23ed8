//! Swaps of the real server, seen from outside: by operators, and by clients that stream meanwhile.

mod api;
mod cli;
mod config;
mod held;
mod listener;
mod reports;
mod streams;
