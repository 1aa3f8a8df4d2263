use super::*;

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
