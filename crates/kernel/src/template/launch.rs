//! How a rendered kernel is called: its arguments, and its geometry for the scalars of a launch.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpu::{ArgumentKind, ArgumentSpec};

use super::Problem;
use super::contract::{Access, Arg};
use super::signature::Signature;
use super::work::{Elements, Padded, PaddedSpec};
use expression::{Expression, ExpressionError, Reason, Scope};
use format::Dtype;

/// What one argument, or the private memory of a thread, can have at most, in bytes: more than any machine, and so few
/// that sums of it fit 64 bits.
pub(crate) const MAX_LEN_BYTES: u64 = 1 << 48;

/// Blocks that a launch can have at most.
const MAX_BLOCKS: u64 = u32::MAX as u64;

/// An argument of a rendered kernel.
#[derive(Clone, Debug)]
pub struct ArgSpec {
    pub name: String,
    /// The type of its elements, or of the scalar.
    pub dtype: Dtype,
    /// How the kernel accesses it.
    pub access: Access,
    /// The argument that may be the same memory.
    pub may_alias: Option<String>,
    /// Workspace only: its memory is zero before every launch, and the kernel leaves it zero.
    pub is_zeroed: bool,
    /// Whether nothing writes it while a model runs.
    pub(crate) is_weights: bool,
    /// The argument whose blocks it holds a parameter of.
    pub(crate) part_of: Option<String>,
    /// Elements per axis, row-major, outermost first; `None` for a scalar.
    axes: Option<Vec<Expression>>,
    scope: Arc<Scope>,
}

impl ArgSpec {
    pub(super) fn new(arg: &Arg, dtype: Dtype, scope: &Arc<Scope>) -> Self {
        Self {
            name: arg.name.clone(),
            dtype,
            access: arg.access,
            may_alias: arg.may_alias.clone(),
            is_zeroed: arg.is_zeroed,
            is_weights: arg.is_weights,
            part_of: arg.part_of.clone(),
            axes: arg.shape.clone(),
            scope: Arc::clone(scope),
        }
    }

    /// A contract's argument for a problem, without a template.
    ///
    /// # Panics
    /// If the problem lacks the argument's dtype: problems are checked against their contracts when they are rendered.
    pub fn of(arg: &Arg, problem: &Problem) -> Self {
        let dtype = arg.dtype.resolve(problem).expect("the problem gives every dtype of its contract");
        Self::new(arg, dtype, &Arc::new(Scope::new(Signature::scope(problem))))
    }

    /// Length in bytes for these scalars.
    ///
    /// # Errors
    /// As [`Self::len_elements`], and above [`MAX_LEN_BYTES`].
    pub fn len_bytes(&self, scalars: &BTreeMap<String, u64>) -> Result<usize, ExpressionError> {
        let elements = self.len_elements(scalars)?;
        let limit = MAX_LEN_BYTES * 8 / self.dtype.size_bits() as u64;
        match (&self.axes, elements > limit) {
            (Some(axes), true) => {
                let shape: Vec<String> = self.shape(scalars)?.iter().map(u64::to_string).collect();
                let what = format!("`{}`: {} elements of {}", self.name, shape.join(" x "), self.dtype);
                Err(axes[0].error(Reason::TooMany { what, limit }))
            }
            _ => Ok(self.dtype.len_bytes(elements as usize)),
        }
    }

    /// Whether it is passed by value.
    pub fn is_scalar(&self) -> bool {
        self.axes.is_none()
    }

    /// Elements per axis for these scalars, outermost first; empty for a scalar argument.
    ///
    /// # Errors
    /// If a scalar is missing or an expression gives no whole number.
    pub fn shape(&self, scalars: &BTreeMap<String, u64>) -> Result<Vec<u64>, ExpressionError> {
        let scope = Arc::new(self.scope.with_scalars(scalars));
        self.axes.iter().flatten().map(|axis| axis.whole(&scope)).collect()
    }

    /// Elements in all; 1 for a scalar argument.
    ///
    /// # Errors
    /// As [`Self::shape`], and if the product does not fit 64 bits.
    pub fn len_elements(&self, scalars: &BTreeMap<String, u64>) -> Result<u64, ExpressionError> {
        let shape = self.shape(scalars)?;
        product(&shape).ok_or_else(|| {
            let shape: Vec<String> = shape.iter().map(u64::to_string).collect();
            let what = format!("`{}`: {} elements", self.name, shape.join(" x "));
            let first = &self.axes.as_ref().expect("a scalar's product is 1")[0];
            first.error(Reason::TooMany { what, limit: u64::MAX })
        })
    }

    /// The shape with what is known as literals: `(n_tokens, 2880)`; empty for a scalar.
    pub fn shape_text(&self) -> String {
        let text = |axis: &Expression| match axis.whole(&self.scope) {
            Ok(length) => length.to_string(),
            Err(_) => axis.with_literals(&self.scope),
        };
        let axes = self.axes.iter().flatten().map(text);
        if self.is_scalar() { String::new() } else { format!("({})", axes.collect::<Vec<_>>().join(", ")) }
    }

    /// Its description for a driver.
    pub fn argument(&self) -> ArgumentSpec {
        let kind = match (self.is_scalar(), self.dtype, self.access) {
            (false, _, Access::Read) => ArgumentKind::Read,
            (false, _, Access::Write | Access::ReadWrite) => ArgumentKind::Write,
            (true, Dtype::F32, _) => ArgumentKind::F32,
            (true, Dtype::I32, _) => ArgumentKind::I32,
            (true, _, _) => ArgumentKind::U32,
        };
        let element_bytes = self.dtype.len_bytes(1) as u32;
        let is_undefined = self.access == Access::Write;
        ArgumentSpec { element_bytes, is_undefined, ..ArgumentSpec::new(&*self.name, kind) }
    }

    /// `x:f32:read`, `n_tokens:u32`.
    pub(crate) fn abi(&self) -> String {
        if self.is_scalar() {
            format!("{}:{}", self.name, self.dtype)
        } else {
            format!("{}:{}:{}", self.name, self.dtype, self.access.name())
        }
    }
}

/// The geometry of a kernel's launches.
#[derive(Clone, Debug)]
pub struct LaunchSpec {
    pub(super) grid: Vec<Expression>,
    pub(super) block_size: u32,
    /// Blocks of a cluster, which are neighbours in x; 1 where they are on their own.
    pub(super) cluster: u32,
    pub(super) lds_bytes: u32,
    pub(super) scratch_bytes: Option<Expression>,
    pub(super) padded: PaddedSpec,
    pub(super) scope: Arc<Scope>,
}

impl LaunchSpec {
    /// Blocks in x, y, z for these scalars. Zero blocks mean that there is nothing to launch.
    ///
    /// # Errors
    /// If a scalar is missing, an expression gives no whole number of 32 bits, there are more blocks than that, or they
    /// are no whole clusters.
    pub fn grid(&self, scalars: &BTreeMap<String, u64>) -> Result<[u32; 3], ExpressionError> {
        let scope = Arc::new(self.scope.with_scalars(scalars));
        let mut grid = [1; 3];
        for (blocks, axis) in grid.iter_mut().zip(&self.grid) {
            *blocks = axis.whole_u32(&scope)?;
        }
        if !grid[0].is_multiple_of(self.cluster) {
            let text = format!("{} blocks are no whole clusters of {}", grid[0], self.cluster);
            return Err(self.grid[0].error(Reason::Engine(text)));
        }
        let n_blocks = product(&grid.map(u64::from));
        match self.grid.first().filter(|_| n_blocks.is_none_or(|n_blocks| n_blocks > MAX_BLOCKS)) {
            None => Ok(grid),
            Some(first) => {
                let what = format!("the {} x {} x {} blocks of the grid", grid[0], grid[1], grid[2]);
                Err(first.error(Reason::TooMany { what, limit: MAX_BLOCKS }))
            }
        }
    }

    /// What a launch on these inputs goes through, by the template's `[padded]`.
    ///
    /// # Errors
    /// If an expression gives no whole number.
    pub fn padded(&self, scalars: &BTreeMap<String, u64>, inputs: &Elements) -> Result<Padded, ExpressionError> {
        self.padded.count(&self.scope, scalars, inputs)
    }

    /// Threads per block; 1 on the host.
    pub const fn block_size(&self) -> u32 {
        self.block_size
    }

    /// NVIDIA: bytes of LDS that a launch requests, in addition to what the kernel declares.
    pub const fn lds_bytes(&self) -> u32 {
        self.lds_bytes
    }

    /// Host: bytes of private memory for each thread that runs blocks. 0 on a GPU.
    ///
    /// # Errors
    /// If a scalar is missing, or the expression gives no whole number up to [`MAX_LEN_BYTES`].
    pub fn scratch_bytes(&self, scalars: &BTreeMap<String, u64>) -> Result<u64, ExpressionError> {
        let Some(expression) = &self.scratch_bytes else { return Ok(0) };
        let value = expression.whole(&Arc::new(self.scope.with_scalars(scalars)))?;
        let limit = MAX_LEN_BYTES;
        if value <= limit { Ok(value) } else { Err(expression.error(Reason::TooLarge { value, limit })) }
    }
}

/// The product of all; `None` if it does not fit 64 bits, unless one is zero.
fn product(factors: &[u64]) -> Option<u64> {
    if factors.contains(&0) {
        return Some(0);
    }
    factors.iter().try_fold(1u64, |product, &factor| product.checked_mul(factor))
}
