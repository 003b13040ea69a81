//! The problems of the models that are known by name.

use clap::ValueEnum as _;

use crate::model_problems;
use engine::graph::Graph;
use kernel::target::Target;
use kernel::template::Precision;
use kernel::template::library::Library;
use model::checkpoint::Checkpoint;
use model::checkpoint::encoding::Encoding;
use model::config::NamedShape;
use workbench::tune::job::TuningJob;

/// Positions before a step's rows. They are part of no problem.
const CONTEXT: u32 = 1024;

/// Two layers of each model, at bf16 as the models are released, and at f32.
pub(super) fn graphs(library: &Library, target: &Target) -> anyhow::Result<Vec<Graph>> {
    let mut graphs = Vec::new();
    for &shape in NamedShape::value_variants() {
        for (precision, encoding) in [(Precision::Bf16, Encoding::default()), (Precision::F32, Encoding::F32)] {
            let checkpoint = Checkpoint::random(shape.config(Some(2)), encoding, 0)?;
            // Contracts of one's own may have other names: what is wrong with them is told elsewhere.
            graphs.extend(model_problems::graph(&checkpoint, precision, target, library).ok());
        }
    }
    Ok(graphs)
}

/// All problems of these.
pub(super) fn problems(library: &Library, target: &Target) -> anyhow::Result<TuningJob> {
    let fusions = library.fusions(target);
    let mut job = TuningJob::default();
    for graph in graphs(library, target)? {
        job.join(TuningJob::from_graph(&graph, &fusions, CONTEXT, 0));
    }
    Ok(job)
}
