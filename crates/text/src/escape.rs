//! Text inside addresses and pages, where some characters have a meaning.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Escapes a path for a URL; its slashes stay.
pub fn url_path(path: &str) -> String {
    const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_').remove(b'~');
    utf8_percent_encode(path, IN_PATH).to_string()
}

/// Escapes one segment of a path or one value of a query.
pub fn url_value(value: &str) -> String {
    const IN_VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-');
    utf8_percent_encode(value, IN_VALUE).to_string()
}

/// Escapes text for HTML, in elements and in quoted attributes.
pub fn html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_escaped() {
        assert_eq!(url_path("out/a b%?.csv"), "out/a%20b%25%3F.csv");
        assert_eq!(url_value("a/b.c-d é&"), "a%2Fb%2Ec-d%20%C3%A9%26");
    }

    #[test]
    fn pages_are_escaped() {
        assert_eq!(html("<a b=\"c\">'&'"), "&lt;a b=&quot;c&quot;&gt;&#39;&amp;&#39;");
    }
}
