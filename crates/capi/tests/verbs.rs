//! `tests/verbs.c` with our library: conventions of errors, and one transfer of every kind.

mod c_program;

/// What the program exits with when there is no device or no protection domain.
const NO_DEVICE: i32 = 77;

#[test]
fn a_c_program_gets_the_answers_of_the_manual_pages() {
    let Some(program) = c_program::compile("verbs") else { return };
    let Some(output) = c_program::run_with_ours(&program) else { return };
    let said = String::from_utf8_lossy(&output.stdout);
    match output.status.code() {
        Some(0) => {}
        Some(NO_DEVICE) => println!("skipped: needs a network interface and UDP port 4791: {said}"),
        _ => panic!("{:?}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr)),
    }
}
