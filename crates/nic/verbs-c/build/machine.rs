//! The instructions of the exported names, for each architecture.

/// What `global_asm!` must know about the syntax.
pub(crate) fn options(arch: &str) -> &'static str {
    if arch == "x86_64" { "options(att_syntax)" } else { "" }
}

/// What a function begins with. On Power it computes the TOC pointer (r2) from its own address (r12): ELFv2
/// ABI, 2.3.2.
pub(crate) fn entry(arch: &str, label: &str) -> String {
    match arch {
        "powerpc64" => format!(
            " addis 2, 12, .TOC.-{label}@ha\n addi 2, 2, .TOC.-{label}@l\n .localentry {label}, .-{label}\n"
        ),
        _ => String::new(),
    }
}

/// Jumps to a function of the same library; the arguments stay.
#[allow(dead_code, reason = "librdmacm.so has no functions of its own")]
pub(crate) fn jump(arch: &str, function: &str) -> String {
    match arch {
        "x86_64" => format!(" jmp {function}"),
        "aarch64" | "powerpc64" => format!(" b {function}"),
        "riscv64" => format!(" tail {function}"),
        other => panic!("no trampolines for {other}"),
    }
}

/// Jumps to a function of another library, through the global offset table. On Power r12 has its address.
#[allow(dead_code, reason = "libibverbs.so needs no other library")]
pub(crate) fn far_jump(arch: &str, function: &str) -> String {
    match arch {
        "x86_64" => format!(" jmpq *{function}@GOTPCREL(%rip)"),
        "aarch64" => {
            format!(" adrp x16, :got:{function}\n ldr x16, [x16, :got_lo12:{function}]\n br x16")
        }
        "powerpc64" => {
            format!(" addis 12, 2, {function}@got@ha\n ld 12, {function}@got@l(12)\n mtctr 12\n bctr")
        }
        "riscv64" => format!("1: auipc t1, %got_pcrel_hi({function})\n ld t1, %pcrel_lo(1b)(t1)\n jr t1"),
        other => panic!("no trampolines for {other}"),
    }
}

/// Loads the three arguments of `unsupported(name, errno, returns)`.
#[allow(dead_code, reason = "librdmacm.so has no such functions")]
pub(crate) fn load_arguments(arch: &str, label: &str, errno: i32, returns: i32) -> String {
    match arch {
        "x86_64" => format!(" leaq {label}_name(%rip), %rdi\n movl ${errno}, %esi\n movq ${returns}, %rdx\n"),
        "aarch64" => format!(
            " adrp x0, {label}_name\n add x0, x0, :lo12:{label}_name\n mov w1, #{errno}\n\
             \x20mov x2, #{returns}\n"
        ),
        "powerpc64" => format!(
            " addis 3, 2, {label}_name@toc@ha\n addi 3, 3, {label}_name@toc@l\n li 4, {errno}\n\
             \x20li 5, {returns}\n"
        ),
        "riscv64" => format!(" lla a0, {label}_name\n li a1, {errno}\n li a2, {returns}\n"),
        other => panic!("no trampolines for {other}"),
    }
}
