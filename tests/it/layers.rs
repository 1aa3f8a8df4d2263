//! The layers are as ARCHITECTURE.md draws them: which crate knows which, who alone knows MCP, HTTP and SQL, and where everything is.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde::Deserialize;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    description: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// None for one of the product itself; tests and builds have others.
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    kind: Option<String>,
}

impl Metadata {
    fn read() -> Self {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--locked"])
            .current_dir(root())
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("cargo writes JSON")
    }

    /// Our own packages by what they are called in ARCHITECTURE.md, and what each of them depends on.
    fn ours(&self) -> BTreeMap<&str, (&Package, BTreeSet<&str>)> {
        let ours = self.packages.iter().filter(|package| self.workspace_members.contains(&package.id));
        ours.map(|package| {
            let needed = package.dependencies.iter().filter(|dependency| dependency.kind.is_none());
            (short(&package.name), (package, needed.map(|dependency| &*dependency.name).collect()))
        })
        .collect()
    }

    /// What a package brings along, however far down.
    fn below(&self, name: &str) -> BTreeSet<&str> {
        let named: BTreeMap<&str, &str> = self.packages.iter().map(|package| (&*package.id, &*package.name)).collect();
        let edges: BTreeMap<&str, &Node> = self.resolve.nodes.iter().map(|node| (&*node.id, node)).collect();
        let mut open: Vec<&str> = named.iter().filter(|(_, known)| **known == name).map(|(id, _)| *id).collect();
        let mut found = BTreeSet::new();
        while let Some(id) = open.pop() {
            let needed = edges[id].deps.iter().filter(|edge| edge.dep_kinds.iter().any(|kind| kind.kind.is_none()));
            open.extend(needed.map(|edge| &*edge.pkg).filter(|id| found.insert(*id)));
        }
        found.into_iter().map(|id| named[id]).collect()
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn short(name: &str) -> &str {
    name.strip_prefix("pylair-").unwrap_or(name)
}

/// How many layers are below one.
fn height(name: &str, known: &BTreeMap<&str, Vec<&str>>) -> usize {
    known[name].iter().map(|below| height(below, known) + 1).max().unwrap_or_default()
}

/// One line for each crate with the crates of ours that it knows, the topmost first and those of one height by their name.
fn drawn(metadata: &Metadata) -> String {
    let ours = metadata.ours();
    let known: BTreeMap<&str, Vec<&str>> = ours
        .iter()
        .map(|(name, (_, needed))| (*name, needed.iter().filter_map(|needed| needed.strip_prefix("pylair-")).collect()))
        .collect();
    let mut names: Vec<&str> = known.keys().copied().collect();
    names.sort_by_key(|name| (std::cmp::Reverse(height(name, &known)), *name));
    let lines = names.iter().map(|name| format!("{name:<9} {}", known[name].join(" ")).trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_graph_of_crates_is_the_one_that_is_drawn() {
    let drawn = drawn(&Metadata::read());
    assert!(read("ARCHITECTURE.md").contains(&format!("```\n{drawn}\n```")), "ARCHITECTURE.md should have\n{drawn}");
}

#[test]
fn what_one_layer_knows_no_other_knows() {
    let metadata = Metadata::read();
    let ours = metadata.ours();
    for (dependency, knowing) in [
        ("axum", &["web"][..]),
        ("clap", &["pylair"]),
        ("landlock", &["keeper"]),
        ("py-spy", &["stacks"]),
        ("rmcp", &["mcp"]),
        ("rustyline", &["pylair"]),
        ("sqlx", &["failures", "journal", "sqlite"]),
        ("tokio-rustls", &["web"]),
    ] {
        let found: Vec<&str> =
            ours.iter().filter(|(_, (_, needed))| needed.contains(dependency)).map(|(name, _)| *name).collect();
        assert_eq!(found, knowing, "{dependency}");
    }
    for (name, strange) in
        [("pylair-core", &["axum", "rmcp"][..]), ("pylair-mcp", &["axum"]), ("pylair-web", &["rmcp"])]
    {
        let below = metadata.below(name);
        assert!(strange.iter().all(|strange| !below.contains(strange)), "{name} brings one of {strange:?}");
    }
    // A keeper is a process of one thread, and nothing in it can start another.
    let below = metadata.below("pylair-keeper");
    assert!(below.contains("rustix") && !below.contains("tokio"), "{below:?}");
}

#[test]
fn every_crate_says_what_it_is() {
    let metadata = Metadata::read();
    let readme = read("crates/README.md");
    for (name, (package, _)) in metadata.ours() {
        let said = package.description.as_deref().unwrap_or_default();
        assert!(!said.is_empty(), "{name} has no description");
        let line = format!("- [`{name}`]({name}): {said}.");
        assert!(name == "pylair" || readme.lines().any(|known| known == line), "crates/README.md should have\n{line}");
    }
}

/// The modules of a crate: what is in its `src`.
fn modules(source: &Path) -> Vec<String> {
    let entries = fs::read_dir(source).unwrap().map(|entry| entry.unwrap().path());
    let is_module = |path: &PathBuf| path.is_dir() && path.join("mod.rs").exists() || path.extension().is_some();
    let names = entries.filter(is_module).map(|path| path.file_stem().unwrap().to_string_lossy().into_owned());
    names.filter(|name| !["lib", "main", "tests"].contains(&name.as_str())).collect()
}

#[test]
fn the_code_map_names_every_module() {
    let map = read("ARCHITECTURE.md");
    let row = |place: &str| {
        let row = map.lines().find(|line| line.starts_with(&format!("| `{place}` |")));
        row.unwrap_or_else(|| panic!("the code map has no row for `{place}`"))
    };
    let mut missing = Vec::new();
    let mut look = |place: &str| {
        let source = if place == "src/" { "src".into() } else { format!("{place}src") };
        let row = row(place);
        let names = modules(&root().join(source)).into_iter().filter(|name| !row.contains(&format!("`{name}`")));
        missing.extend(names.map(|name| format!("{place}: {name}")));
    };
    look("src/");
    for (name, _) in Metadata::read().ours() {
        if name != "pylair" {
            look(&format!("crates/{name}/"));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let entry = entry.unwrap();
        assert!(entry.path().join("Cargo.toml").exists() || entry.file_name() == "README.md", "{entry:?}");
    }
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn a_module_with_parts_is_a_folder() {
    let mut found = Vec::new();
    for place in ["src", "crates", "tests", "benches"] {
        sources(&root().join(place), &mut found);
    }
    let beside: Vec<_> = found.iter().filter(|path| path.with_extension("").is_dir()).collect();
    assert!(beside.is_empty(), "{beside:?}");
}

/// Only the binary reads the environment, the working directory and the home directory.
#[test]
fn the_layers_are_told_where_they_are() {
    let mut found = Vec::new();
    sources(&root().join("crates"), &mut found);
    assert!(found.len() > 100, "there is something to check");
    let mut reading = Vec::new();
    for path in found.iter().filter(|path| path.file_stem().is_none_or(|name| name != "tests")) {
        let text = fs::read_to_string(path).unwrap();
        let product = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for word in ["env::var", "env::vars", "env::current_dir", "env::home_dir", "env::temp_dir"] {
            reading.extend(product.contains(word).then(|| format!("{}: {word}", path.display())));
        }
    }
    assert!(reading.is_empty(), "{reading:#?}");
}
