//! One program, two places: the kernel and the machine in user space must agree on verdict, bytes and map contents.
//!
//! The kernel runs programs on packets of ours (BPF_PROG_TEST_RUN), which needs CAP_BPF; the programs in C need clang.
//! What is missing is said and skipped. Seeds are fixed, so a failure repeats.

mod assembled;
mod compiled;
mod forwarding;
mod packets;
mod random;
mod rng;
mod twins;
