//! Writes cases for other programs to files: a GPU's object with its inputs and expected outputs. Any emulator or
//! machine that can launch an object can be compared with [`reference`] in this way.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::Serialize;

use super::trial::{self, Scalars, Trial, whole};
use super::{Checker, Selection, Wrong};
use kernel::object::compile::Request;
use kernel::template::contract::Access;
use kernel::template::launch::ArgSpec;
use kernel::template::render::{Rendered, render};
use kernel::template::{Precision, Template};
use reference::{Outputs, Tensor, Tensors};

/// Rows of a case for a kernel that multiplies on a matrix unit: a tile of 16 x 16 is full.
const MATRIX_ROWS: f64 = 16.0;

/// Rows of a case for the other kernels, where a test has them.
const ROWS: f64 = 2.0;

/// What every kernel calls that multiplies on a matrix unit (`lib/hip/matrix`).
const MATRIX_CALL: &str = "matrix_multiply(";

/// Why a case is not written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// There is no kernel, or nothing to compare it with.
    #[error("{label} {precision}: {wrong}")]
    Wrong {
        /// `linear/gemv`.
        label: String,
        precision: Precision,
        wrong: Box<Wrong>,
    },
    /// The system refuses a file.
    #[error("could not write `{}`: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// The file `case.json`. Every file that it names lies beside it; numbers in files are little-endian.
#[derive(Serialize)]
struct Case<'a> {
    schema: u32,
    op: String,
    variant: &'a str,
    precision: &'static str,
    arch: &'a str,
    dtypes: BTreeMap<&'a str, &'static str>,
    shape: String,
    /// The kernel's name in the file `object`.
    kernel: &'a str,
    grid: [u32; 3],
    block_size: u32,
    /// The kernel's arguments, in order, workspace last.
    args: Vec<ArgFile>,
    /// `|got - want| <= atol + rtol * scale`, and for what is stored narrower than f32 its rounding on top.
    rtol: f64,
    atol: f64,
}

#[derive(Serialize)]
struct ArgFile {
    name: String,
    dtype: &'static str,
    /// `scalar`, `read`, `write`, `read_write`, `workspace`, `zeroed` (workspace that is zero before and after).
    access: &'static str,
    shape: Vec<u64>,
    len_bytes: usize,
    value: Option<f64>,
    /// What it holds before the launch; null where that is nothing.
    file: Option<String>,
    /// What an output holds after it: f64.
    want: Option<String>,
    /// What `rtol` is relative to, for every element: f64, infinite where the contract leaves the element open.
    scale: Option<String>,
}

impl Checker<'_> {
    /// Writes a folder below `dir` for each selected template, precision and choice of element types: the smallest test
    /// that is honest (more than one row, for a matrix unit rows for a full tile; even sizes, as models have them), at
    /// default parameters. Gives their number.
    ///
    /// # Errors
    /// If a kernel is not right as far as that is known without running it, or the system refuses a file.
    pub fn export(&self, selection: &Selection, dir: &Path) -> Result<usize, ExportError> {
        let mut n_cases = 0;
        for template in self.selected(selection) {
            for precision in template.precisions() {
                let wrong = |wrong| {
                    let label = format!("{}/{}", template.ops.join("+"), template.variant);
                    ExportError::Wrong { label, precision, wrong: Box::new(wrong) }
                };
                for (trial, kernel, scalars) in self.smallest(template, precision, selection).map_err(wrong)? {
                    let object = self.store.get_all(&[Request::new(&kernel, self.target)], &()).remove(0);
                    let object = object.map_err(|error| wrong(Wrong::compile(error)))?.object;
                    self.examine(&kernel, &object).map_err(wrong)?;
                    let prepared = trial.prepare(&scalars).map_err(|error| wrong(error.into()))?;
                    let (case, mut files) = self.case(template, &trial, &kernel, &scalars, prepared).map_err(wrong)?;
                    files.insert("object".into(), object.to_vec());
                    files.insert("source.hip".into(), kernel.source.clone().into_bytes());
                    files.insert("case.json".into(), json(&case));
                    write(&dir.join(folder(&case)), &files)?;
                    n_cases += 1;
                }
            }
        }
        Ok(n_cases)
    }

    /// For each choice of element types, of a thin selection as far as that has them, the case with the fewest
    /// multiply-adds.
    fn smallest(
        &self,
        template: &Template,
        precision: Precision,
        selection: &Selection,
    ) -> Result<Vec<(Trial, Rendered, Scalars)>, Wrong> {
        let mut of_dtypes: BTreeMap<Vec<&'static str>, (f64, Trial, Rendered, Scalars)> = BTreeMap::new();
        let Selection { is_thin, common_types, .. } = *selection;
        let which = Selection { is_thin, common_types, ..Selection::default() };
        for trial in trial::trials(template, precision, self.target, &which) {
            let kernel = render(self.library, template, &trial.problem, &trial.params, self.target)?;
            let rows = if kernel.source.contains(MATRIX_CALL) { MATRIX_ROWS } else { ROWS };
            for scalars in &trial.scalars {
                let size = size(&trial, scalars, rows);
                let dtypes = trial.problem.dtypes.values().map(|dtype| dtype.name()).collect();
                if of_dtypes.get(&dtypes).is_none_or(|best| size < best.0) {
                    of_dtypes.insert(dtypes, (size, trial.clone(), kernel.clone(), scalars.clone()));
                }
            }
        }
        Ok(of_dtypes.into_values().map(|(_, trial, kernel, scalars)| (trial, kernel, scalars)).collect())
    }

    fn case<'a>(
        &'a self,
        template: &'a Template,
        trial: &'a Trial,
        kernel: &'a Rendered,
        scalars: &Scalars,
        (inputs, want): (Tensors, Outputs),
    ) -> Result<(Case<'a>, BTreeMap<String, Vec<u8>>), Wrong> {
        let mut files = BTreeMap::new();
        let mut args = Vec::new();
        for arg in kernel.all_args() {
            args.push(argument(arg, scalars, &inputs, &want, &mut files)?);
        }
        for arg in args.iter_mut().skip(kernel.args.len()) {
            arg.access = if arg.access == "zeroed" { "zeroed" } else { "workspace" };
        }
        let case = Case {
            schema: 1,
            op: template.ops.join("+"),
            variant: &template.variant,
            precision: trial.problem.precision.name(),
            arch: &self.target.arch,
            dtypes: trial.problem.dtypes.iter().map(|(name, dtype)| (name.as_str(), dtype.name())).collect(),
            shape: format!("{}, {}", trial::list(&trial.problem.dims), trial::list(scalars)),
            kernel: &kernel.entry,
            grid: kernel.launch.grid(&whole(scalars))?,
            block_size: kernel.launch.block_size(),
            args,
            rtol: kernel.tolerance.rtol,
            atol: kernel.tolerance.atol,
        };
        Ok((case, files))
    }
}

/// What grows with the multiply-adds of a case; those that are less honest come after all others.
fn size(trial: &Trial, scalars: &Scalars, rows: f64) -> f64 {
    let dims = trial.problem.dims.values();
    let size = dims.clone().map(|&dim| f64::from(dim.max(1))).product::<f64>();
    let size = size * scalars.values().map(|value| value.max(1.0)).product::<f64>();
    let too_few = scalars.get("n_tokens").is_some_and(|&n_tokens| n_tokens < rows);
    let is_odd = dims.clone().any(|dim| dim % 2 == 1 && *dim > 1); // no model's: its loads would be of single elements
    size * if too_few { 1e40 } else { 1.0 } * if is_odd { 1e20 } else { 1.0 }
}

/// An argument, and its files.
fn argument(
    arg: &ArgSpec,
    scalars: &Scalars,
    inputs: &Tensors,
    want: &Outputs,
    files: &mut BTreeMap<String, Vec<u8>>,
) -> Result<ArgFile, Wrong> {
    let scalars_whole = whole(scalars);
    let mut add = |suffix: &str, bytes: Vec<u8>| {
        let name = format!("{}.{suffix}", arg.name);
        files.insert(name.clone(), bytes);
        name
    };
    let is_written = !arg.is_scalar() && arg.access != Access::Read;
    let output = want.get(&arg.name).filter(|_| is_written);
    let before = inputs.get(&arg.name).filter(|_| !arg.is_scalar() && arg.access != Access::Write);
    Ok(ArgFile {
        name: arg.name.clone(),
        dtype: arg.dtype.name(),
        access: match arg.access {
            _ if arg.is_scalar() => "scalar",
            _ if arg.is_zeroed => "zeroed",
            access => access.name(),
        },
        shape: arg.shape(&scalars_whole)?,
        len_bytes: arg.len_bytes(&scalars_whole)?,
        value: scalars.get(&arg.name).copied().filter(|_| arg.is_scalar()),
        file: before.map(Tensor::to_bytes).map(|bytes| add("before", bytes)),
        want: output.map(|output| add("want", f64s(&output.values))),
        scale: output.map(|output| add("scale", f64s(&output.scale))),
    })
}

fn f64s(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// `gfx1100/linear.gemv.f32.weight=bf16`.
fn folder(case: &Case<'_>) -> PathBuf {
    let mut name = format!("{}.{}.{}", case.op, case.variant, case.precision);
    for (dtype, is) in &case.dtypes {
        name += &format!(".{dtype}={is}");
    }
    Path::new(case.arch).join(name)
}

fn json(case: &Case<'_>) -> Vec<u8> {
    serde_json::to_vec_pretty(case).expect("names, numbers and lists have a JSON form")
}

fn write(folder: &Path, files: &BTreeMap<String, Vec<u8>>) -> Result<(), ExportError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| ExportError::Io { path, error }
    };
    fs::create_dir_all(folder).map_err(failed(folder))?;
    for (name, bytes) in files {
        let path = folder.join(name);
        fs::write(&path, bytes).map_err(failed(&path))?;
    }
    Ok(())
}
