//! What a line of a test is about: the functions of the project whose results it checks. Called for the traits of a failure.
//!
//! A line does not say where a name comes from, so what Python, its library and well-known packages call so is left out: `json.loads`
//! in two tests says nothing about the two.

use super::super::record::Local;

/// Names whose results a line of source is about: of nested calls the outermost that counts. What is called on a variable of the test is
/// left out: everything a test does may go through one client or runner.
pub(super) fn calls(line: &str, locals: &[Local]) -> Vec<String> {
    let code = line.split('#').next().unwrap_or_default();
    let mut found = Vec::new();
    // Of each open bracket, whether it is of a call that counts or inside of one.
    let mut open: Vec<bool> = Vec::new();
    let mut quote = None;
    for (at, c) in code.char_indices() {
        match (c, quote) {
            (c, Some(mark)) if c == mark => quote = None,
            ('\'' | '"', None) => quote = Some(c),
            ('(', None) => {
                let start = code[..at]
                    .rfind(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '.')))
                    .map_or(0, |start| start + code[start..].chars().next().map_or(1, char::len_utf8));
                let (chain, before) = (&code[start..at], code[..start].trim_end());
                let name = chain.rsplit('.').next().unwrap_or_default();
                let owner = chain.split_once('.').map(|(owner, _)| owner);
                let is_other = ["def", "class", "raise"].iter().any(|word| before.ends_with(word));
                let is_own = owner.is_some_and(|owner| {
                    owner.is_empty() || owner == "self" || locals.iter().any(|local| local.name == owner)
                });
                let counts = name.len() > 1
                    && !is_other
                    && !is_own
                    && !name.starts_with(|c: char| c.is_ascii_digit())
                    && !is_exception(name)
                    && !is_common(name)
                    && !owner.is_some_and(|owner| is_one_of(owner, MODULES));
                let inside = open.last().copied().unwrap_or(false);
                if counts && !inside {
                    found.push(name.to_owned());
                }
                open.push(inside || counts);
            }
            (')', None) => {
                open.pop();
            }
            _ => {}
        }
    }
    found
}

/// What is raised is made anew wherever it is.
fn is_exception(name: &str) -> bool {
    let is_class = name.starts_with(|c: char| c.is_ascii_uppercase());
    is_class && ["Error", "Exception", "Warning", "Exit", "Interrupt"].iter().any(|end| name.ends_with(end))
}

/// Whether a called name says nothing about what is tested.
fn is_common(name: &str) -> bool {
    name.starts_with("assert")
        || name.ends_with("Mock")
        || [WORDS, BUILTINS, METHODS, LIBRARY, OF_TESTS].iter().any(|names| is_one_of(name, names))
}

fn is_one_of(name: &str, names: &str) -> bool {
    names.split_ascii_whitespace().any(|known| known == name)
}

const WORDS: &str =
    "and as assert await def del elif else except for from if in is lambda not or raise return while with yield";

const BUILTINS: &str = "ArithmeticError BaseExceptionGroup ExceptionGroup GeneratorExit StopAsyncIteration StopIteration abs aiter all \
    anext any ascii bin bool breakpoint bytearray bytes callable chr classmethod cls compile complex delattr dict dir divmod enumerate \
    eval exec filter float format frozenset getattr globals hasattr hash help hex id input int isinstance issubclass iter len list locals \
    map max memoryview min next object oct open ord pow print property range repr reversed round self set setattr slice sorted \
    staticmethod str sum super tuple type vars zip";

/// Of texts, containers, files and futures.
const METHODS: &str = "add append as_integer_ratio bit_length capitalize casefold center clear close conjugate copy count cursor decode \
    difference difference_update discard done encode endswith execute expandtabs extend fetchall fetchone find flush format_map fromhex \
    fromkeys get index insert intersection is_integer isalnum isalpha isascii isdecimal isdigit isdisjoint isidentifier islower isnumeric \
    isprintable isspace issubset issuperset istitle isupper items join keys ljust lower lstrip match partition pop popitem put read \
    readline readlines remove removeprefix removesuffix replace result reverse rfind rindex rjust rpartition rsplit rstrip search seek send \
    setdefault sort split splitlines startswith strip submit swapcase symmetric_difference tell title to_bytes translate union update upper \
    values wait write writelines zfill";

/// What is often imported by its name from the standard library.
const LIBRARY: &str = "ChainMap Counter Decimal Enum Event Fraction Lock OrderedDict Path Popen PurePath PurePosixPath Queue RLock \
    SimpleNamespace StringIO BytesIO TemporaryDirectory NamedTemporaryFile Thread ThreadPoolExecutor ProcessPoolExecutor UUID accumulate \
    asdict astuple attrgetter b64decode b64encode basename cached_property cast ceil chain check_call check_output combinations \
    contextmanager cycle date datetime deepcopy defaultdict deque dirname dropwhile dump dumps exists fabs field fields floor fromisoformat \
    fromtimestamp fsum gather gcd getcwd getenv getsize glob groupby gmtime heappop heappush hypot is_dataclass isclose isdir isfile isfinite \
    isinf isnan islice isoformat itemgetter json listdir literal_eval load loads localtime log log10 log2 lru_cache makedirs methodcaller \
    mkdir mkdtemp monotonic namedtuple now nullcontext parse_qs partial perf_counter permutations pformat pprint prod product putenv \
    quote randint random redirect_stderr redirect_stdout reduce repeat rmtree run signature singledispatch sleep sqrt starmap strftime \
    strptime suppress takewhile tee time timedelta timezone today total_seconds unlink unquote urlencode urljoin urlparse urlsplit utcnow \
    uuid1 uuid4 wait_for wraps zip_longest";

/// Of pytest, unittest, mock and what calls programs under test.
const OF_TESTS: &str = "ANY approx call called_with caplog capsys create_autospec deprecated_call exit fail fixture importorskip invoke main \
    mark mock mock_open monkeypatch parametrize param patch raises readouterr seal sentinel skip skipTest subTest subtest subtests warns \
    xfail";

/// Of the standard library, and what stands for others in every project. Other packages may be the very one that is tested.
const MODULES: &str = "argparse array ast asyncio base64 binascii bisect builtins calendar cmath codecs collections concurrent configparser \
    contextlib contextvars copy csv ctypes dataclasses datetime decimal difflib dt email enum filecmp fnmatch fractions ftplib \
    functools gc getpass gettext glob gzip hashlib heapq hmac html http importlib inspect io ipaddress itertools json keyword \
    linecache locale logging lzma marshal math mimetypes mock mocker monkeypatch multiprocessing np numbers numpy op operator os \
    pandas path pathlib pd pickle pl platform plt pprint pytest queue random re secrets select selectors shelve shlex shutil \
    signal socket sqlite3 ssl stat statistics string struct subprocess sys tarfile tempfile textwrap tf threading time tomllib \
    torch traceback types typing tz unicodedata unittest urllib uuid warnings weakref xml zipfile zlib zoneinfo";

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expect: &[&str]) {
        let local = Local { name: "client".into(), ..Local::default() };
        assert_eq!(calls(line, &[local]), expect, "{line}");
    }

    #[test]
    fn what_a_line_is_about() {
        check("assert price(order(1)) == tax(order(2))", &["price", "tax"]);
        check("self.assertEqual(list(mi.chunked(range(3), 2)), [])", &["chunked"]);
        check("assert client.get('/a').json() == make('f(x)')", &["make"]);
        check("def test_it(a): # f(x)", &[]);
        check("with pytest.raises(ZeroDivisionError): lib.divide(1, 1)", &["divide"]);
    }

    #[test]
    fn what_python_has_says_nothing_about_a_project() {
        for line in [
            "raise ValueError(\"bad cart\")",
            "def test_x(): raise Stop('weather too cold')",
            "raise NotImplementedError('later')",
            "assert os.environ.get(\"CART\") == \"1\"",
            "assert json.loads('[1]') == loads('[2]')",
            "assert datetime.datetime.now() == date(2020, 1, 1)",
            "assert Mock().price == mock.MagicMock()",
            "assert NAMES.items() == ','.join('ab').split(',')",
            "assert np.array([1]).sum() == pytest.approx(3)",
            "assert TimeoutError('late') == SystemExit(2)",
        ] {
            check(line, &[]);
        }
    }
}
