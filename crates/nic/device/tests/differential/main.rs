//! Differential tests: the kernel and the user-space interpreter must agree on a program's verdict, bytes
//! and maps.
//!
//! The kernel runs programs on given packets (BPF_PROG_TEST_RUN), which needs CAP_BPF; the programs in C
//! need clang. Tests without their requirements print a notice and are skipped. Seeds are fixed, so a
//! failure repeats.

mod assembled;
mod compiled;
mod forwarding;
mod packets;
mod random;
mod twins;
