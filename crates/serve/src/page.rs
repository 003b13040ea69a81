//! The page at `/`, which chats through this API. Its files are built in, and its policy forbids the browser to load
//! anything else.

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

use super::Server;

/// A path, its type, and what is there.
type File = (&'static str, &'static str, &'static str);

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

const FILES: [File; 17] = [
    ("/", HTML, include_str!("page/index.html")),
    ("/page/page.css", STYLE, include_str!("page/page.css")),
    ("/page/theme.js", SCRIPT, include_str!("page/theme.js")),
    ("/page/answer.mjs", SCRIPT, include_str!("page/answer.mjs")),
    ("/page/app.mjs", SCRIPT, include_str!("page/app.mjs")),
    ("/page/compose.mjs", SCRIPT, include_str!("page/compose.mjs")),
    ("/page/highlight.mjs", SCRIPT, include_str!("page/highlight.mjs")),
    ("/page/inline.mjs", SCRIPT, include_str!("page/inline.mjs")),
    ("/page/list.mjs", SCRIPT, include_str!("page/list.mjs")),
    ("/page/markdown.mjs", SCRIPT, include_str!("page/markdown.mjs")),
    ("/page/server.mjs", SCRIPT, include_str!("page/server.mjs")),
    ("/page/settings.mjs", SCRIPT, include_str!("page/settings.mjs")),
    ("/page/side.mjs", SCRIPT, include_str!("page/side.mjs")),
    ("/page/store.mjs", SCRIPT, include_str!("page/store.mjs")),
    ("/page/tabs.mjs", SCRIPT, include_str!("page/tabs.mjs")),
    ("/page/tree.mjs", SCRIPT, include_str!("page/tree.mjs")),
    ("/page/turns.mjs", SCRIPT, include_str!("page/turns.mjs")),
];

/// What the page may do: use its own files and this API, nothing else. No text becomes HTML or a script, and no other
/// page may frame this one.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

pub(super) fn router() -> Router<Arc<Server>> {
    FILES.into_iter().fold(Router::new(), |router, (path, content_type, text)| {
        let tag = tag(text);
        router.route(path, get(async move |headers: HeaderMap| reply(&headers, content_type, text, &tag)))
    })
}

/// Whether a path is the page, or one of its files.
pub(super) fn is_page(path: &str) -> bool {
    FILES.iter().any(|(known, ..)| *known == path)
}

/// Another text has another tag.
fn tag(text: &str) -> HeaderValue {
    let digest = Sha256::digest(text);
    let hex = digest[..8].iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    HeaderValue::from_str(&format!("\"{hex}\"")).expect("hexadecimal digits in quotes")
}

/// A browser asks every time, and gets the text only if it has another one.
fn reply(headers: &HeaderMap, content_type: &'static str, text: &'static str, tag: &HeaderValue) -> Response {
    let told = [
        (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::ETAG, tag.clone()),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    let known = headers.get(header::IF_NONE_MATCH).and_then(|known| known.to_str().ok()).unwrap_or_default();
    let is_known = known.split(',').any(|known| known.trim().trim_start_matches("W/").as_bytes() == tag.as_bytes());
    if is_known { (StatusCode::NOT_MODIFIED, told).into_response() } else { (told, text).into_response() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// What a file of the page names of the others.
    fn named(text: &str) -> impl Iterator<Item = String> {
        let names = text.split(['"', '\'']).filter_map(|part| part.strip_prefix("page/").or(part.strip_prefix("./")));
        names.map(|name| format!("/page/{name}"))
    }

    #[test]
    fn every_file_of_the_page_is_served_and_every_name_in_them_is_one() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/page");
        let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
        let present: BTreeSet<String> = entries.map(|name| format!("/page/{}", name.to_string_lossy())).collect();
        let served: BTreeSet<String> = FILES.iter().map(|(path, ..)| path.replacen("/page/", "/", 1)).collect();
        let of_folder = present.iter().map(|path| path.replacen("/page/", "/", 1).replace("/index.html", "/"));
        assert_eq!(served, of_folder.collect());
        for (path, _, text) in FILES {
            let unknown: Vec<String> = named(text).filter(|name| !is_page(name)).collect();
            assert!(unknown.is_empty(), "{path} names {unknown:?}");
            assert!(text.lines().count() <= 500, "{path} has {} lines", text.lines().count());
            assert!(!text.contains("innerHTML"), "{path} makes HTML of a text");
        }
        // All scripts are named in the page itself, so that a browser asks for them at once.
        let first: BTreeSet<String> = named(FILES[0].2).collect();
        assert_eq!(first.len(), FILES.len() - 1, "{first:?}");
    }

    #[test]
    fn a_file_that_a_browser_has_is_not_sent_again() {
        let tag = tag("text");
        let status = |known: &str| {
            let headers = HeaderMap::from_iter([(header::IF_NONE_MATCH, known.parse().expect("a header"))]);
            reply(&headers, SCRIPT, "text", &tag).status()
        };
        let tag = tag.to_str().expect("ASCII");
        assert_eq!(status(tag), StatusCode::NOT_MODIFIED);
        assert_eq!(status(&format!("\"other\", W/{tag}")), StatusCode::NOT_MODIFIED);
        assert_eq!(status("\"other\""), StatusCode::OK);
    }
}
