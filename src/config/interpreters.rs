//! Where interpreters are that no project brought along: those of the system, and those that version managers keep for the user.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use pylair_core::settings::InterpreterPlaces;

/// Projects are kept beside these, so that neither `/usr` nor `/opt` is here as a whole.
const SYSTEM: &[&str] = &[
    "/bin",
    "/gnu/store",
    "/home/linuxbrew/.linuxbrew/Cellar",
    "/home/linuxbrew/.linuxbrew/bin",
    "/lib",
    "/lib64",
    "/nix/store",
    "/opt/hostedtoolcache/Python",
    "/opt/python",
    "/run/current-system/sw/bin",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/local/bin",
    "/usr/local/lib",
    "/usr/local/lib64",
];

/// Where Conda is installed, in a home or in `/opt`.
const CONDA: &[&str] =
    &["anaconda", "anaconda3", "conda", "mambaforge", "micromamba", "miniconda", "miniconda3", "miniforge3"];

/// In a home, unless a variable says otherwise: the variable, what is below it, what is below a home.
const KEPT: &[(&str, &str, &str)] = &[
    ("PYENV_ROOT", "versions", ".pyenv/versions"),
    ("UV_PYTHON_INSTALL_DIR", "", ".local/share/uv/python"),
    ("XDG_DATA_HOME", "uv/python", ".local/share/uv/python"),
    ("ASDF_DATA_DIR", "installs/python", ".asdf/installs/python"),
    ("MISE_DATA_DIR", "installs/python", ".local/share/mise/installs/python"),
    ("RYE_HOME", "py", ".rye/py"),
    ("MAMBA_ROOT_PREFIX", "", "micromamba"),
];

/// Where version managers put programs that look for the interpreter that is meant: the manager, the variable that says where it is, and
/// where it is in a home otherwise.
const SHIMS: &[(&str, &str, &str)] = &[
    ("pyenv", "PYENV_ROOT", ".pyenv"),
    ("asdf", "ASDF_DATA_DIR", ".asdf"),
    ("mise", "MISE_DATA_DIR", ".local/share/mise"),
];

/// `homes` are those of the user the daemon runs as.
pub(super) fn places(env: &BTreeMap<String, String>, homes: &[PathBuf]) -> InterpreterPlaces {
    let variable = |name: &str| env.get(name).map(PathBuf::from).filter(|path| path.parent().is_some());
    let mut roots: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
    roots.extend(CONDA.iter().map(|name| Path::new("/opt").join(name)));
    let mut shims = Vec::new();
    shims.extend(variable("PYENV_ROOT").map(|root| root.join("shims")));
    for (name, below, _) in KEPT {
        roots.extend(variable(name).map(|root| root.join(below)));
    }
    for home in homes.iter().filter(|home| home.parent().is_some()) {
        roots.extend(KEPT.iter().map(|(_, _, below)| home.join(below)));
        roots.extend(CONDA.iter().map(|name| home.join(name)));
        roots.push(home.join(".conda/envs"));
        shims.push(home.join(".pyenv/shims"));
    }
    roots.sort();
    roots.dedup();
    let mut named_shims = Vec::new();
    for (manager, name, below) in SHIMS {
        let in_homes = homes.iter().cloned().chain(variable("HOME")).map(|home| home.join(below));
        named_shims.extend(variable(name).into_iter().chain(in_homes).map(|root| (*manager, root.join("shims"))));
    }
    InterpreterPlaces { roots, shims, named_shims }
}
