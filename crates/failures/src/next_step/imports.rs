//! Import statements for names that are used and not defined, and where they go.

/// Modules of the standard library that tests and small programs use.
const MODULES: &[&str] = &[
    "abc",
    "argparse",
    "array",
    "ast",
    "asyncio",
    "base64",
    "bisect",
    "builtins",
    "calendar",
    "cmath",
    "codecs",
    "collections",
    "concurrent",
    "configparser",
    "contextlib",
    "contextvars",
    "copy",
    "csv",
    "ctypes",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "dis",
    "email",
    "enum",
    "errno",
    "faulthandler",
    "fnmatch",
    "fractions",
    "functools",
    "gc",
    "getpass",
    "glob",
    "gzip",
    "hashlib",
    "heapq",
    "hmac",
    "html",
    "http",
    "importlib",
    "inspect",
    "io",
    "ipaddress",
    "itertools",
    "json",
    "keyword",
    "linecache",
    "locale",
    "logging",
    "lzma",
    "math",
    "mimetypes",
    "multiprocessing",
    "numbers",
    "operator",
    "os",
    "pathlib",
    "pickle",
    "pkgutil",
    "platform",
    "pprint",
    "queue",
    "random",
    "re",
    "sched",
    "secrets",
    "select",
    "shelve",
    "shlex",
    "shutil",
    "signal",
    "smtplib",
    "socket",
    "sqlite3",
    "ssl",
    "stat",
    "statistics",
    "string",
    "struct",
    "subprocess",
    "sys",
    "sysconfig",
    "tarfile",
    "tempfile",
    "textwrap",
    "threading",
    "time",
    "timeit",
    "token",
    "tokenize",
    "traceback",
    "types",
    "typing",
    "unicodedata",
    "unittest",
    "urllib",
    "uuid",
    "warnings",
    "weakref",
    "xml",
    "zipfile",
    "zlib",
    "zoneinfo",
    // Not the standard library's, but there where a test runs.
    "pytest",
];

/// Names that everybody imports from one place.
const NAMES: &[(&str, &str)] = &[
    ("ABC", "abc"),
    ("Any", "typing"),
    ("Callable", "collections.abc"),
    ("ChainMap", "collections"),
    ("Counter", "collections"),
    ("Decimal", "decimal"),
    ("Enum", "enum"),
    ("Fraction", "fractions"),
    ("Iterable", "collections.abc"),
    ("Iterator", "collections.abc"),
    ("MagicMock", "unittest.mock"),
    ("Mock", "unittest.mock"),
    ("AsyncMock", "unittest.mock"),
    ("NamedTuple", "typing"),
    ("OrderedDict", "collections"),
    ("Optional", "typing"),
    ("Path", "pathlib"),
    ("SimpleNamespace", "types"),
    ("StringIO", "io"),
    ("BytesIO", "io"),
    ("TestCase", "unittest"),
    ("ThreadPoolExecutor", "concurrent.futures"),
    ("TypedDict", "typing"),
    ("UUID", "uuid"),
    ("Union", "typing"),
    ("abstractmethod", "abc"),
    ("asdict", "dataclasses"),
    ("cached_property", "functools"),
    ("chain", "itertools"),
    ("contextmanager", "contextlib"),
    ("dataclass", "dataclasses"),
    ("deepcopy", "copy"),
    ("defaultdict", "collections"),
    ("deque", "collections"),
    ("lru_cache", "functools"),
    ("mock", "unittest"),
    ("namedtuple", "collections"),
    ("partial", "functools"),
    ("patch", "unittest.mock"),
    ("reduce", "functools"),
    ("suppress", "contextlib"),
    ("timedelta", "datetime"),
    ("timezone", "datetime"),
    ("uuid4", "uuid"),
    ("wraps", "functools"),
];

/// Packages that are known by a short name.
const ALIASES: &[(&str, &str)] =
    &[("np", "numpy"), ("pd", "pandas"), ("plt", "matplotlib.pyplot"), ("sns", "seaborn"), ("tf", "tensorflow")];

/// The statement that brings a name, for names with which there is no choice.
pub(crate) fn import_of(name: &str) -> Option<String> {
    if MODULES.contains(&name) {
        return Some(format!("import {name}"));
    }
    if let Some((_, module)) = NAMES.iter().find(|(known, _)| *known == name) {
        return Some(format!("from {module} import {name}"));
    }
    ALIASES.iter().find(|(known, _)| *known == name).map(|(alias, module)| format!("import {module} as {alias}"))
}

/// Before which line (from 0) a new import goes: into the first block of imports by its order, else below the head of the file.
pub(super) fn place_for(lines: &[String], statement: &str) -> usize {
    let is_import =
        |line: &str| (line.starts_with("import ") || line.starts_with("from ")) && !line.starts_with("from __future__");
    let Some(begin) = lines.iter().position(|line| is_import(line)) else { return below_head(lines) };
    let block: Vec<usize> = (begin..lines.len())
        .take_while(|index| !lines[*index].trim().is_empty())
        .filter(|index| is_import(&lines[*index]))
        .collect();
    let of_kind = |line: &str| line.starts_with("from ") == statement.starts_with("from ");
    if let Some(next) = block.iter().find(|index| of_kind(&lines[**index]) && lines[**index].as_str() > statement) {
        return *next;
    }
    if let Some(last) = block.iter().rfind(|index| of_kind(&lines[**index])) {
        return end_of(lines, *last);
    }
    if statement.starts_with("import ") { begin } else { block.last().map_or(begin, |last| end_of(lines, *last)) }
}

/// The line behind a statement that may go over several.
fn end_of(lines: &[String], begin: usize) -> usize {
    let mut level: i32 = 0;
    for (index, line) in lines.iter().enumerate().skip(begin) {
        for c in line.chars() {
            level += match c {
                '(' => 1,
                ')' => -1,
                _ => 0,
            };
        }
        if level <= 0 && !line.trim_end().ends_with('\\') {
            return index + 1;
        }
    }
    lines.len()
}

/// Below comments, the docstring and imports from the future.
fn below_head(lines: &[String]) -> usize {
    let mut index = 0;
    while index < lines.len() {
        let line = lines[index].trim();
        let quotes = ["\"\"\"", "'''"].into_iter().find(|quotes| line.starts_with(quotes));
        if let Some(quotes) = quotes {
            let closed = line.len() > 3 && line[3..].contains(quotes);
            index += if closed {
                1
            } else {
                lines[index + 1..].iter().position(|line| line.contains(quotes)).map_or(1, |more| more + 2)
            };
        } else if line.starts_with('#')
            || line.starts_with("from __future__")
            || line.is_empty() && lines.get(index + 1).is_some_and(|next| next.starts_with("from __future__"))
        {
            index += 1;
        } else {
            break;
        }
    }
    index
}
