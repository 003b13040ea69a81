//! `gptoss-jit cache`: the cache of compiled kernels, for people.
//!
//! With `--json`, each verb prints one object with `"schema": 1`:
//! - `dir`: `root`
//! - `ls`: `root`, `bytes`, `entries` (a list; each as in `show`)
//! - `show`: `digest`, `dir`, `state` (`object`, `failure`, `damaged`), `size_bytes`, `last_used_unix_s`, `pinned`, and
//!   `meta`, the entry's `meta.toml` (null when damaged); `source` or `log` when asked for
//! - `explain`: `result` (`hit`, `bundle`, whose file is then in `bundle`, `failure`, `damaged`, `miss`), `digest` (of
//!   the entry in question or the nearest one, null when there is none), `label`, `why`, `differences` (`field`,
//!   `line`, `theirs`, `ours`; ours is the key that was asked about)
//! - `verify`: `entries`, `findings` (`path`, `problem`), `repaired`
//! - `prune`, `clear`: `entries`, `bytes`, `kept_pinned`, `kept_in_use`, `left_bytes`
//! - `pin`, `unpin`: `digests`

use std::io::{self, IsTerminal};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::kernels::show::{KernelArgs, RenderedFor};
use super::output::Output;
use super::usage::UsageError;
use kernel::object::bundle::Bundled;
use kernel::object::cache::{
    Cache, CacheError, CacheLimits, Difference, Explanation, Folder, Listed, PruneOptions, Removed, parse_size,
};
use kernel::object::compile::Request;
use kernel::object::store::Store;
use system::units::human_bytes;

/// Look at, check and shrink the cache of compiled kernels
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Print where the cache is: `$GPTOSS_JIT_CACHE`, or the platform's cache folder
    Dir,
    /// List the entries
    Ls {
        /// Sort by size (largest first), last use (latest first) or name
        #[arg(long, value_enum, default_value_t = Sort::Used)]
        sort: Sort,
        /// Only entries with all of these words in label, target, backend, state, dims, types or parameters: `linear/
        /// gfx1100 failure`, `in_features=2880`
        words: Vec<String>,
    },
    /// Show what is known about an entry
    Show {
        /// The first digits of its digest
        entry: String,
        /// Print the rendered source
        #[arg(long, conflicts_with = "log")]
        source: bool,
        /// Print the compiler's output
        #[arg(long)]
        log: bool,
    },
    /// Explain why a kernel is in the cache or not: how its key differs from the nearest entry's
    Explain {
        /// A template, rendered as `kernels show` would; or the first digits of an entry's digest
        #[arg(value_name = "OP/VARIANT|ENTRY")]
        what: String,
        /// For an entry: the first digits of another one to compare it with
        other: Option<String>,
        #[command(flatten)]
        kernel: KernelArgs,
    },
    /// Check every entry: digests, key, owner, permissions; exit with 1 if something is wrong
    Verify {
        /// Move damaged entries aside; they are compiled again when needed
        #[arg(long)]
        repair: bool,
    },
    /// Remove the least recently used entries; pinned ones and ones in use stay
    Prune {
        /// Target size, such as 500MB or 2GiB [default: $GPTOSS_JIT_CACHE_SIZE, or 2GiB]
        #[arg(long, value_name = "SIZE")]
        max: Option<String>,
        /// Also remove entries that were not used for this many days
        #[arg(long, value_name = "DAYS")]
        older: Option<u32>,
    },
    /// Remove every entry; pinned ones and ones in use stay
    Clear {
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
        /// Remove pinned entries too
        #[arg(long)]
        all: bool,
    },
    /// Keep entries from being pruned or cleared
    Pin {
        /// The first digits of their digests
        #[arg(required = true)]
        entries: Vec<String>,
    },
    /// Undo `pin`
    Unpin {
        /// The first digits of their digests
        #[arg(required = true)]
        entries: Vec<String>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Sort {
    Size,
    Used,
    Label,
}

/// Runs `gptoss-jit cache`.
///
/// # Errors
/// A [`CacheError`], a [`UsageError`], or what printing gives.
pub(crate) fn run(args: Args, output: &Output) -> anyhow::Result<()> {
    let root = Cache::default_root()?;
    if let Verb::Dir = args.verb {
        let text = root.display().to_string();
        return Ok(if output.is_json() {
            output.json(&json!({"schema": 1, "root": text}))
        } else {
            output.line(&text)
        }?);
    }
    let folder = Folder::open(&root)?;
    match args.verb {
        Verb::Dir => Ok(()),
        Verb::Ls { sort, words } => ls(&folder, sort, &words, output),
        Verb::Show { entry, source, log } => show(&folder, &entry, source, log, output),
        Verb::Explain { what, other, kernel } if what.contains('/') => {
            explain_kernel(&what, other.as_deref(), &kernel, output)
        }
        Verb::Explain { kernel, .. } if kernel.are_given() => {
            Err(UsageError("these flags say how a template is rendered; name one, such as `linear/dot`".into()).into())
        }
        Verb::Explain { what, other, .. } => explain(&folder, &what, other.as_deref(), output),
        Verb::Verify { repair } => verify(&folder, repair, output),
        Verb::Prune { max, older } => prune(&folder, max.as_deref(), older, output),
        Verb::Clear { yes, all } => clear(&folder, yes, all, output),
        Verb::Pin { entries } => pin(&folder, &entries, true, output),
        Verb::Unpin { entries } => pin(&folder, &entries, false, output),
    }
}

fn ls(folder: &Folder, sort: Sort, words: &[String], output: &Output) -> anyhow::Result<()> {
    let mut entries = folder.list()?;
    entries.retain(|entry| {
        let key = entry.meta.as_ref().map(|meta| &meta.key).ok();
        let (target, backend) = key.map_or(("", ""), |key| (&key.target, &key.backend));
        let told = [label(entry), about(entry), target, backend, state(entry)];
        words.iter().all(|word| told.iter().any(|told| told.contains(word.as_str())))
    });
    match sort {
        Sort::Size => entries.sort_by_key(|entry| std::cmp::Reverse(entry.size_bytes)),
        Sort::Used => entries.sort_by_key(|entry| std::cmp::Reverse(entry.last_used)),
        Sort::Label => entries.sort_by_key(|entry| label(entry).to_owned()),
    }
    let bytes: u64 = entries.iter().map(|entry| entry.size_bytes).sum();
    let root = folder.root().display().to_string();
    if output.is_json() {
        let entries: Vec<Value> = entries.iter().map(entry_json).collect();
        return Ok(output.json(&json!({"schema": 1, "root": root, "bytes": bytes, "entries": entries}))?);
    }
    let header = ["digest", "label", "target", "backend", "size", "compile ms", "last used", "notes", "rendered for"];
    if !entries.is_empty() {
        let rows: Vec<Vec<String>> = entries.iter().map(row).collect();
        output.table(&header, &rows, &["size", "compile ms", "last used"])?;
    }
    let limit = human_bytes(CacheLimits::from_env()?.max_bytes);
    output.note(&format!("{} entries, {} of at most {limit}, in {root}", entries.len(), human_bytes(bytes)));
    Ok(())
}

fn row(entry: &Listed) -> Vec<String> {
    let key = entry.meta.as_ref().map(|meta| &meta.key).ok();
    let notes: Vec<&str> = [(entry.is_pinned, "pinned"), (state(entry) != "object", state(entry))]
        .into_iter()
        .filter_map(|(applies, note)| applies.then_some(note))
        .collect();
    vec![
        short(entry),
        label(entry).into(),
        key.map_or("-".into(), |key| key.target.clone()),
        key.map_or("-".into(), |key| key.backend.clone()),
        human_bytes(entry.size_bytes),
        entry.meta.as_ref().map_or("-".into(), |meta| meta.compile_ms.to_string()),
        ago(entry.last_used),
        notes.join(", "),
        about(entry).into(),
    ]
}

fn show(folder: &Folder, prefix: &str, source: bool, log: bool, output: &Output) -> anyhow::Result<()> {
    let entry = folder.find(prefix)?;
    let file = if source { Some("source") } else { log.then_some("log") };
    let text = file.map(|file| folder.text(&entry.digest, file)).transpose()?;
    if output.is_json() {
        let mut shown = entry_json(&entry);
        shown["schema"] = json!(1);
        if let (Some(file), Some(text)) = (file, text) {
            shown[file] = json!(text);
        }
        return Ok(output.json(&shown)?);
    }
    if let Some(text) = text {
        return Ok(output.text(&text)?);
    }
    Ok(output.text(&described(entry)?)?)
}

fn described(entry: Listed) -> Result<String, CacheError> {
    let state = state(&entry);
    let (digest, dir) = (entry.digest.to_string(), entry.path.display().to_string());
    let meta = entry.meta.map_err(|source| CacheError::Damaged { path: entry.path, source })?;
    let created = ago(meta.created());
    let mut lines = vec![
        ("digest", digest),
        ("folder", dir),
        ("label", meta.label),
        ("rendered for", meta.about),
        ("state", state.into()),
        ("pinned", if entry.is_pinned { "yes" } else { "no" }.into()),
        ("on disk", human_bytes(entry.size_bytes)),
        ("object", meta.object.map_or("none".into(), |object| human_bytes(object.len_bytes))),
        ("compiled in", format!("{} ms", meta.compile_ms)),
        ("created", created),
        ("last used", ago(entry.last_used)),
        ("entry", meta.key.entry),
        ("target", meta.key.target),
        ("backend", meta.key.backend),
        ("compiler", format!("{} ({})", meta.key.compiler, meta.compiler_description)),
        ("source", meta.key.source_sha256.to_string()),
    ];
    lines.extend(meta.key.options.into_iter().map(|option| ("option", option)));
    Ok(lines.into_iter().map(|(name, value)| format!("{name:<12} {value}\n")).collect())
}

fn explain(folder: &Folder, entry: &str, other: Option<&str>, output: &Output) -> anyhow::Result<()> {
    let entry = folder.find(entry)?;
    let other = other.map(|other| folder.find(other)).transpose()?;
    let nearest = folder.compare(&entry.digest, other.as_ref().map(|other| &other.digest))?;
    let explanation = nearest.map_or(Explanation::Empty, |nearest| Explanation::Nearest(Box::new(nearest)));
    print_explanation(&format!("{} {}", short(&entry), label(&entry)), &explanation, output)
}

/// What looking up a template's kernel would give, at one problem and with one set of parameters.
fn explain_kernel(label: &str, other: Option<&str>, args: &KernelArgs, output: &Output) -> anyhow::Result<()> {
    if other.is_some() {
        return Err(
            UsageError("a template is compared with the nearest entry, not with one that is named".into()).into()
        );
    }
    let RenderedFor { kernel, target, .. } = args.render(label)?;
    let store = Store::from_env()?;
    let (request, subject) = (Request::new(&kernel, &target), format!("{label} for {}", target.id()));
    let key = store.key(&request);
    let explanation = key.as_ref().ok().map(|key| store.cache().explain(key));
    let is_hit = matches!(explanation, Some(Explanation::Hit { .. }));
    match (explanation, store.bundles().get(&request).filter(|_| !is_hit)) {
        // What fails here is taken from a bundle that has an object of it.
        (Some(failed @ Explanation::Failed { .. }), Some(bundled)) if bundled.object.is_none() => {
            print_explanation(&subject, &failed, output)
        }
        (_, Some(bundled)) => print_bundled(&subject, &bundled, output),
        (Some(explanation), None) => print_explanation(&subject, &explanation, output),
        (None, None) => Err(key.err().map_or_else(|| anyhow::anyhow!("{subject}: no key"), Into::into)),
    }
}

/// Says which bundle serves a kernel that the cache does not have.
fn print_bundled(subject: &str, bundled: &Bundled<'_>, output: &Output) -> anyhow::Result<()> {
    let (key, path) = (bundled.key, bundled.bundle.path().display());
    let failed = "it did not compile when the bundle was made";
    if output.is_json() {
        let why = bundled.object.is_none().then_some(failed);
        return Ok(output.json(&json!({
            "schema": 1, "result": "bundle", "digest": key, "label": subject, "why": why, "differences": [],
            "bundle": path.to_string(),
        }))?);
    }
    let how = if bundled.object.is_none() { format!("; {failed}") } else { String::new() };
    Ok(output.line(&format!("{subject}: not in the cache, and in the bundle {path} as {key}{how}"))?)
}

/// Prints why a lookup gives what it gives. `subject` is what was looked up.
fn print_explanation(subject: &str, explanation: &Explanation, output: &Output) -> anyhow::Result<()> {
    if output.is_json() {
        return Ok(output.json(&explanation_json(explanation))?);
    }
    let text = match explanation {
        Explanation::Hit { digest, .. } => format!("{subject}: in the cache as {digest}\n"),
        Explanation::Failed { digest, log } => format!("{subject}: fails to compile, remembered as {digest}\n{log}\n"),
        Explanation::Damaged { digest, why } => format!("{subject}: in the cache as {digest}, and not usable: {why}\n"),
        Explanation::Empty => format!("{subject}: there is no other entry to compare with\n"),
        Explanation::Nearest(nearest) => {
            let compiler = &nearest.meta.compiler_description;
            let mut text = format!("{subject}\nnearest: {:.12} {}", nearest.digest.to_string(), nearest.meta.label);
            text += &if compiler.is_empty() { "\n".into() } else { format!(", compiled by {compiler}\n") };
            text.extend(nearest.differences.iter().map(difference_text));
            text
        }
    };
    Ok(output.text(&text)?)
}

fn difference_text(difference: &Difference) -> String {
    let side = |text: &Option<String>| text.as_ref().map_or("(none)".into(), |text| format!("`{text}`"));
    let line = difference.line.map_or(String::new(), |line| format!(", line {line}"));
    format!(
        "  {}{line}\n    there: {}\n    here:  {}\n",
        difference.field,
        side(&difference.theirs),
        side(&difference.ours)
    )
}

fn explanation_json(explanation: &Explanation) -> Value {
    let (result, digest, label, why, differences) = match explanation {
        Explanation::Hit { digest, meta } => ("hit", Some(digest), Some(&meta.label), None, &[][..]),
        Explanation::Failed { digest, log } => ("failure", Some(digest), None, Some(log), &[][..]),
        Explanation::Damaged { digest, why } => ("damaged", Some(digest), None, Some(why), &[][..]),
        Explanation::Nearest(near) => ("miss", Some(&near.digest), Some(&near.meta.label), None, &near.differences[..]),
        Explanation::Empty => ("miss", None, None, None, &[][..]),
    };
    let differences: Vec<Value> = differences
        .iter()
        .map(|d| json!({"field": d.field, "line": d.line, "theirs": d.theirs, "ours": d.ours}))
        .collect();
    json!({"schema": 1, "result": result, "digest": digest, "label": label, "why": why, "differences": differences})
}

fn verify(folder: &Folder, repair: bool, output: &Output) -> anyhow::Result<()> {
    let verified = folder.verify(repair)?;
    if output.is_json() {
        let findings: Vec<Value> =
            verified.findings.iter().map(|f| json!({"path": f.path.to_string_lossy(), "problem": f.problem})).collect();
        let repaired = if repair { findings.len() } else { 0 };
        output.json(&json!({"schema": 1, "entries": verified.entries, "findings": findings, "repaired": repaired}))?;
    } else {
        for finding in &verified.findings {
            output.line(&format!("{}: {}", finding.path.display(), finding.problem))?;
        }
        let count = verified.findings.len();
        let done = if repair && count > 0 { ", moved aside" } else { "" };
        output.note(&format!("{} entries checked, {count} findings{done}", verified.entries));
    }
    if verified.findings.is_empty() || repair {
        return Ok(());
    }
    Err(CacheError::Findings { count: verified.findings.len() }.into())
}

fn prune(folder: &Folder, max: Option<&str>, older_days: Option<u32>, output: &Output) -> anyhow::Result<()> {
    let max_bytes = match max {
        Some(size) => parse_size(size).map_err(|error| UsageError(error.to_string()))?,
        None => CacheLimits::from_env()?.max_bytes,
    };
    let older_than = older_days.map(|days| Duration::from_secs(u64::from(days) * 24 * 3600));
    report_removed(&folder.prune(&PruneOptions { max_bytes, older_than })?, output)
}

fn clear(folder: &Folder, yes: bool, all: bool, output: &Output) -> anyhow::Result<()> {
    if !yes {
        if !io::stdin().is_terminal() || output.is_json() {
            return Err(UsageError("`cache clear` removes every entry; give `--yes` to confirm that".into()).into());
        }
        let entries = folder.list()?;
        let bytes = human_bytes(entries.iter().map(|entry| entry.size_bytes).sum());
        output.warning(&format!("this removes {} entries, {bytes}, of {}", entries.len(), folder.root().display()));
        output.text("remove them? [y/N] ")?;
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            output.note("nothing was removed");
            return Ok(());
        }
    }
    report_removed(&folder.clear(all)?, output)
}

fn report_removed(removed: &Removed, output: &Output) -> anyhow::Result<()> {
    let Removed { entries, bytes, kept_pinned, kept_in_use, left_bytes } = *removed;
    if output.is_json() {
        return Ok(output.json(&json!({
            "schema": 1, "entries": entries, "bytes": bytes, "kept_pinned": kept_pinned, "kept_in_use": kept_in_use,
            "left_bytes": left_bytes,
        }))?);
    }
    let mut text = format!("removed {entries} entries, {}; {} left", human_bytes(bytes), human_bytes(left_bytes));
    for (count, why) in [(kept_pinned, "pinned"), (kept_in_use, "in use")] {
        if count > 0 {
            text += &format!("; kept {count} {why}");
        }
    }
    Ok(output.line(&text)?)
}

fn pin(folder: &Folder, prefixes: &[String], pinned: bool, output: &Output) -> anyhow::Result<()> {
    // All are found before the first is touched: a wrong prefix changes nothing.
    let entries = prefixes.iter().map(|prefix| folder.find(prefix)).collect::<Result<Vec<_>, _>>()?;
    for entry in &entries {
        folder.pin(&entry.digest, pinned)?;
    }
    if output.is_json() {
        let digests: Vec<String> = entries.iter().map(|entry| entry.digest.to_string()).collect();
        return Ok(output.json(&json!({"schema": 1, "digests": digests}))?);
    }
    for entry in &entries {
        output.line(&format!("{} {} {}", if pinned { "pinned" } else { "unpinned" }, short(entry), label(entry)))?;
    }
    Ok(())
}

fn entry_json(entry: &Listed) -> Value {
    json!({
        "digest": entry.digest,
        "dir": entry.path.to_string_lossy(),
        "state": state(entry),
        "size_bytes": entry.size_bytes,
        "last_used_unix_s": entry.last_used.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        "pinned": entry.is_pinned,
        "meta": entry.meta.as_ref().ok(),
    })
}

fn short(entry: &Listed) -> String {
    entry.digest.to_string()[..12].into()
}

fn label(entry: &Listed) -> &str {
    entry.meta.as_ref().map_or("-", |meta| &meta.label)
}

fn about(entry: &Listed) -> &str {
    entry.meta.as_ref().map_or("", |meta| &meta.about)
}

fn state(entry: &Listed) -> &'static str {
    match &entry.meta {
        Err(_) => "damaged",
        Ok(_) if entry.is_failure() => "failure",
        Ok(_) => "object",
    }
}

/// How long ago something was, in its largest whole unit.
fn ago(time: SystemTime) -> String {
    let seconds = time.elapsed().unwrap_or_default().as_secs();
    match seconds {
        0..60 => "just now".into(),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_their_largest_whole_unit() {
        let told = [0, 59, 60, 3599, 3600, 86_399, 86_400, 400 * 86_400]
            .map(|seconds| ago(SystemTime::now() - Duration::from_secs(seconds)));
        let expected =
            ["just now", "just now", "1 min ago", "59 min ago", "1 h ago", "23 h ago", "1 d ago", "400 d ago"];
        assert_eq!(told, expected);
    }
}
