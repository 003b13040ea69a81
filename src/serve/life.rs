//! From the first connection to the last: loading, serving, draining.

use std::net::TcpListener as StdListener;
use std::process;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::sleep;

use super::ending::Ending;
use crate::output::Output;
use crate::stderr;
use serve::Server;
use serve::backend::Figures;
use serve::failing::Failing;
use serve::listener::{Listener, raise_limit_of_files};
use system::units::counted;

/// A server that listens; it answers 503 as long as there is no model.
pub(super) struct Life {
    runtime: Runtime,
    listener: Arc<Listener>,
    /// How many signals to end the process got.
    n_signals: watch::Receiver<u32>,
    /// False while the model is loaded: then there is nothing to drain.
    is_loaded: watch::Sender<bool>,
}

/// Time for the last bytes to reach the clients.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How often it is looked whether all requests have ended.
const LOOK: Duration = Duration::from_millis(20);

impl Life {
    /// Begins to take connections.
    pub(crate) fn begin(tcp: StdListener, n_workers: usize) -> anyhow::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(n_workers)
            .thread_name("http")
            .enable_all()
            .build()
            .context("could not start the threads that serve")?;
        let _inside = runtime.enter();
        let tcp = tokio::net::TcpListener::from_std(tcp).context("could not listen")?;
        raise_limit_of_files();
        mapped_file::return_large_memory(); // of long bodies
        let listener = Arc::new(Listener::default());
        runtime.spawn(listener.clone().accept(tcp));
        let (told, n_signals) = watch::channel(0);
        let (is_loaded, loaded) = watch::channel(false);
        let waiting = "could not wait for signals";
        let mut ending = Ending::watch().context(waiting)?;
        runtime.spawn(async move {
            loop {
                ending.came().await;
                if !*loaded.borrow() {
                    stderr::finish();
                    process::exit(0);
                }
                told.send_modify(|n| *n += 1);
            }
        });
        Ok(Self { runtime, listener, n_signals, is_loaded })
    }

    /// Does something where tasks can be started.
    pub(crate) fn within<T>(&self, what: impl FnOnce() -> T) -> T {
        let _inside = self.runtime.enter();
        what()
    }

    /// From here on requests are answered.
    pub(crate) fn open(self, router: Router) -> Self {
        self.is_loaded.send_replace(true);
        self.listener.open(router);
        self
    }

    /// Runs until the process is asked to end or the engine fails.
    ///
    /// # Errors
    /// If the engine failed.
    pub(crate) fn run(
        self,
        server: &Server,
        failing: Option<&Failing>,
        drain: Duration,
        output: &Output,
    ) -> anyhow::Result<()> {
        let served = self.runtime.block_on(self.serve(server, failing, drain, output));
        // Handlers that are still there have nobody to answer to.
        self.runtime.shutdown_background();
        served
    }

    async fn serve(
        &self,
        server: &Server,
        failing: Option<&Failing>,
        drain: Duration,
        output: &Output,
    ) -> anyhow::Result<()> {
        let failure = async {
            match failing {
                Some(failing) => failing.wait().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            failure = failure => {
                self.listener.close(LAST_WORDS).await;
                return Err(failure.into());
            }
            () = self.told(1) => {}
        }
        server.backend.drain();
        let Figures { running, waiting, .. } = server.backend.figures();
        if running + waiting > 0 {
            let seconds = drain.as_secs_f64();
            let n = running + waiting;
            let (requests, have, them) = match n {
                1 => (counted(n, "request"), "has", "it"),
                _ => (counted(n, "request"), "have", "them"),
            };
            output.note(&format!("{requests} {have} {seconds} s to end; a second signal ends {them}"));
        }
        tokio::select! {
            () = all_ended(server) => {}
            () = sleep(drain) => {}
            () = self.told(2) => {}
        }
        server.backend.end_all();
        tokio::select! {
            () = self.listener.close(LAST_WORDS) => {}
            () = self.told(3) => {}
        }
        let backend = Arc::clone(&server.backend);
        tokio::select! {
            _ = tokio::task::spawn_blocking(move || backend.finish()) => {}
            () = self.told(3) => {}
        }
        Ok(())
    }

    async fn told(&self, times: u32) {
        let _ = self.n_signals.clone().wait_for(|n| *n >= times).await; // the sender is a task that never ends
    }
}

/// Waits until no request is being answered.
async fn all_ended(server: &Server) {
    loop {
        let Figures { running, waiting, .. } = server.backend.figures();
        if running + waiting == 0 && Arc::strong_count(&server.open) == 1 {
            return;
        }
        sleep(LOOK).await;
    }
}
