//! The list of dependencies, in the format CycloneDX 1.5.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::dist::Release;
use crate::shell::{self, Outcome, output};

pub(crate) fn write(release: &Release) -> Outcome<PathBuf> {
    let metadata = output(Command::new("cargo").current_dir(&release.root).args([
        "metadata",
        "--format-version=1",
        "--locked",
        "--filter-platform",
        release.arch.target,
    ]))?;
    let metadata: Value =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let shipped = shipped(&metadata)?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
    let mut components: Vec<Value> = packages
        .iter()
        .filter(|package| !package["source"].is_null())
        .filter(|package| package["id"].as_str().is_some_and(|id| shipped.contains(&id)))
        .map(component)
        .collect();
    components.sort_by_key(|component| component["purl"].to_string());
    let bom = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "roxie", "version": release.version}},
        "components": components,
    });
    let path = release.out.join(format!("roxie-{}.cdx.json", release.version));
    shell::write(&path, format!("{bom:#}\n"))?;
    Ok(path)
}

/// The packages that the program and the libraries contain: not those of tests and build scripts.
fn shipped(metadata: &Value) -> Outcome<Vec<&str>> {
    let nodes = metadata["resolve"]["nodes"].as_array().ok_or("cargo metadata: no dependencies")?;
    let names = ["roxie-cli", "roxie-ibverbs", "roxie-rdmacm", "roxie-audit", "roxie-preload"];
    let packages = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
    let mut ids: Vec<&str> = packages
        .iter()
        .filter(|package| package["name"].as_str().is_some_and(|name| names.contains(&name)))
        .filter_map(|package| package["id"].as_str())
        .collect();
    let mut next = 0;
    while let Some(id) = ids.get(next).copied() {
        next += 1;
        let node = nodes.iter().find(|node| node["id"] == id).ok_or("cargo metadata: a node is missing")?;
        let is_normal = |dep: &&Value| {
            dep["dep_kinds"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
        };
        let deps = node["deps"].as_array().into_iter().flatten().filter(is_normal);
        for dep in deps.filter_map(|dep| dep["pkg"].as_str()) {
            if !ids.contains(&dep) {
                ids.push(dep);
            }
        }
    }
    Ok(ids)
}

fn component(package: &Value) -> Value {
    let text = |key: &str| package[key].as_str().unwrap_or_default();
    json!({
        "type": "library",
        "name": text("name"),
        "version": text("version"),
        "purl": format!("pkg:cargo/{}@{}", text("name"), text("version")),
        "licenses": [{"expression": text("license")}],
    })
}
