//! A session as a page for people: one file, nothing fetched, no script, every text escaped.

use std::fmt::Write;

use base64::{Engine, prelude::BASE64_STANDARD};

use super::{Cell, Entry, Piece, export::Transcript, notebook::remark};
use pylair_output::Stream;
use pylair_python::lexer::{self, Kind};
use pylair_text::escape;

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--dim:#777;--red:#c22;--key:#a0359c;--text:#2a7d2a;--num:#2364c4}
@media(prefers-color-scheme:dark){:root{--dim:#999;--red:#f66;--key:#d98ad6;--text:#8c8;--num:#8ab4ff}}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
pre{font:13px/1.45 ui-monospace,monospace;margin:.3rem 0;padding:.5rem .8rem;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}
section{margin:1.2rem 0;border:1px solid var(--line);border-radius:6px;overflow:hidden}
section>header{padding:.25rem .8rem;border-bottom:1px solid var(--line);color:var(--dim);font-size:.85em}
pre.code{background:#8881;margin:0}pre.err,.bad{color:var(--red)}img{max-width:100%;padding:.5rem .8rem;box-sizing:border-box}
p.event,p.cut{color:var(--dim)}p.cut{padding:0 .8rem}
.k{color:var(--key)}.s{color:var(--text)}.n{color:var(--num)}.c{color:var(--dim)}";

/// Nothing may be fetched or run, whatever is in the page.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

pub(super) fn html(transcript: &Transcript, load: &mut dyn FnMut(&str) -> Option<Vec<u8>>) -> String {
    let name = escape::html(&transcript.name);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>Session {name}</title>\n\
         <style>\n{STYLE}\n</style>\n</head>\n<body>\n<h1>Session {name}</h1>\n"
    );
    let _infallible = write!(page, "<p>Exported {}", transcript.exported);
    if let Some(opened) = &transcript.opened {
        let _infallible = write!(page, "; Python {} in {}", escape::html(&opened.python), escape::html(&opened.cwd));
    }
    page.push_str(".</p>\n");
    for note in &transcript.notes {
        let _infallible = writeln!(page, "<p class=\"bad\">Note: {}.</p>", escape::html(note));
    }
    if let Some(startup) = transcript.opened.as_ref().and_then(|opened| opened.startup.as_deref()) {
        let _infallible = writeln!(
            page,
            "<section>\n<header>startup</header>\n<pre class=\"code\">{}</pre>\n</section>",
            coloured(startup)
        );
    }
    for entry in &transcript.entries {
        match entry {
            Entry::Cell(cell) => push_cell(&mut page, cell, load),
            Entry::Happening(happening) => {
                if let Some(text) = remark(happening) {
                    let _infallible = writeln!(page, "<p class=\"event\">{}</p>", escape::html(&text));
                }
            }
        }
    }
    page.push_str("</body>\n</html>\n");
    page
}

fn push_cell(page: &mut String, cell: &Cell, load: &mut dyn FnMut(&str) -> Option<Vec<u8>>) {
    let _infallible = write!(
        page,
        "<section id=\"cell-{}\">\n<header>In [{}] by {}, {}",
        cell.cell,
        cell.cell,
        escape::html(&cell.client),
        cell.started
    );
    if let Some(duration) = cell.duration_ms {
        let _infallible = write!(page, ", {duration} ms");
    }
    if cell.outcome != "ok" {
        let _infallible = write!(page, ", <span class=\"bad\">{}</span>", escape::html(&cell.outcome));
    }
    let _infallible = writeln!(page, "</header>\n<pre class=\"code\">{}</pre>", coloured(&cell.code));
    if cell.code_cut {
        page.push_str("<p class=\"cut\">The code was too long to be kept whole.</p>\n");
    }
    let mut last_value = None;
    for piece in &cell.pieces {
        match piece {
            Piece::Printed(stream, text) => {
                let class = if *stream == Stream::Stdout { "out" } else { "err" };
                let _infallible = writeln!(page, "<pre class=\"{class}\">{}</pre>", escape::html(text));
            }
            // The first form of a value is its best, unless that is one the page cannot hold.
            Piece::Shown { value, mime, resource } => {
                if last_value != Some(*value) && push_shown(page, mime, load(resource)) {
                    last_value = Some(*value);
                }
            }
        }
    }
    if cell.bytes_missing > 0 {
        let _infallible =
            writeln!(page, "<p class=\"cut\">{} bytes of output are not in this file.</p>", cell.bytes_missing);
    }
    if let Some(result) = &cell.result {
        let _infallible = writeln!(page, "<pre class=\"result\">Out[{}]: {}</pre>", cell.cell, escape::html(result));
    }
    if let Some(error) = &cell.error {
        let traceback = cell.traceback.as_deref().map(str::trim_end).filter(|text| !text.is_empty());
        let _infallible = writeln!(page, "<pre class=\"err\">{}</pre>", escape::html(traceback.unwrap_or(error)));
    }
    page.push_str("</section>\n");
}

/// Images as they are, plain text as text. Markup of the user's stays outside: it would be a part of this page.
///
/// Returns whether the value can be seen.
fn push_shown(page: &mut String, mime: &str, bytes: Option<Vec<u8>>) -> bool {
    const IMAGES: &[&str] = &["image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml"];
    match bytes {
        Some(bytes) if IMAGES.contains(&mime) => {
            let _infallible =
                writeln!(page, "<img alt=\"\" src=\"data:{mime};base64,{}\">", BASE64_STANDARD.encode(bytes));
            true
        }
        Some(bytes) if matches!(mime, "text/plain" | "text/markdown" | "application/json") => {
            let _infallible =
                writeln!(page, "<pre class=\"out\">{}</pre>", escape::html(&String::from_utf8_lossy(&bytes)));
            true
        }
        _ => {
            let _infallible = writeln!(page, "<p class=\"cut\">[{}]</p>", escape::html(mime));
            false
        }
    }
}

fn coloured(source: &str) -> String {
    let mut html = String::with_capacity(source.len() * 2);
    for token in lexer::tokens(source) {
        let text = escape::html(&source[token.at]);
        let class = match token.kind {
            Kind::Keyword => 'k',
            Kind::Text | Kind::OpenText => 's',
            Kind::Number => 'n',
            Kind::Comment => 'c',
            _ => {
                html.push_str(&text);
                continue;
            }
        };
        let _infallible = write!(html, "<span class=\"{class}\">{text}</span>");
    }
    html
}

#[cfg(test)]
mod tests {
    use super::{super::record::tests::sample, *};

    #[test]
    fn whatever_a_cell_holds_is_text_in_the_page() {
        let mut transcript = sample();
        transcript.name = "<i>".to_owned();
        let Entry::Cell(cell) = &mut transcript.entries[0] else { panic!() };
        "x = '<script>alert(1)</script>'".clone_into(&mut cell.code);
        "<b onload='x'>".clone_into(&mut cell.client);
        cell.pieces.push(Piece::Printed(Stream::Stderr, "</pre><script>".to_owned()));
        let page = html(&transcript, &mut |resource| resource.ends_with("/1").then(|| b"png".to_vec()));
        assert!(!page.contains("<script") && !page.contains("<b ") && !page.contains("<i>"), "{page}");
        assert!(page.contains("<span class=\"s\">&#39;&lt;script&gt;alert(1)&lt;/script&gt;&#39;</span>"), "{page}");
        assert!(page.contains("<img alt=\"\" src=\"data:image/png;base64,cG5n\">"), "{page}");
        assert!(page.contains("ValueError"), "{page}");
    }
}
