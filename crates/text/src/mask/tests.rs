use super::{
    scan::{MOST_LOOKS, SPARE_LOOKS},
    *,
};

fn code(text: &str) -> String {
    masked(text, Reading::Code).unwrap_or_else(|| text.to_owned())
}

fn text(text: &str) -> String {
    masked(text, Reading::Text).unwrap_or_else(|| text.to_owned())
}

#[test]
fn literals_of_secret_names_are_masked_in_code() {
    for (given, expected) in [
        (r#"API_KEY = "sk-abc""#, r#"API_KEY = "***masked***""#),
        (r"password='hunter2'", r"password='***masked***'"),
        (r#"password: str = "hunter2""#, r#"password: str = "***masked***""#),
        (r#"password: Optional[str] = "hunter2""#, r#"password: Optional[str] = "***masked***""#),
        (r#"self.password = r"hunter2" + x"#, r#"self.password = r"***masked***" + x"#),
        (r#"secret = b"\x00\"z""#, r#"secret = b"***masked***""#),
        ("secret = '''a\nb'''\nx = 1", "secret = '''***masked***'''\nx = 1"),
        (r#"login(user="me", password="x y")"#, r#"login(user="me", password="***masked***")"#),
        (r#"{"user": "me", "password": "x"}"#, r#"{"user": "me", "password": "***masked***"}"#),
        (r#"os.environ["API_KEY"] = "k""#, r#"os.environ["API_KEY"] = "***masked***""#),
        (r#"if password == "hunter2":"#, r#"if password == "***masked***":"#),
        (r#"if (password := "hunter2"):"#, r#"if (password := "***masked***"):"#),
        ("password = (\n    'hunter2'\n)", "password = (\n    '***masked***'\n)"),
        (r#"run(["x", "--password", "hunter2"])"#, r#"run(["x", "--password", "***masked***"])"#),
        (r#"os.environ.setdefault("TOKEN", "abc1234567890def")"#, r#"os.environ.setdefault("TOKEN", "***masked***")"#),
        (r#"token = "a1b2c3d4e5""#, r#"token = "***masked***""#),
        (r#"{"Authorization": "Bearer abcdef123456"}"#, r#"{"Authorization": "***masked***"}"#),
        (r#"x = "ghp_0123456789abcdefghijABCDEFGHIJ012345""#, r#"x = "***masked***""#),
        (r#"get("https://me:pa55@host/x")"#, r#"get("https://me:***masked***@host/x")"#),
        (r#"os.system("mysql --password=hunter2 db")"#, r#"os.system("mysql --password=***masked*** db")"#),
        ("!mysql --password hunter2 db", "!mysql --password ***masked*** db"),
        ("%env API_KEY=hunter2", "%env API_KEY=***masked***"),
        ("x = 1  # password=hunter2", "x = 1  # password=***masked***"),
        (r#"h = "Authorization: Bearer abcdef123456""#, r#"h = "Authorization: Bearer ***masked***""#),
        (r#"j = '{"password": "hunter2"}'"#, r#"j = '{"password": "***masked***"}'"#),
        (
            r#"requests.get(u, headers={"X-Api-Key": "k1"})"#,
            r#"requests.get(u, headers={"X-Api-Key": "***masked***"})"#,
        ),
        (
            "k = '''-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----'''",
            "k = '''-----BEGIN RSA PRIVATE KEY-----***masked***-----END RSA PRIVATE KEY-----'''",
        ),
        ("API_KEY=a1b2c3d4e5f6g7h8", "API_KEY=***masked***"),
    ] {
        assert_eq!(code(given), expected, "{given}");
    }
}

#[test]
fn ordinary_code_is_left_as_it_is() {
    for given in [
        "token_count = 5",
        r#"tokenize("x")"#,
        r#"tokens = ["a", "b"]"#,
        r#"token = ",""#,
        r#"pad_token = "<|endoftext|>""#,
        "token = next(tokens)",
        "password = getpass()",
        r#"password = getpass("Password: ")"#,
        r#"password = os.environ["DB_PASSWORD"]"#,
        r#"password = input("password: ") or "y""#,
        "login(user, password=pw)",
        "login(user, token=tokens[0], key=x)",
        "def f(password: str, token: Optional[str] = None) -> str: ...",
        r#"fields = ["username", "password", "email"]"#,
        r#"getenv("API_KEY", "")"#,
        r#"f"password={password}""#,
        r#""password=%s" % p"#,
        r#"password = f"{x}""#,
        r#"secret = """#,
        "secret = None",
        r#"primary_key = "id""#,
        r#"key = "name""#,
        r#"d["key"] = "value""#,
        r#"print("it's a secret to everybody")"#,
        "x = don't",
        "url = 'https://host/a:b@c'",
        "url = f'https://{user}:{password}@{host}'",
        "import secrets; secrets.token_hex(16)",
        "assert 'token' in d, 'no token'",
        "class Token: pass",
        "skip = 'sk-learn'",
        r#"raise ValueError("password: it is too short")"#,
    ] {
        assert_eq!(code(given), given);
    }
}

#[test]
fn text_is_masked_where_it_says_what_it_is() {
    for (given, expected) in [
        ("DB_PASSWORD=hunter2\nHOME=/root", "DB_PASSWORD=***masked***\nHOME=/root"),
        ("Authorization: Bearer abcdef123456", "Authorization: Bearer ***masked***"),
        ("Cookie: session=abcdef; x=y", "Cookie: ***masked***"),
        ("x-api-key: 1234567890", "x-api-key: ***masked***"),
        ("{'password': 'hunter2', 'a': 1}", "{'password': '***masked***', 'a': 1}"),
        ("GET /?token=a1b2c3d4e5&x=1", "GET /?token=***masked***&x=1"),
        ("environ({'API_KEY': 'k', 'HOME': '/'})", "environ({'API_KEY': '***masked***', 'HOME': '/'})"),
    ] {
        assert_eq!(text(given), expected, "{given}");
    }
    for given in [
        "the password is wrong",
        "Password: ",
        "token: identifier",
        "secret sharing is a scheme",
        "3 tokens, 5 keys",
        "password=",
        "é password é",
    ] {
        assert_eq!(text(given), given);
    }
}

#[test]
fn our_own_tokens_are_masked_wherever_they_are() {
    let own = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcd3f";
    hide(own);
    assert_eq!(text(&format!("curl {own}x")), "curl ***masked***x");
    let made = format!("pylair_{}", "ab12".repeat(16));
    assert_eq!(code(&format!("x = '{made}'")), "x = '***masked***'");
}

#[test]
fn masking_twice_changes_nothing_and_cuts_no_character() {
    for given in
        ["password = 'é😀'", "password='", "--password", "password =", "'password':", "https://é:é@é", "Bearer "]
    {
        let once = code(given);
        assert_eq!(code(&once), once);
        text(given);
    }
}

#[test]
fn values_are_shown_by_their_name() {
    assert_eq!(value("API_KEY", "x"), MARK);
    assert_eq!(value("API_KEY", ""), "");
    assert_eq!(value("HOME", "/root"), "/root");
}

/// Ways to write a value that goes over several lines or literals, or is in a command. `SECRET` must not survive.
#[test]
fn values_are_masked_however_they_are_laid_out() {
    for (given, expected) in [
        ("password = (\n  'SECRET'  # mine\n  'SECRET'\n)", "password = (\n  'MARK'  # mine\n  'MARK'\n)"),
        ("password = 'SECRET' 'SECRET'", "password = 'MARK' 'MARK'"),
        ("password = 'SECRET' \\\n  r'SECRET'", "password = 'MARK' \\\n  r'MARK'"),
        ("password = \\\n  'SECRET'", "password = \\\n  'MARK'"),
        ("password = 'SECRET' + 'SECRET' + x", "password = 'MARK' + 'MARK' + x"),
        ("connect(password='SECRET'\n  'SECRET', n=1)", "connect(password='MARK'\n  'MARK', n=1)"),
        ("connect(password=(\n'SECRET'\n'SECRET'))", "connect(password=(\n'MARK'\n'MARK'))"),
        ("x = {'password':\n  'SECRET',\n 'n': 'v'}", "x = {'password':\n  'MARK',\n 'n': 'v'}"),
        ("x = {'password':  # here\n  ('SECRET'\n   'SECRET')}", "x = {'password':  # here\n  ('MARK'\n   'MARK')}"),
        ("password = str(\n 'SECRET')", "password = str(\n 'MARK')"),
        ("api_key = SecretStr('SECRET')", "api_key = SecretStr('MARK')"),
        ("password = base64.b64decode(b'SECRET')", "password = base64.b64decode(b'MARK')"),
        ("password = '''SECRET\nSECRET", "password = '''MARK"),
        ("password = 'SECRET", "password = 'MARK"),
        ("setattr(x, 'password', 'SECRET')", "setattr(x, 'password', 'MARK')"),
        ("monkeypatch.setenv('API_KEY', 'SECRET')", "monkeypatch.setenv('API_KEY', 'MARK')"),
        ("data = [('user', 'me'), ('password', 'SECRET')]", "data = [('user', 'me'), ('password', 'MARK')]"),
        (r#"x = "{\"password\": \"SECRET\", \"n\": 1}""#, r#"x = "{\"password\": \"MARK\", \"n\": 1}""#),
        (r#"x = "{\n  \"password\":\n \"SECRET\"\n}""#, r#"x = "{\n  \"password\":\n \"MARK\"\n}""#),
        (
            "key = ('-----BEGIN PRIVATE KEY-----\\n'\n 'SECRET\\n'\n 'SECRET\\n'\n '-----END PRIVATE KEY-----')",
            "key = ('-----BEGIN PRIVATE KEY-----MARK'\n 'MARK'\n 'MARK'\n '-----END PRIVATE KEY-----')",
        ),
        (
            "'\\n'.join(['-----BEGIN EC PRIVATE KEY-----', 'SECRET', '-----END EC PRIVATE KEY-----'])",
            "'\\n'.join(['-----BEGIN EC PRIVATE KEY-----', 'MARK', '-----END EC PRIVATE KEY-----'])",
        ),
        ("run(['mysql', '-u', 'me', '-pSECRET', 'db'])", "run(['mysql', '-u', 'me', '-pMARK', 'db'])"),
        ("run(['/usr/bin/sshpass',\n '-p', 'SECRET', 'ssh'])", "run(['/usr/bin/sshpass',\n '-p', 'MARK', 'ssh'])"),
        ("os.system('mysql -u me -pSECRET db')", "os.system('mysql -u me -pMARK db')"),
        ("os.system('sshpass -p SECRET ssh h')", "os.system('sshpass -p MARK ssh h')"),
        ("!curl -u me:SECRET https://h/", "!curl -u me:MARK https://h/"),
        ("!mysql \\\n  --password SECRET \\\n  db", "!mysql \\\n  --password MARK \\\n  db"),
        ("os.system('x --token=SECRET y')", "os.system('x --token=MARK y')"),
        ("os.system('x --password \"SECRET SECRET\" y')", "os.system('x --password \"MARK\" y')"),
        (
            "%%bash\nexport DB_PASSWORD=SECRET\nredis-cli -a SECRET ping",
            "%%bash\nexport DB_PASSWORD=MARK\nredis-cli -a MARK ping",
        ),
        ("connect('postgres://me:SECRET/x#y@host/db')", "connect('postgres://me:MARK@host/db')"),
        ("{'Authorization': 'Basic SECRETabc'}", "{'Authorization': 'MARK'}"),
        ("open('.env').write('A=1\\nPASSWORD=SECRET\\nB=2')", "open('.env').write('A=1\\nPASSWORD=MARK\\nB=2')"),
        ("x = '''\n[db]\npassword = SECRET\nuser = me\n'''", "x = '''\n[db]\npassword = MARK\nuser = me\n'''"),
        ("x = '''\ndb:\n  password: SECRET\n  user: me\n'''", "x = '''\ndb:\n  password: MARK\n  user: me\n'''"),
        ("smtp_pass = 'SECRET12'", "smtp_pass = 'MARK'"),
    ] {
        let written = |text: &str| text.replace("MARK", MARK).replace("SECRET", "hunter2");
        assert_eq!(code(&written(given)), written(expected), "{given}");
    }
}

#[test]
fn what_is_beside_a_value_is_no_part_of_it() {
    for given in [
        "password = getpass()\n'a remark'",
        "password = None\n'''a remark'''",
        "x = {'password': pw,\n 'user': 'me'}",
        "x = {'password':\n load('x'), 'user': 'me'}",
        "f(password=get('a' 'b'))",
        "print('password: it was wrong')",
        "password = ask('Password for ' 'me')",
        "docker = 'docker run -p 80:80 x'",
        "os.system('mkdir -p a/b/c; nmap -p 80 host')",
        "run(['mkdir', '-p', 'a'])",
        "run(['mysql', '-u', 'me', 'db'])",
        "url = 'http://host:8080/a@b'",
        "url = 'git@github.com:a/b'",
        "first_pass = 'all of it'",
        "def f(password: str, token: str): 'a'",
        "x = \"it's \\\"quoted\\\" here\"",
        "a = 'C:\\\\new\\\\temp'",
        "getenv('API_KEY', 'none')",
        "columns = ('password', 'email', 'name')",
        "curl = 'curl https://host/x -o y'",
    ] {
        assert_eq!(code(given), given);
    }
    assert_eq!(
        code("password = 'hunter2'\n'a remark'\nx = 'y'"),
        "password = '***masked***'\n'a remark'\nx = 'y'",
        "a statement of its own"
    );
}

#[test]
fn arguments_of_a_command_are_masked() {
    let shown = |words: &[&str]| argv(words).join(" ");
    assert_eq!(shown(&["--password", "x", "y"]), "--password ***masked*** y");
    assert_eq!(shown(&["--api-key=k", "-p", "hunter2", "z"]), "--api-key=***masked*** -p ***masked*** z");
    assert_eq!(shown(&["DB_PASSWORD=x", "https://a:b@c"]), "DB_PASSWORD=***masked*** https://a:***masked***@c");
    assert_eq!(shown(&["--token", "--password", "x"]), "--token ***masked*** x", "a flag says that it has a value");
    assert_eq!(shown(&["--verbose", "a b", ""]), "--verbose a b ");
}

/// Numbers that look random and are the same every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % count
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    /// As a person or a machine would make one: nothing that Python would read as the end of a literal.
    fn secret(&mut self) -> String {
        let alphabet: Vec<char> = "abcdefghkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ0123456789+/-_.!@é".chars().collect();
        let length = 12 + self.below(40);
        let tail: String = (0..length).map(|_| alphabet[self.below(alphabet.len())]).collect();
        format!("Q7{tail}9z")
    }
}

const NAMES: &[&str] =
    &["password", "DB_PASSWORD", "api_key", "apiKey", "client_secret", "ACCESS_TOKEN", "passphrase", "private_key"];
/// Code in which `NAME` is a name and `VALUE` what it must not show.
const IN_CODE: &[&str] = &[
    "NAME = 'VALUE'",
    "NAME = \"VALUE\"",
    "NAME: str = 'VALUE'",
    "self.NAME = r'VALUE'",
    "connect(user='me', NAME='VALUE', port=5432)",
    "config = {'user': 'me', 'NAME': 'VALUE'}",
    "os.environ['NAME'] = 'VALUE'",
    "if NAME == 'VALUE': pass",
    "json.loads('{\"NAME\": \"VALUE\"}')",
    "NAME = (\n    'VALUE'\n)",
    "NAME = (\n    'VALUE'\n    \"VALUE\"  # don't\n)",
    "NAME = 'VALUE' \\\n    'VALUE'",
    "NAME = b'VALUE' + b'VALUE'",
    "NAME = '''VALUE'''",
    "NAME = str('VALUE')",
    "config = {'n': 1, 'NAME':\n    ('VALUE'\n     'VALUE')}",
    "json.loads(\"{\\\"NAME\\\": \\\"VALUE\\\"}\")",
    "setattr(config, 'NAME', 'VALUE')",
    "run(['tool', '--NAME', 'VALUE', 'x'])",
    "os.system('tool --NAME=VALUE x')",
    "connect('db://me:VALUE@host/db')",
    "run('sshpass -p VALUE ssh host', shell=True)",
];
const IN_TEXT: &[&str] = &["{'NAME': 'VALUE', 'n': 1}", "{\"NAME\": \"VALUE\"}", "NAME='VALUE'"];
const ORDINARY: &[&str] = &[
    "import os, sys",
    "for token in tokenize(line): print(token)",
    "x = [i ** 2 for i in range(10)]",
    "def f(a, *, key=None): return sorted(a, key=key)",
    "print('it\\'s', \"a 'b' c\", '''d\n\"e\"''')",
    "assert 'password' in form and token_count > 3",
    "df.groupby('key')['value'].sum()  # don't",
    "s = f'{a!r:>{width}} {b}'",
    "@app.route('/login', methods=['POST'])",
    "class Token(NamedTuple): kind: str; text: str",
    "é = 'ü' * 3",
    "lambda password: len(password) >= 8",
    "d = {'password': pw, 'token': t}; s = \"a \\\"b\\\" c\"",
    "x = ('a'\n  'b')  # joined",
    "run(['mkdir', '-p', path])",
    "u = 'https://host:80/a?b=c'",
];

#[test]
fn a_secret_survives_nowhere_and_nothing_else_is_touched() {
    let mut dice = Dice(1);
    for round in 0..3000 {
        let (templates, reading) = if round % 3 == 0 { (IN_TEXT, Reading::Text) } else { (IN_CODE, Reading::Code) };
        let mut lines = Vec::new();
        for _ in 0..dice.below(4) {
            lines.push(dice.pick(ORDINARY).to_owned());
        }
        let at = dice.below(lines.len() + 1);
        lines.insert(at, dice.pick(templates).replace("NAME", dice.pick(NAMES)));
        let (around, secret) = (lines.join("\n"), dice.secret());
        let kept = masked(&around.replace("VALUE", &secret), reading).unwrap_or_default();
        assert_eq!(kept, around.replace("VALUE", MARK), "{secret} in {around}");
    }
}

#[test]
fn code_without_secrets_stays_as_it_is() {
    let mut dice = Dice(2);
    for _ in 0..2000 {
        let lines: Vec<_> = (0..=dice.below(6)).map(|_| dice.pick(ORDINARY)).collect();
        let given = lines.join("\n");
        assert_eq!(masked(&given, Reading::Code), None, "{given}");
    }
}

#[test]
fn no_text_is_cut_within_a_character() {
    let mut dice = Dice(3);
    let pieces = [
        "\\'",
        "'",
        "\"",
        "'''",
        "password",
        "=",
        ":",
        " ",
        "é",
        "-----BEGIN ",
        "sk-.",
        "\n",
        "://",
        "@",
        "--token",
        "eyJ",
    ];
    for _ in 0..2000 {
        let given: String = (0..dice.below(40)).map(|_| dice.pick(&pieces)).collect();
        for reading in [Reading::Code, Reading::Text] {
            // It would panic.
            masked(&given, reading);
        }
    }
}

/// How many bytes are looked at to mask this.
fn looks(text: &str, reading: Reading) -> usize {
    let mut spans = Vec::new();
    let mut scanner = Scanner::new(text.as_bytes(), &mut spans);
    let before = scanner.left();
    scanner.scan(0, text.len(), reading, 0);
    before - scanner.left()
}

/// What sessions print, any number of times.
const LINES: &[&str] = &[
    "password=#\n",
    "password=#\\n",
    "DB_PASSWORD=hunter2\n",
    "export API_KEY='a1b2c3d4'\n",
    "export API_KEY=\\'a1b2c3d4\\'\\n",
    "{\"password\": \"x\", \"token\": \"a b\"},\n",
    "('password', 'x'), ",
    "https://me:pw@host/x?token=abc ",
    "# password=x token: y\n",
    "Authorization: Bearer abcdef123456\n",
    "Cookie: a=b; c=d\n",
    "x = [1, 2, 3]  # no secret\n",
    "token = 'a word'\n",
    "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n",
];
/// What nobody writes but to be read over and over.
const MEAN: &[&str] = &[
    "'password=#\\n",
    "[password=#,",
    "[#password=\n",
    "authorization: foo x ",
    "token=\\\\\\\\' a b ",
    "'mysql', ",
    "mysql ",
    "docker ",
    "('token', '''",
    "password \t",
    "sk-",
    "password: str ",
    "--password ",
    "str(",
    "password = (",
    "\\'",
    "'",
    "\"",
    "'''",
    "-----BEGIN ",
    "://",
    "://a:",
    "eyJ",
];
/// What may stand before them.
const BEFORE: &[&str] = &["", "'"];
const MEANLY_BEFORE: &[&str] = &["", "'", "[", "token=\\\\\\' "];

#[test]
fn twice_the_text_is_twice_the_work() {
    for (pieces, befores, most) in [(LINES, BEFORE, 16), (MEAN, MEANLY_BEFORE, MOST_LOOKS)] {
        for (piece, before) in pieces.iter().flat_map(|piece| befores.iter().map(move |before| (piece, before))) {
            let text = |bytes: usize| format!("{before}{}", piece.repeat(bytes / piece.len()));
            let (one, two) = (text(8_000), text(16_000));
            for reading in [Reading::Code, Reading::Text] {
                let (once, twice) = (looks(&one, reading), looks(&two, reading));
                assert!(once <= most * one.len() + SPARE_LOOKS, "{before}{piece:?}: {once} for {}", one.len());
                assert!(2 * twice <= 5 * once + SPARE_LOOKS, "{before}{piece:?}: {once}, then {twice}");
            }
        }
    }
}

#[test]
fn what_would_take_too_long_to_look_through_is_masked_as_a_whole() {
    let long = format!("é = 1\n{}hunter2é", "[password=#é,".repeat(20_000));
    let kept = code(&long);
    assert!(kept.starts_with("é = 1\n[password=#é,[password") && kept.ends_with(MARK), "{}", kept.len());
    assert!(kept.len() < long.len() / 2 && !kept.contains("hunter2"), "{}", kept.len());
    let honest = text(&format!("'{}'", "password=hunter2\\n".repeat(50_000)));
    assert_eq!(honest, format!("'{}'", format!("password={MARK}\\n").repeat(50_000)));
}

#[test]
fn what_follows_a_secret_or_a_parameter_is_looked_at_too() {
    for (given, expected) in [
        ("https://bob:pw@h/x?token=BBsecret12345", "https://bob:***masked***@h/x?token=***masked***"),
        (
            "https://bob:pw@h:80/x?a=1&api_key=BBsecret12345#y",
            "https://bob:***masked***@h:80/x?a=1&api_key=***masked***",
        ),
        ("t.py::test_x[a-ghp_0123456789abcdefghijABCDEFGHIJ012345]", "t.py::test_x[a-***masked***]"),
        ("t.py::test_x[a-b-c]", "t.py::test_x[a-b-c]"),
    ] {
        assert_eq!(text(given), expected);
    }
}
