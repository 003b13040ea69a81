//! The head and the tail of a kernel's source, generated from its contract: signature, constants, and the symbols that
//! the program looks up in the object.

use super::contract::Access;
use super::launch::ArgSpec;
use crate::target::Target;

/// How a kernel is launched, for a GPU's compiler.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) block_size: u32,
    pub(super) min_blocks: Option<u32>,
    /// 1 where blocks are on their own.
    pub(super) cluster: u32,
    pub(super) is_early: bool,
}

/// What is written from the contract: the head of the kernel and, on the host, the exported function.
pub(super) struct Head<'a> {
    pub(super) entry: String,
    pub(super) args: &'a [ArgSpec],
    pub(super) workspace: &'a [ArgSpec],
    pub(super) bounds: Bounds,
}

impl Head<'_> {
    pub(super) fn host_signature(&self) -> String {
        let mut lines = self.lines("restrict");
        lines.push(("void* restrict scratch, u32 block_x, u32 block_y, u32 block_z".into(), String::new()));
        format!("static void kernel(\n{})", joined(&lines))
    }

    /// Lanes of a wave and threads of a block, for all that follows.
    pub(super) fn hip_constants(&self, target: &Target) -> String {
        format!("enum {{ WAVE = {}, BLOCK = {} }};", target.wave_size, self.bounds.block_size)
    }

    pub(super) fn hip_signature(&self) -> String {
        let Bounds { block_size, min_blocks, cluster, .. } = self.bounds;
        let cluster = if cluster > 1 { format!("__cluster_dims__({cluster}) ") } else { String::new() };
        let min_blocks = min_blocks.map_or(String::new(), |blocks| format!(", {blocks}"));
        let (entry, lines) = (&self.entry, joined(&self.lines("__restrict__")));
        format!("extern \"C\" {cluster}__global__ __launch_bounds__({block_size}{min_blocks})\nvoid {entry}(\n{lines})")
    }

    /// Each argument's declaration, and its shape and type for a comment.
    fn lines(&self, restrict: &str) -> Vec<(String, String)> {
        let line = |arg: &ArgSpec| {
            // What an early kernel reads may be written while it waits, which is what `restrict` denies: NVIDIA's
            // compiler moved such loads above the wait.
            let is_shared =
                self.is_aliased(arg) || self.bounds.is_early && arg.access == Access::Read && !arg.is_weights;
            let restrict = if is_shared { String::new() } else { format!(" {restrict}") };
            let declaration = match (arg.is_scalar(), arg.access) {
                (true, _) => format!("{} {}", arg.dtype, arg.name),
                (false, Access::Read) => format!("const {}*{restrict} {}", arg.dtype, arg.name),
                (false, _) => format!("{}*{restrict} {}", arg.dtype, arg.name),
            };
            (declaration, format!("{} {}", arg.shape_text(), arg.dtype).trim().to_owned())
        };
        self.all().map(line).collect()
    }

    pub(super) fn host_trailer(&self) -> String {
        let unpacked = self.unpacked();
        let (entry, abi) = (&self.entry, abi(self.args, self.workspace));
        format!(
            "\n// ---- what the program loads: written by the renderer ----\n\n\
             const char {entry}_abi[] = \"{abi}\";\n\n\
             void {entry}(void* const* args, void* scratch, u32 block_x, u32 block_y, u32 block_z) {{\n  \
             kernel(\n{unpacked}      scratch, block_x, block_y, block_z);\n}}\n"
        )
    }

    /// The symbols that `crates/gpu/src/sim/object.rs` looks up.
    pub(super) fn sim_trailer(&self) -> String {
        let (entry, abi) = (&self.entry, abi(self.args, self.workspace));
        let unpacked = self.unpacked();
        let unpacked = unpacked.trim_end_matches(",\n");
        format!(
            "\n// ---- what the program loads: written by the renderer ----\n\n\
             #pragma GCC visibility push(default)\nextern \"C\" {{\nextern const char {entry}_abi[];\nconst char {entry}_abi[] = \"{abi}\";\n\
             extern const char __ehdr_start __attribute__((visibility(\"hidden\")));\n\
             const void* {entry}_image() {{ return &__ehdr_start; }}\n\
             SIM_PLAIN void {entry}_bind(sim::Context* context) {{ sim::context = context; }}\n\
             SIM_PLAIN void {entry}_thread(void* const* args) {{\n  {entry}(\n{unpacked});\n}}\n}}\n#pragma GCC visibility pop\n"
        )
    }

    /// A line for each argument that takes it out of the array of a launch.
    fn unpacked(&self) -> String {
        let unpack = |(i, arg): (usize, &ArgSpec)| match (arg.is_scalar(), arg.access) {
            (true, _) => format!("      *(const {}*)args[{i}],\n", arg.dtype),
            (false, Access::Read) => format!("      (const {}*)args[{i}],\n", arg.dtype),
            (false, _) => format!("      ({}*)args[{i}],\n", arg.dtype),
        };
        self.all().enumerate().map(unpack).collect()
    }

    /// An argument and the parameters of its blocks, as a call takes them.
    pub(super) fn pointers(&self, name: &str) -> String {
        let own = self.args.iter().filter(|arg| arg.name == name || arg.part_of.as_deref() == Some(name));
        own.map(|arg| arg.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    fn all(&self) -> impl Iterator<Item = &ArgSpec> {
        self.args.iter().chain(self.workspace)
    }

    /// Whether it may share its memory with another argument.
    fn is_aliased(&self, arg: &ArgSpec) -> bool {
        arg.may_alias.is_some() || self.all().any(|other| other.may_alias.as_ref() == Some(&arg.name))
    }
}

/// Parameters one on a line, their comments aligned.
fn joined(lines: &[(String, String)]) -> String {
    let width = lines.iter().filter(|(_, note)| !note.is_empty()).map(|(text, _)| text.len()).max().unwrap_or(0) + 1;
    let mut text = String::new();
    for (i, (declaration, note)) in lines.iter().enumerate() {
        let comma = if i + 1 < lines.len() { "," } else { "" };
        let line = format!("{declaration}{comma}");
        text += &if note.is_empty() { format!("    {line}") } else { format!("    {line:width$}  // {note}\n") };
    }
    text
}

pub(super) fn abi(args: &[ArgSpec], workspace: &[ArgSpec]) -> String {
    args.iter().chain(workspace).map(ArgSpec::abi).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_line_up_and_the_last_parameter_has_no_comma() {
        let lines = [("u32 a".to_owned(), "u32".to_owned()), ("const f32* b".to_owned(), "(3) f32".to_owned())];
        assert_eq!(joined(&lines), "    u32 a,         // u32\n    const f32* b   // (3) f32\n");
    }
}
