//! Markers of requirements, as PEP 508 writes them: `python_version < "3.12" and (os_name == "posix")`. Checked, not evaluated: what
//! they mean is the installer's to say, but some tell of a bad one in a traceback only.

const VARIABLES: [&str; 18] = [
    "python_version",
    "python_full_version",
    "os_name",
    "sys_platform",
    "platform_release",
    "platform_system",
    "platform_version",
    "platform_machine",
    "platform_python_implementation",
    "implementation_name",
    "implementation_version",
    "extra",
    // Older spellings, which are still read.
    "os.name",
    "sys.platform",
    "platform.version",
    "platform.machine",
    "platform.python_implementation",
    "python_implementation",
];
const OPERATORS: [&str; 8] = ["===", "==", "~=", "!=", "<=", ">=", "<", ">"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Text,
    Word(&'a str),
    Operator,
    Open,
    Close,
}

/// What is wrong with a marker.
pub fn check(marker: &str) -> Result<(), String> {
    let tokens = tokens(marker)?;
    let mut rest = tokens.as_slice();
    alternatives(&mut rest)?;
    match rest.first() {
        None => Ok(()),
        Some(token) => Err(format!("{} stands where `and`, `or` or the end should", shown(*token))),
    }
}

fn tokens(marker: &str) -> Result<Vec<Token<'_>>, String> {
    let mut tokens = Vec::new();
    let mut rest = marker.trim_start();
    while let Some(first) = rest.chars().next() {
        let operator = OPERATORS.iter().find(|operator| rest.starts_with(**operator));
        let (token, length) = match (first, operator) {
            ('(', _) => (Token::Open, 1),
            (')', _) => (Token::Close, 1),
            ('"' | '\'', _) => {
                let length = rest[1..].find(first).ok_or("a quote is not closed")?;
                (Token::Text, length + 2)
            }
            (_, Some(operator)) => (Token::Operator, operator.len()),
            _ => {
                let is_of_word = |c: char| c.is_ascii_alphanumeric() || "._".contains(c);
                let length = rest.find(|c: char| !is_of_word(c)).unwrap_or(rest.len());
                if length == 0 {
                    return Err(format!("`{first}` means nothing there"));
                }
                (Token::Word(&rest[..length]), length)
            }
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

fn alternatives(tokens: &mut &[Token<'_>]) -> Result<(), String> {
    loop {
        comparison(tokens)?;
        match tokens {
            [Token::Word("and" | "or"), rest @ ..] => *tokens = rest,
            _ => return Ok(()),
        }
    }
}

fn comparison(tokens: &mut &[Token<'_>]) -> Result<(), String> {
    if let [Token::Open, rest @ ..] = tokens {
        *tokens = rest;
        alternatives(tokens)?;
        let [Token::Close, rest @ ..] = tokens else { return Err("a parenthesis is not closed".to_owned()) };
        *tokens = rest;
        return Ok(());
    }
    let left = operand(tokens)?;
    *tokens = match tokens {
        [Token::Word("not"), Token::Word("in"), rest @ ..] | [Token::Operator | Token::Word("in"), rest @ ..] => rest,
        _ => return Err(format!("{} is not compared with anything", shown(left))),
    };
    operand(tokens)?;
    Ok(())
}

fn operand<'a>(tokens: &mut &[Token<'a>]) -> Result<Token<'a>, String> {
    let Some((first, rest)) = tokens.split_first() else { return Err("something is missing at its end".to_owned()) };
    match first {
        Token::Text => {}
        Token::Word(word) if VARIABLES.contains(word) => {}
        Token::Word(word) => return Err(format!("there is no variable `{word}`")),
        _ => return Err(format!("{} stands where a variable or a quoted text should", shown(*first))),
    }
    *tokens = rest;
    Ok(*first)
}

fn shown(token: Token<'_>) -> String {
    match token {
        Token::Text => "a text".to_owned(),
        Token::Word(word) => format!("`{word}`"),
        Token::Operator => "an operator".to_owned(),
        Token::Open => "`(`".to_owned(),
        Token::Close => "`)`".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_taken() {
        for marker in [
            "python_version < \"3.11\"",
            "python_version<'3.11'and(os_name=='posix'or sys_platform != \"win32\")",
            "'linux' in sys_platform",
            "extra == 'a b' and platform_machine not in \"x86_64 arm64\"",
            "((os.name ~= '1'))",
            "python_full_version === '3.12.0'",
        ] {
            assert_eq!(check(marker), Ok(()), "{marker}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (marker, reason) in [
            ("rm", "there is no variable `rm`"),
            ("python_version", "`python_version` is not compared with anything"),
            ("python_version <", "something is missing at its end"),
            ("", "something is missing at its end"),
            ("python_version < 3.11", "there is no variable `3.11`"),
            ("python_version = '3'", "`=` means nothing there"),
            ("python_version not '3'", "`python_version` is not compared with anything"),
            ("os_name == 'a", "a quote is not closed"),
            ("(os_name == 'a'", "a parenthesis is not closed"),
            ("os_name == 'a')", "`)` stands where `and`, `or` or the end should"),
            ("os_name == 'a' os_name == 'b'", "`os_name` stands where `and`, `or` or the end should"),
            ("os_name == 'a' and", "something is missing at its end"),
            ("== 'a'", "an operator stands where a variable or a quoted text should"),
            ("os_name == `id`", "``` means nothing there"),
            ("--pre", "`-` means nothing there"),
            ("os_name == 'é' ü", "`ü` means nothing there"),
        ] {
            assert_eq!(check(marker), Err(reason.to_owned()), "{marker}");
        }
    }
}
