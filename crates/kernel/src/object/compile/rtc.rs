//! What hipRTC and NVRTC have in common: run-time compilers with the same functions, opened with dlopen, only in the
//! worker. They need no GPU.

use std::path::{Path, PathBuf};
use std::{env, fs};

use rtc::{Compiler, ENVIRONMENTS, Image, Rtc};

use super::CompileError;
use super::job::{CompileJob, CompileOutput, Failure, How, Toolchain};

/// Where one of them is: as the options say; else as `variable` says, by `look`; else the worker searches the usual
/// places, for which it gets some environment variables.
pub(super) fn find(
    compiler: &'static Compiler,
    of_options: &Toolchain,
    variable: &str,
    look: impl Fn(&Path) -> Result<Toolchain, CompileError>,
) -> Result<Toolchain, CompileError> {
    if of_options.compiler.is_some() {
        return Ok(of_options.clone());
    }
    if let Some(root) = env::var_os(variable).filter(|root| !root.is_empty()) {
        return look(Path::new(&root));
    }
    let mut toolchain = of_options.clone();
    for name in [compiler.root_variable, "LD_LIBRARY_PATH"] {
        if let Ok(value) = env::var(name) {
            toolchain.environment.insert(name.into(), value);
        }
    }
    for name in ENVIRONMENTS {
        let environment = env::var(name).ok().filter(|path| !path.is_empty());
        // One without its wheels is nothing to a compiler.
        let has_wheels = |path: &String| !compiler.installation.in_environment(Path::new(path)).is_empty();
        if let Some(path) = environment.filter(has_wheels) {
            toolchain.environment.insert(name.into(), path);
        }
    }
    Ok(toolchain)
}

/// Compiles, with either vendor's compiler.
pub(super) fn compile(compiler: &'static Compiler, job: &CompileJob) -> Result<CompileOutput, Failure> {
    let rtc = open(compiler, job.toolchain.compiler.as_deref())?;
    let mut options = job.options.clone();
    let for_target = compiler.target_option;
    if !options.iter().any(|option| option.starts_with(for_target)) {
        options.push(format!("{for_target}{}", job.target)); // the canary's options name no target
    }
    let made = rtc.compile(&job.source, job.toolchain.source_name(), &options).map_err(refusal)?;
    let log = made.log;
    // hipRTC 6.4 reports success for an option that it does not know: only the log tells.
    if log.lines().any(|line| line.starts_with("error: ")) {
        return Err(Failure { how: How::Rejected, log });
    }
    gpu::elf::check_whole(&made.object)
        .map_err(|error| Failure { how: How::BadObject { what: error.to_string() }, log: log.clone() })?;
    let images = rtc::images();
    let files = images.iter().map(|image| image.path.clone()).collect();
    Ok(CompileOutput { object: made.object, log, facts: facts(&images), files })
}

/// Opens the library that was named, or the first in the usual places.
pub(super) fn open(compiler: &'static Compiler, library: Option<&Path>) -> Result<Rtc, Failure> {
    let unavailable = |log| Failure { how: How::Unavailable, log };
    if let Some(library) = library {
        return Rtc::open(compiler, &[library.to_owned()]).map_err(|error| unavailable(error.to_string()));
    }
    let root = env::var_os(compiler.root_variable).map(PathBuf::from);
    Rtc::open(compiler, &compiler.candidates(None, root.as_deref())).map_err(|error| {
        let folders = compiler.searched(None, root.as_deref());
        let folders: Vec<String> = folders.iter().map(|folder| format!("`{}`", folder.display())).collect();
        unavailable(format!("{error}\nand found no such file in {}", folders.join(", ")))
    })
}

/// Whether it is the source that is refused, the log says: the parent looks.
fn refusal(error: rtc::CompileError) -> Failure {
    let log = match error {
        rtc::CompileError::Rejected { log, .. } if !log.trim().is_empty() => log,
        other => other.to_string(),
    };
    Failure { how: How::Rejected, log }
}

/// The mapped libraries by file name and build id. Not their paths: the same compiler in another place is the same
/// compiler.
fn facts(images: &[Image]) -> Vec<String> {
    let fact = |image: &Image| {
        let name = image.path.file_name().unwrap_or_default().to_string_lossy();
        match &image.build_id {
            Some(build_id) => format!("{name} {build_id}"),
            // Rare, and the canary tells such libraries apart; the length is a help.
            None => format!("{name} of {} bytes", fs::metadata(&image.path).map_or(0, |file| file.len())),
        }
    };
    let mut facts: Vec<String> = images.iter().map(fact).collect();
    facts.sort();
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_compiler_in_another_place_has_the_same_facts() {
        let image =
            |folder: &str| Image { path: Path::new(folder).join("libhiprtc.so.6"), build_id: Some("ab".into()) };
        assert_eq!(facts(&[image("/a")]), facts(&[image("/b")]));
        assert_ne!(facts(&[image("/a")]), facts(&[Image { build_id: Some("cd".into()), ..image("/a") }]));
    }

    #[test]
    fn what_a_variable_names_is_where_it_is_looked_for() {
        let look = |path: &Path| Ok(Toolchain::new("nvrtc", Some(path.to_owned())));
        let found = |of_options, variable| find(&nvrtc_sys::NVRTC, of_options, variable, look).expect("found").compiler;
        let nothing = Toolchain::new("nvrtc", None);
        assert_eq!(found(&nothing, "PATH"), env::var_os("PATH").map(Into::into));
        assert_eq!(found(&nothing, "A_VARIABLE_THAT_IS_NOT_SET"), None);
        let named = Toolchain::new("nvrtc", Some("/x".into()));
        assert_eq!(found(&named, "PATH"), Some("/x".into()), "what is asked for goes before");
    }
}
