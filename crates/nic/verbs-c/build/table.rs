//! Reads the symbol tables in `symbols/` and writes the version script for the linker. The build scripts of
//! both libraries use it.

use std::fmt::Write as _;

/// One section of a table: a version node and the names that carry it.
pub(crate) struct Node {
    pub(crate) name: String,
    /// The node this one inherits from.
    pub(crate) parent: Option<String>,
    pub(crate) symbols: Vec<Symbol>,
}

/// One exported name within a node.
#[derive(Clone)]
pub(crate) struct Symbol {
    pub(crate) name: String,
    pub(crate) what: What,
    /// Whether this is the version a program linked today gets (`@@`).
    pub(crate) default: bool,
    /// Present in this node only, not in the nodes that repeat it.
    pub(crate) once: bool,
}

/// The code or data that a name stands for.
#[derive(Clone, Eq, PartialEq)]
pub(crate) enum What {
    /// The Rust function with this name.
    Function(String),
    /// A function that sets `errno` and returns a constant.
    Fails { errno: i32, returns: i32 },
    /// One zero byte of data.
    Byte,
}

impl Symbol {
    /// The Rust function of the same name.
    #[allow(dead_code, reason = "the build script of librdmacm has none")]
    pub(crate) fn function(name: &str) -> Self {
        let what = What::Function(name.to_string());
        Self { name: name.to_string(), what, default: true, once: false }
    }
}

const EOPNOTSUPP: i32 = 95;
const ENOSYS: i32 = 38;

/// Parses a table in the form that `ibverbs.txt` explains.
///
/// # Panics
/// On a line that is not of that form.
pub(crate) fn parse(text: &str) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut hidden = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(header) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            let node = parse_header(header, &nodes);
            nodes.push(node);
            continue;
        }
        let (symbol, compat) = parse_symbol(line).unwrap_or_else(|| panic!("line {}: {line}", number + 1));
        if compat {
            hidden.push(Symbol { default: false, ..symbol.clone() });
        }
        nodes.last_mut().expect("a section comes first").symbols.push(symbol);
    }
    nodes[0].symbols.extend(hidden);
    nodes
}

fn parse_header(header: &str, nodes: &[Node]) -> Node {
    let words: Vec<&str> = header.split_whitespace().collect();
    let (parent, repeated) = match words[1..] {
        [] => (None, None),
        [":", parent] => (Some(parent.to_string()), None),
        ["+", other] => (None, Some(other)),
        _ => panic!("section [{header}]"),
    };
    let symbols = repeated.map_or_else(Vec::new, |other| {
        let other = nodes.iter().find(|n| n.name == other).expect("a repeated section stands above");
        let kept = other.symbols.iter().filter(|s| !s.once);
        kept.map(|s| Symbol { default: false, ..s.clone() }).collect()
    });
    Node { name: words[0].to_string(), parent, symbols }
}

fn parse_symbol(line: &str) -> Option<(Symbol, bool)> {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    let mut take = |word| match words.last() {
        Some(last) if *last == word => words.pop().is_some(),
        _ => false,
    };
    let (compat, once, hidden) = (take("@1.0"), take("once"), take("hidden"));
    let fails = |errno, returns| What::Fails { errno, returns };
    let what = match words[1..] {
        [] => What::Function(words[0].to_string()),
        ["=", function] => What::Function(function.to_string()),
        ["->", "null"] => fails(EOPNOTSUPP, 0),
        ["->", "errno"] => fails(EOPNOTSUPP, EOPNOTSUPP),
        ["->", "negative"] => fails(EOPNOTSUPP, -EOPNOTSUPP),
        ["->", "minus1"] => fails(EOPNOTSUPP, -1),
        ["->", "nosys"] => fails(ENOSYS, -1),
        ["->", "byte"] => What::Byte,
        _ => return None,
    };
    Some((Symbol { name: words[0].to_string(), what, default: !hidden, once }, compat))
}

/// Returns the linker's version script: every node with its names; all other names are local.
pub(crate) fn version_script(nodes: &[Node]) -> String {
    let mut script = String::new();
    for (index, node) in nodes.iter().enumerate() {
        writeln!(script, "{} {{", node.name).expect("writing to a string");
        writeln!(script, "  global:").expect("writing to a string");
        for symbol in &node.symbols {
            writeln!(script, "    {};", symbol.name).expect("writing to a string");
        }
        if index == 0 {
            script.push_str("  local:\n    *;\n");
        }
        match &node.parent {
            Some(parent) => writeln!(script, "}} {parent};\n"),
            None => writeln!(script, "}};\n"),
        }
        .expect("writing to a string");
    }
    script
}
