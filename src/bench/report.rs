//! What `bench` prints, for people and for programs: `docs/bench.md` has the fields.

use serde_json::{Value, json};

use crate::args::{KernelCounts, kernel_counts};
use crate::kernel_table::KernelTable;
use crate::output::Output;
use engine::Engine;
use workbench::bench::limits::MachineLimits;
use workbench::bench::links::Links;
use workbench::bench::measure::Measured;

/// Others may take this much of the cores before a measurement is called disturbed.
const MOST_OTHERS: f64 = 0.02;

/// What was measured, and on what.
pub(super) struct Report<'a> {
    pub(crate) model: String,
    pub(crate) n_layers: usize,
    pub(crate) weights: String,
    pub(crate) kv: String,
    pub(crate) device: String,
    pub(crate) target: String,
    /// Those of one device.
    pub(crate) limits: &'a MachineLimits,
    /// Layers whose experts the processor beside it computes, and its limits.
    pub(crate) host: Option<(usize, &'a MachineLimits)>,
    /// How many compute the model together.
    pub(crate) n_devices: usize,
    /// What these are to each other.
    pub(crate) links: Option<&'a Links>,
    pub(crate) measured: &'a [Measured],
    pub(crate) kernels: Kernels,
}

/// Where kernels came from.
#[derive(Clone, Copy, Default)]
pub(super) struct Kernels(KernelCounts);

impl Kernels {
    /// Adds those of an engine.
    pub(crate) fn add(&mut self, engine: &Engine) {
        self.0 = [self.0, kernel_counts(engine)].into_iter().sum();
    }
}

impl Report<'_> {
    pub(crate) fn print(&self, output: &Output) -> anyhow::Result<()> {
        if output.is_json() {
            return Ok(output.json(&self.json())?);
        }
        output.line(&format!(
            "{}, {} layers, {}, on {}{}, {}",
            self.model,
            self.n_layers,
            self.weights,
            self.device,
            if self.n_devices > 1 { format!(" and {} more", self.n_devices - 1) } else { String::new() },
            self.target
        ))?;
        self.limits.lines().iter().try_for_each(|line| output.line(line))?;
        if let Some((n_layers, limits)) = self.host {
            output.line(&format!("the processor computes the experts of the last {n_layers} layers:"))?;
            limits.lines().iter().try_for_each(|line| output.line(&format!("  {line}")))?;
        }
        self.links.map(Links::lines).iter().flatten().try_for_each(|line| output.line(line))?;
        self.print_works(output)?;
        for measured in self.measured {
            self.print_kernels(measured, output)?;
        }
        if self.measured.iter().any(|m| self.is_disturbed(m)) {
            output.warning(
                "other programs took some of the cores: these figures are too low; run again on an idle machine",
            );
        }
        output.note(&format!("kernels: {}", self.kernels.0));
        Ok(())
    }

    fn print_works(&self, output: &Output) -> anyhow::Result<()> {
        let memory = format!("% of {}", self.limits.memory_name());
        let flop = format!("% of {}", self.limits.flop_name());
        let header = [
            "work",
            "batch",
            "context",
            "tokens",
            "tok/s",
            "spread %",
            "limit tok/s",
            "% of limit",
            "ms/step",
            "GB/s",
            &memory,
            self.limits.flop_unit().1,
            &flop,
            "others %",
        ];
        // On a GPU the cores have little to do.
        let header = &header[..header.len() - usize::from(self.limits.is_gpu())];
        let shown = |measured| self.row(measured).into_iter().take(header.len()).collect();
        let rows: Vec<Vec<String>> = self.measured.iter().map(shown).collect();
        Ok(output.table(header, &rows, &header[1..])?)
    }

    fn row(&self, measured: &Measured) -> Vec<String> {
        let (seconds, limit) = (measured.median_s(), self.limit_tok_per_s(measured));
        let (bytes_per_s, flop_per_s) = self.rates(measured);
        let percent = |part: f64| format!("{:.1}", 100.0 * part);
        vec![
            measured.work.name().to_string(),
            measured.work.batch().to_string(),
            measured.context.to_string(),
            measured.tokens.to_string(),
            rate(measured.tok_per_s()),
            measured.spread().map_or("-".into(), percent),
            rate(limit),
            percent(measured.tok_per_s() / limit),
            format!("{:.3}", 1e3 * seconds / measured.steps as f64),
            format!("{:.1}", bytes_per_s / 1e9),
            percent(bytes_per_s / self.all(self.limits.memory_bytes_per_s())),
            format!("{:.2}", flop_per_s / self.limits.flop_unit().0),
            percent(flop_per_s / self.all(self.limits.flop_per_s())),
            measured.others.map_or("?".into(), percent),
        ]
    }

    /// What all devices do that one does.
    fn all(&self, of_one: f64) -> f64 {
        of_one * self.n_devices as f64
    }

    /// Tokens per second of all devices at their limits, with no time for what they tell each other.
    fn limit_tok_per_s(&self, measured: &Measured) -> f64 {
        self.all(measured.limit_tok_per_s(self.limits, self.host.map(|(_, limits)| limits)))
    }

    /// Bytes and operations per second, of all devices.
    fn rates(&self, measured: &Measured) -> (f64, f64) {
        let seconds = measured.median_s();
        (measured.cost.bytes / seconds, measured.cost.flop / seconds)
    }

    /// Kernels and the host's part of one work, where kernels were timed.
    fn print_kernels(&self, measured: &Measured, output: &Output) -> anyhow::Result<()> {
        let Some(table) = self.kernel_table(measured) else { return Ok(()) };
        output.line(&format!("\n{}:", title(measured)))?;
        let header = table.header();
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        output.table(&header, &table.rows(), &header[2..])?;
        output.line(&table.summary())?;
        let parts = measured
            .host
            .parts()
            .map(|(name, time)| format!("{name} {:.1}", 1e6 * time.as_secs_f64() / measured.host.steps.max(1) as f64));
        output.line(&format!("on the host, us of a step: {}", parts.join(", ")))?;
        Ok(())
    }

    fn kernel_table<'m>(&'m self, measured: &'m Measured) -> Option<KernelTable<'m>> {
        let profile = measured.profile.as_ref()?;
        Some(KernelTable { profile, limits: self.limits, n_steps: measured.profiled_steps })
    }

    /// Whether others took more of the cores than a CPU's figures bear.
    fn is_disturbed(&self, measured: &Measured) -> bool {
        !self.limits.is_gpu() && measured.others.is_some_and(|others| others > MOST_OTHERS)
    }

    /// The object that `--json` prints.
    pub(crate) fn json(&self) -> Value {
        json!({
            "schema": 2, "model": self.model, "layers": self.n_layers, "weights": self.weights, "kv": self.kv,
            "device": self.device, "devices": self.n_devices, "target": self.target, "limits": self.limits.json(),
            "host": self.host.map(|(n_layers, limits)| json!({ "layers": n_layers, "limits": limits.json() })),
            "links": self.links.map(Links::json),
            "measured": self.measured.iter().map(|m| self.work_json(m)).collect::<Vec<_>>(),
            "kernels": self.kernels.0.json(),
        })
    }

    fn work_json(&self, measured: &Measured) -> Value {
        let limit = self.limit_tok_per_s(measured);
        let (bytes_per_s, flop_per_s) = self.rates(measured);
        let host = measured.host.parts().map(|(name, time)| {
            (name.to_string(), json!(1e6 * time.as_secs_f64() / measured.host.steps.max(1) as f64))
        });
        json!({
            "work": measured.work.name(), "batch": measured.work.batch(), "context": measured.context,
            "tokens": measured.tokens, "steps": measured.steps, "seconds": measured.seconds,
            "tok_per_s": measured.tok_per_s(), "spread": measured.spread(),
            "limit_tok_per_s": limit, "limit_fraction": measured.tok_per_s() / limit,
            "bytes": measured.cost.bytes, "flop": measured.cost.flop, "host_bytes": measured.cost.host_bytes,
            "gbps": bytes_per_s / 1e9, "memory_fraction": bytes_per_s / self.all(self.limits.memory_bytes_per_s()),
            "tflops": flop_per_s / 1e12, "flop_fraction": flop_per_s / self.all(self.limits.flop_per_s()),
            "load_s": measured.load_s, "others_fraction": measured.others,
            "host_us_per_step": serde_json::Map::from_iter(host),
            "profile": self.kernel_table(measured).map(|table| table.json()),
        })
    }
}

/// What a work is, in a few words: `decode, batch 32, context 542`.
pub(super) fn title(measured: &Measured) -> String {
    let what = measured.work.name();
    match measured.work.batch() {
        1 => format!("{what}, {} positions", measured.context),
        batch => format!("{what}, batch {batch}, {} positions", measured.context),
    }
}

/// Tokens per second, with as many digits as are of interest.
fn rate(tok_per_s: f64) -> String {
    if tok_per_s < 1000.0 { format!("{tok_per_s:.2}") } else { format!("{tok_per_s:.0}") }
}
