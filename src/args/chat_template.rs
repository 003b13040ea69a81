//! Extra values for the checkpoint's chat template.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value};

use chat::chat_format::Besides;
use model::checkpoint::Checkpoint;

/// What chats of a model with a template of its own are made with.
#[derive(Args, Debug)]
pub(crate) struct ChatTemplateArgs {
    /// Default `chat_template_kwargs` for the checkpoint's chat template: a JSON object, such as {"enable_thinking":
    /// false}
    #[arg(long, value_name = "JSON", value_parser = object)]
    chat_template_kwargs: Option<Map<String, Value>>,

    /// A file that says how a model marks reasoning and tool calls (`chats/README.md` in the source); overrides those
    /// in the config folder's `gptoss-jit/chats` and those built in
    #[arg(long = "chat-def", value_name = "FILE")]
    chat_defs: Vec<PathBuf>,
}

impl ChatTemplateArgs {
    /// What the format of a checkpoint's template takes besides.
    pub(crate) fn besides<'a>(&self, checkpoint: &'a Checkpoint) -> Besides<'a> {
        let folder = dirs::config_dir().map(|folder| folder.join("gptoss-jit/chats"));
        let entries = folder.into_iter().flat_map(std::fs::read_dir).flatten().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
        files.sort();
        Besides {
            tool_template: checkpoint.origin.tool_template.as_deref(),
            words: self.chat_template_kwargs.clone().unwrap_or_default(),
            marks: self.chat_defs.iter().cloned().chain(files).collect(),
        }
    }
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(format!("expected a JSON object, such as {{\"enable_thinking\": false}}, found {other}")),
        Err(error) => Err(format!("expected a JSON object: {error}")),
    }
}
