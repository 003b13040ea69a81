//! Which of several processes this one is, by the variables of its launcher: torchrun, MPI, Slurm, a LeaderWorkerSet.
//!
//! Launchers nest, and inner processes inherit the outer launcher's variables (`mpirun` in an allocation of Slurm).
//! The innermost counts: the first of [`LAUNCHERS`] whose variables are set.

use hint::Hint;

/// The variables of a launcher.
struct Launcher {
    name: &'static str,
    /// What only a process that it started has, where the others are set for more than these: a batch script of
    /// Slurm has `SLURM_PROCID` too, and is no rank.
    gate: Option<&'static str>,
    rank: &'static str,
    world: &'static str,
    local_rank: Option<&'static str>,
}

/// The innermost first.
const LAUNCHERS: [Launcher; 5] = [
    Launcher { name: "torchrun", gate: None, rank: "RANK", world: "WORLD_SIZE", local_rank: Some("LOCAL_RANK") },
    Launcher {
        name: "Open MPI",
        gate: None,
        rank: "OMPI_COMM_WORLD_RANK",
        world: "OMPI_COMM_WORLD_SIZE",
        local_rank: Some("OMPI_COMM_WORLD_LOCAL_RANK"),
    },
    Launcher { name: "PMI", gate: None, rank: "PMI_RANK", world: "PMI_SIZE", local_rank: Some("MPI_LOCALRANKID") },
    Launcher {
        name: "Slurm",
        gate: Some("SLURM_STEP_ID"),
        rank: "SLURM_PROCID",
        world: "SLURM_STEP_NUM_TASKS",
        local_rank: Some("SLURM_LOCALID"),
    },
    Launcher {
        name: "LeaderWorkerSet",
        gate: None,
        rank: "LWS_WORKER_INDEX",
        world: "LWS_GROUP_SIZE",
        local_rank: None,
    },
];

/// One of several processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Counted from 0.
    pub rank: usize,
    /// How many there are; more than one.
    pub world: usize,
    /// The process's number on this host, from 0; 0 if unknown.
    pub local_rank: usize,
    pub launcher: &'static str,
}

/// A launcher's variables do not go together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LauncherError {
    /// One of a pair is missing.
    #[error("{launcher}'s environment is incomplete: {set} is set, but {missing} is not")]
    Incomplete { launcher: &'static str, set: &'static str, missing: &'static str },
    #[error("{variable} is `{found}`, expected a whole number")]
    NoNumber { variable: &'static str, found: String },
    /// There are fewer processes than this one's number says.
    #[error(
        "{rank_variable} is {rank} and {world_variable} {world}: ranks are counted from 0 and below the world's size"
    )]
    Beyond { rank_variable: &'static str, rank: usize, world_variable: &'static str, world: usize },
}

impl Hint for LauncherError {
    fn hint(&self) -> Option<String> {
        Some(
            "unset them, or use `--shard I/N`, which overrides launchers; `--shard 0/1` is a run without shards".into(),
        )
    }
}

/// What the environment says. None of one process alone.
///
/// # Errors
/// [`LauncherError`].
pub fn rank() -> Result<Option<Rank>, LauncherError> {
    found(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

fn found(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Rank>, LauncherError> {
    let number = |name: &'static str| match variable(name) {
        None => Ok(None),
        Some(found) => match found.trim().parse::<usize>() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(LauncherError::NoNumber { variable: name, found }),
        },
    };
    let speaks = |launcher: &&Launcher| {
        launcher.gate.is_none_or(|gate| variable(gate).is_some())
            && (variable(launcher.rank).is_some() || variable(launcher.world).is_some())
    };
    let Some(launcher) = LAUNCHERS.iter().find(speaks) else { return Ok(None) };
    let Launcher { name, rank: rank_variable, world: world_variable, .. } = *launcher;
    let incomplete = |set, missing| LauncherError::Incomplete { launcher: name, set, missing };
    let (rank, world) = match (number(rank_variable)?, number(world_variable)?) {
        (Some(rank), Some(world)) => (rank, world),
        (Some(_), None) => return Err(incomplete(rank_variable, world_variable)),
        (None, _) => return Err(incomplete(world_variable, rank_variable)),
    };
    if rank >= world {
        return Err(LauncherError::Beyond { rank_variable, rank, world_variable, world });
    }
    let local_rank = launcher.local_rank.map_or(Ok(None), number)?.unwrap_or(0);
    Ok((world > 1).then_some(Rank { rank, world, local_rank, launcher: name }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank_of(variables: &[(&str, &str)]) -> Result<Option<Rank>, LauncherError> {
        found(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn every_launcher_is_understood_and_the_innermost_counts() {
        let rank = |rank, world, local_rank, launcher| Ok(Some(Rank { rank, world, local_rank, launcher }));
        let slurm = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "3"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_NTASKS", "9"),
            ("SLURM_LOCALID", "1"),
        ];
        assert_eq!(rank_of(&slurm), rank(3, 4, 1, "Slurm"));
        let mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_RANK", "1")];
        assert_eq!(rank_of(&[&slurm[..], &mpi].concat()), rank(1, 2, 1, "Open MPI"), "mpirun inside a step");
        let torchrun = [("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "node0")];
        assert_eq!(rank_of(&[&mpi[..], &slurm, &torchrun].concat()), rank(5, 8, 1, "torchrun"));
        assert_eq!(rank_of(&[("PMI_RANK", "0"), ("PMI_SIZE", "3")]), rank(0, 3, 0, "PMI"));
        assert_eq!(rank_of(&[("LWS_WORKER_INDEX", "1"), ("LWS_GROUP_SIZE", "2")]), rank(1, 2, 0, "LeaderWorkerSet"));
    }

    #[test]
    fn one_process_and_a_batch_script_are_alone() {
        assert_eq!(rank_of(&[]), Ok(None));
        assert_eq!(rank_of(&[("RANK", "0"), ("WORLD_SIZE", "1")]), Ok(None));
        // A batch script sees the job's variables, and is no task of a step.
        let script = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_STEP_NUM_TASKS", "4")];
        assert_eq!(rank_of(&script), Ok(None));
        assert_eq!(rank_of(&[("JOB_COMPLETION_INDEX", "3")]), Ok(None), "of how many is said by nobody");
    }

    #[test]
    fn variables_that_do_not_go_together_are_named() {
        let error = |variables: &[(&str, &str)]| rank_of(variables).expect_err("wrong").to_string();
        assert_eq!(error(&[("RANK", "1")]), "torchrun's environment is incomplete: RANK is set, but WORLD_SIZE is not");
        assert_eq!(
            error(&[("PMI_SIZE", "2")]),
            "PMI's environment is incomplete: PMI_SIZE is set, but PMI_RANK is not"
        );
        assert_eq!(error(&[("RANK", "x"), ("WORLD_SIZE", "2")]), "RANK is `x`, expected a whole number");
        let beyond = error(&[("RANK", "2"), ("WORLD_SIZE", "2")]);
        assert!(beyond.starts_with("RANK is 2 and WORLD_SIZE 2: "), "{beyond}");
    }
}
