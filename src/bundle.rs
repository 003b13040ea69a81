//! `gptoss-jit bundle`: kernels compiled ahead, in one file.
//!
//! With `--json`, one object with `"schema": 1`: of a new bundle `file`, `bytes`, `kernels`, `failures` (those that did
//! not compile), `object_bytes`, `seconds`, `targets` (a list of names); of `ls` `bundles`, a list of `file`, `bytes`,
//! `kernels`, `targets`, `models`, `precisions`, `version`, and `refused`, a list of `file` and `why`; of `verify`
//! `file`, `kernels`, `findings` (`place`, `problem`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{fs, io};

use anyhow::Context;
use clap::{Subcommand, ValueEnum};
use format::Dtype;
use serde_json::{Value, json};

use super::args::source::{SourceArgs, named_target};
use super::compile_progress::CompileProgress;
use super::output::Output;
use super::output_file::OutputFile;
use super::usage::UsageError;
use crate::args::{KvDtype, built_in_model};
use engine::blueprint::precision_for;
use engine::everything::add_all;
use kernel::ahead::{Purpose, TargetKernels, bundle_of};
use kernel::choice::Chooser;
use kernel::object::bundle::manifest::digest_of_files;
use kernel::object::bundle::{Bundle, BundleFinding, Bundles, files_at};
use kernel::object::key::Digest;
use kernel::object::store::{Store, never_compiles};
use kernel::target::Target;
use kernel::template::Precision;
use kernel::tuning::TuningTables;
use model::checkpoint::Checkpoint;
use model::checkpoint::encoding::Encoding;
use model::checkpoint::kept::StoredWeights;
use model::checkpoint::layout::Layout;
use model::config::NamedShape;
use model::hub;
use system::units::{counted, human_bytes};

/// Compile the kernels of models ahead, into one file for machines without a compiler; no GPU needed
///
/// A bundle has every kernel that these models can use on these targets, for any number of sequences and tokens. Two
/// runs with the same compilers give the same bytes. Bundles are found through `GPTOSS_JIT_BUNDLES`, in `bundles`
/// beside the program, and in `gptoss-jit/bundles` of the share folders.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,

    #[command(flatten)]
    make: MakeArgs,
}

#[derive(Subcommand)]
enum Verb {
    /// List the bundles that are used here, those that are not, and why
    Ls {
        /// Look at these files and folders instead
        paths: Vec<PathBuf>,
    },
    /// Check everything in bundles: digests, keys, the index; exit with 1 if something is wrong
    Verify {
        /// Files and folders [default: the bundles that are used here]
        paths: Vec<PathBuf>,
    },
}

#[derive(clap::Args)]
struct MakeArgs {
    /// Targets: GPUs (`gfx1100`, `sm_90`) and levels of processors (`x86-64-v3`, `x86-64-v4+amx_bf16+avx512bf16`)
    #[arg(long, value_name = "ARCH,…", value_delimiter = ',', required = true)]
    arch: Vec<String>,

    /// Models: `tiny` (built in), published models by their `--shape` names, `all` of these, or checkpoints
    #[arg(long, value_name = "MODEL,…", value_delimiter = ',', required = true)]
    model: Vec<String>,

    /// Precision of activations and sums [default: as `run` for each model]
    #[arg(long, value_name = "P,…", value_delimiter = ',')]
    precision: Vec<Precision>,

    /// Types of keys and values [default: as the precision]
    #[arg(long, value_name = "TYPE,…", value_delimiter = ',')]
    kv_dtype: Vec<KvDtype>,

    #[command(flatten)]
    source: SourceArgs,

    /// The bundle, such as kernels.tar.zst
    #[arg(short, long, value_name = "FILE", required = true)]
    output: Option<PathBuf>,
}

/// Something is wrong with a bundle.
#[derive(Debug, thiserror::Error)]
#[error("found {count} {} in `{}`", if *.count == 1 { "problem" } else { "problems" }, file.display())]
struct Findings {
    count: usize,
    file: PathBuf,
}

/// Runs `gptoss-jit bundle`.
///
/// # Errors
/// If a kernel cannot be had, a bundle not be written, or one that is checked is damaged.
pub(crate) fn run(args: Args, output: &Output) -> anyhow::Result<()> {
    match args.verb {
        None => args.make.make(output),
        Some(Verb::Ls { paths }) => ls(&paths, output),
        Some(Verb::Verify { paths }) => verify(&paths, output),
    }
}

impl MakeArgs {
    fn make(self, output: &Output) -> anyhow::Result<()> {
        let start = Instant::now();
        if never_compiles() {
            return Err(UsageError("`bundle` compiles: it does not go with `--no-compile`".into()).into());
        }
        let path = self.output.as_deref().expect("clap asks for it");
        let file = OutputFile::create(path, "a bundle")?;
        file.remove_with_the_program()?;
        let models = self.models()?;
        // Whoever made other bundles, these kernels are to be those of one compiler.
        let store = Store::from_env()?.without_bundles();
        let mut choosers = Vec::new();
        for arch in &self.arch {
            let tables = self.source.tables()?;
            let target = target(arch, &tables)?;
            if target.is_simulated {
                return Err(UsageError(format!("--arch {arch}: the simulator's objects are in no bundle")).into());
            }
            choosers.push(Chooser::new(self.source.library()?, tables, target)?);
        }
        // What is missing is to be known before the first hour is over.
        choosers.iter().try_for_each(|chooser| store.try_compiler(chooser.target()))?;
        let mut all = Vec::new();
        for chooser in &choosers {
            let begin = Instant::now();
            let mut kernels = TargetKernels::new(chooser, &store)?;
            for (name, checkpoint) in &models {
                let before = kernels.len();
                self.add(&mut kernels, checkpoint, chooser, &store, output).with_context(|| name.clone())?;
                let (target, new) = (kernels.target(), kernels.len() - before);
                output.note(&format!("{target}, {name}: {new} new kernels, {:.0} s", begin.elapsed().as_secs_f64()));
            }
            all.push(kernels);
        }
        let mut precisions = BTreeSet::new();
        for (_, checkpoint) in &models {
            let taken =
                self.precisions().into_iter().map(|asked| precision_for(checkpoint, asked, StoredWeights::None).0);
            precisions.extend(taken.map(|precision| precision.name().to_owned()));
        }
        let purpose = Purpose {
            models: models.into_iter().map(|(name, _)| name).collect(),
            precisions: precisions.into_iter().collect(),
            version: env!("CARGO_PKG_VERSION").into(),
            tuning_sha256: self.tuning_sha256()?,
        };
        let bytes = bundle_of(&all, &choosers[0], purpose)?;
        file.fill(|file| io::Write::write_all(file, &bytes))?;
        told(path, &all, bytes.len() as u64, start, output)
    }

    fn add(
        &self,
        kernels: &mut TargetKernels,
        checkpoint: &Checkpoint,
        chooser: &Chooser,
        store: &Store,
        output: &Output,
    ) -> anyhow::Result<()> {
        for precision in self.precisions() {
            let (precision, checkpoint) = precision_for(checkpoint, precision, StoredWeights::default());
            let kv_dtypes: Vec<Dtype> = match self.kv_dtype.as_slice() {
                [] => vec![precision.activation()],
                asked => asked.iter().map(|asked| asked.dtype()).collect(),
            };
            for kv_dtype in kv_dtypes {
                let progress = CompileProgress::new(output);
                add_all(kernels, &checkpoint, (precision, kv_dtype), chooser, store, &progress)?;
            }
        }
        Ok(())
    }

    /// Those that were asked for, or what `run` takes.
    fn precisions(&self) -> Vec<Option<Precision>> {
        match self.precision.as_slice() {
            [] => vec![None],
            asked => asked.iter().copied().map(Some).collect(),
        }
    }

    /// By the names that they were given.
    fn models(&self) -> anyhow::Result<Vec<(String, Checkpoint)>> {
        let of_shape = |shape: &NamedShape| -> anyhow::Result<(String, Checkpoint)> {
            Ok((shape.name().to_owned(), Checkpoint::random(shape.config(None), Encoding::default(), 0)?))
        };
        let tiny = || -> anyhow::Result<(String, Checkpoint)> { Ok(("tiny".into(), built_in_model()?)) };
        let mut models = Vec::new();
        for name in &self.model {
            let shape = NamedShape::value_variants().iter().find(|shape| shape.name() == name);
            match (name.as_str(), shape) {
                ("tiny", _) => models.push(tiny()?),
                ("all", _) => {
                    models.push(tiny()?);
                    models.extend(NamedShape::value_variants().iter().map(of_shape).collect::<Result<Vec<_>, _>>()?);
                }
                (_, Some(shape)) => models.push(of_shape(shape)?),
                (_, None) => models.push((name.clone(), file_of(name)?)),
            }
        }
        Ok(models)
    }

    /// The digest of all tables: the built-in ones, and those of folders by their places in the search.
    fn tuning_sha256(&self) -> anyhow::Result<Digest> {
        let built_in = data::TUNING.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        let mut files: Vec<(String, String)> = built_in.collect();
        for (i, folder) in TuningTables::default_search(self.source.tuning.as_deref()).iter().enumerate() {
            for entry in fs::read_dir(folder).with_context(|| format!("could not read `{}`", folder.display()))? {
                let path = entry?.path();
                if path.extension().is_some_and(|extension| extension == "toml") {
                    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    let text =
                        fs::read_to_string(&path).with_context(|| format!("could not read `{}`", path.display()))?;
                    files.push((format!("{i}/{name}"), text));
                }
            }
        }
        Ok(digest_of_files(files.iter().map(|(name, text)| (name.as_str(), text.as_str()))))
    }
}

/// A target as it is named: a level of this machine's processor is that level, without what the machine has beyond it.
fn target(arch: &str, tables: &TuningTables) -> anyhow::Result<Target> {
    let mut target = named_target(arch, tables)?;
    if !target.is_gpu() && arch != "host" {
        let id = target.id();
        let more: Vec<&str> =
            id.split('+').skip(1).filter(|name| !arch.split('+').any(|named| named == *name)).collect();
        target.features.retain(|feature| !more.contains(&feature.as_str()));
    }
    Ok(target)
}

/// A checkpoint that is no published name.
fn file_of(name: &str) -> anyhow::Result<Checkpoint> {
    let opened = hub::locate(Path::new(name)).map_err(anyhow::Error::from);
    let opened = opened.and_then(|path| Ok(Checkpoint::open(&path, Layout::Auto)?));
    opened
        .with_context(|| format!("`{name}` is no published model, which `gptoss-jit models` lists, and no checkpoint"))
}

fn told(path: &Path, all: &[TargetKernels], bytes: u64, start: Instant, output: &Output) -> anyhow::Result<()> {
    let figures = || all.iter().map(TargetKernels::figures);
    let (failures, object_bytes) = (figures().map(|(n, _)| n).sum::<usize>(), figures().map(|(_, n)| n).sum::<u64>());
    let (kernels, seconds) = (all.iter().map(TargetKernels::len).sum::<usize>(), start.elapsed().as_secs_f64());
    if output.is_json() {
        let targets: Vec<&str> = all.iter().map(TargetKernels::target).collect();
        return Ok(output.json(&json!({
            "schema": 1, "file": path.display().to_string(), "bytes": bytes, "kernels": kernels, "failures": failures,
            "object_bytes": object_bytes, "seconds": seconds, "targets": targets,
        }))?);
    }
    let failed = if failures > 0 { format!(" ({failures} did not compile)") } else { String::new() };
    let [objects, file] = [object_bytes, bytes].map(human_bytes);
    Ok(output
        .line(&format!("{}: {kernels} kernels{failed}, {objects}, packed {file}, in {seconds:.1} s", path.display()))?)
}

fn ls(paths: &[PathBuf], output: &Output) -> anyhow::Result<()> {
    let named = opened(paths);
    let bundles = named.as_ref().unwrap_or_else(|| Bundles::here());
    let mut listed = Vec::new();
    for bundle in bundles.all() {
        match bundle.manifest() {
            Ok(manifest) => listed.push((bundle, manifest)),
            Err(error) => {
                output.warning(&format!("could not read `{}`: {}", bundle.path().display(), hint::chain(&error)));
            }
        }
    }
    if output.is_json() {
        let listed = listed.iter().map(|(bundle, manifest)| {
            json!({
                "file": bundle.path().display().to_string(), "bytes": bundle.len_bytes(), "kernels": bundle.n_kernels(),
                "targets": bundle.targets().collect::<Vec<_>>(), "models": manifest.models,
                "precisions": manifest.precisions, "version": manifest.version,
            })
        });
        let refused = bundles
            .refused()
            .iter()
            .map(|(path, error)| json!({ "file": path.display().to_string(), "why": hint::chain(error) }));
        let (listed, refused): (Vec<Value>, Vec<Value>) = (listed.collect(), refused.collect());
        return Ok(output.json(&json!({ "schema": 1, "bundles": listed, "refused": refused }))?);
    }
    let rows: Vec<Vec<String>> = listed
        .iter()
        .map(|(bundle, manifest)| {
            let targets: Vec<&str> = bundle.targets().collect();
            vec![
                bundle.path().display().to_string(),
                targets.join(", "),
                manifest.models.join(", "),
                bundle.n_kernels().to_string(),
                human_bytes(bundle.len_bytes()),
            ]
        })
        .collect();
    if !rows.is_empty() {
        output.table(&["bundle", "targets", "models", "kernels", "size"], &rows, &["kernels", "size"])?;
    }
    if named.is_some() {
        for (path, error) in bundles.refused() {
            output.warning(&format!("not used: `{}`: {}", path.display(), hint::chain(error)));
        }
    }
    output.note(&counted(rows.len(), "bundle"));
    Ok(())
}

/// Those that are named, if any are.
fn opened(paths: &[PathBuf]) -> Option<Bundles> {
    let files = |path: &PathBuf| if path.is_dir() { files_at(path) } else { vec![path.clone()] };
    (!paths.is_empty()).then(|| Bundles::open(&paths.iter().flat_map(files).collect::<Vec<_>>()))
}

fn verify(paths: &[PathBuf], output: &Output) -> anyhow::Result<()> {
    let named = opened(paths);
    let bundles = named.as_ref().unwrap_or_else(|| Bundles::here());
    let tell = |file: &Path, kernels: Option<usize>, findings: &[BundleFinding]| {
        let findings: Vec<Value> =
            findings.iter().map(|one| json!({ "place": one.place, "problem": one.problem })).collect();
        let file = file.display().to_string();
        output.json(&json!({ "schema": 1, "file": file, "kernels": kernels, "findings": findings }))
    };
    let mut first_bad = None;
    for (i, (path, error)) in bundles.refused().iter().enumerate() {
        let problem = hint::chain(error);
        if output.is_json() {
            tell(path, None, &[BundleFinding { place: "file".into(), problem }])?;
        } else if i > 0 {
            output.line(&format!("{}: {problem}", path.display()))?;
        }
    }
    for bundle in bundles.all() {
        let file = bundle.path();
        let findings = bundle.verify();
        if output.is_json() {
            tell(file, Some(bundle.n_kernels()), &findings)?;
        } else {
            for finding in &findings {
                output.line(&format!("{}: {}", finding.place, finding.problem))?;
            }
            output.note(&format!("{}: {} kernels, {} findings", file.display(), bundle.n_kernels(), findings.len()));
        }
        if !findings.is_empty() && first_bad.is_none() {
            first_bad = Some(Findings { count: findings.len(), file: file.to_owned() });
        }
    }
    // Why the first of those cannot be used says more than that there are findings.
    if let Some((path, error)) = bundles.refused().first() {
        let error = Bundle::open(path).err().map_or_else(|| anyhow::anyhow!("{}", hint::chain(error)), Into::into);
        return Err(error.context(format!("could not use the bundle `{}`", path.display())));
    }
    first_bad.map_or(Ok(()), |bad| Err(bad.into()))
}
