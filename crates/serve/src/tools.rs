//! Tools, and which of them may be called, in both chat APIs: one nests (`function: {name}`) what the other has flat
//! (`name`), and each accepts both forms.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use super::error::ApiError;
use super::field::Field;
use chat::grammar::ToolChoice;
use chat::{FUNCTIONS, TextInput, Tool, is_tool_name};

/// Most tools of a request.
const MAX_TOOLS: usize = 256;

/// A tool as its client knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The namespace that its client gave it in, which is part of the name that the model sees.
    pub(crate) namespace: Option<String>,
    /// It takes text and not JSON: `custom`, as the API calls that.
    pub(crate) is_custom: bool,
}

/// The tools of a request.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    /// As they stand in the prompt, in the order of the request.
    pub(crate) offered: Vec<Tool>,
    /// What may be called of them.
    pub(crate) choice: ToolChoice,
    /// The names of those that may be called, if not all may.
    pub(crate) allowed: Option<Vec<String>>,
    functions: HashMap<String, Function>,
    /// Tools whose schemas hold if they can, though the client does not insist.
    bound: HashSet<String>,
    /// Where in the request each one's schema or grammar stands.
    places: Vec<String>,
}

/// What a request that has no tools has.
impl Default for Tools {
    fn default() -> Self {
        Self {
            offered: Vec::new(),
            choice: ToolChoice::None,
            allowed: None,
            functions: HashMap::new(),
            bound: HashSet::new(),
            places: Vec::new(),
        }
    }
}

impl Tools {
    /// Reads `tools`, `tool_choice` and the rest of it.
    ///
    /// With `hosted`, tools that only OpenAI's own servers have (`web_search`) are left out with a warning.
    ///
    /// # Errors
    /// An invalid tool, a name that no header can contain, or a choice of a missing tool.
    pub(crate) fn read(body: &Field, hosted: Hosted) -> Result<Self, ApiError> {
        let mut tools = Self::default();
        for tool in &list(body)? {
            tools.read_tool(tool, hosted)?;
        }
        tools.choose(body, Self::read_choice)?;
        Ok(tools)
    }

    /// Reads those of Anthropic's API.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn read_messages(body: &Field) -> Result<Self, ApiError> {
        let mut tools = Self::default();
        for tool in &list(body)? {
            if let Some(kind) = tool.get("type").filter(|kind| kind.value() != "custom") {
                return Err(kind.unsupported("only tools with an `input_schema` are supported"));
            }
            let strict = tool.get("strict").map_or(Ok(false), |strict| strict.flag())?;
            let offered = tools.named_tool(tool, None, false)?;
            let schema = tool.need("input_schema")?;
            let parameters = Some(schema.object()?.value().clone());
            tools.offer(Tool { parameters, strict, ..offered }, schema.path().to_owned());
        }
        tools.choose(body, |tools, choice| {
            let kinds = [("auto", 0), ("any", 1), ("none", 2), ("tool", 3)];
            Ok(match choice.need("type")?.one_of(&kinds)? {
                0 => ToolChoice::Auto,
                1 => ToolChoice::Required,
                2 => ToolChoice::None,
                _ => ToolChoice::Named(tools.named(choice)?),
            })
        })?;
        Ok(tools)
    }

    /// The function that the model means by a name.
    pub(crate) fn function(&self, name: &str) -> Function {
        let unknown = || Function { name: name.to_owned(), namespace: None, is_custom: false };
        self.functions.get(name).cloned().unwrap_or_else(unknown)
    }

    /// The name by which the model knows a function.
    pub(crate) fn name_in_prompt(name: &str, namespace: Option<&str>) -> String {
        namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}__{name}"))
    }

    /// The tools that may be called.
    pub(crate) fn callable(&self) -> Vec<Tool> {
        let may = |tool: &&Tool| self.allowed.as_ref().is_none_or(|allowed| allowed.contains(&tool.name));
        self.offered.iter().filter(may).cloned().collect()
    }

    /// The same, and those strict whose schemas hold if they can: where one must be called, and where the API says so.
    pub(crate) fn enforced(&self) -> Vec<Tool> {
        let must_call = matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_));
        let mut tools = self.callable();
        for tool in &mut tools {
            let binds = tool.parameters.is_some() && (must_call || self.bound.contains(&tool.name));
            tool.strict |= binds;
        }
        tools
    }

    /// Where in the request the schema or grammar of a tool stands.
    pub(crate) fn place(&self, name: &str) -> Option<&str> {
        let index = self.offered.iter().position(|tool| tool.name == name)?;
        self.places.get(index).map(String::as_str)
    }

    fn read_tool(&mut self, tool: &Field, hosted: Hosted) -> Result<(), ApiError> {
        match (tool.need("type")?.text()?, hosted) {
            ("function", _) => self.read_function(tool, None, hosted),
            ("namespace", Hosted::LeftOut) => {
                let namespace = tool.need("name")?.text()?;
                for function in tool.need("tools")?.list()? {
                    match function.need("type")?.one_of(&[("function", false), ("custom", true)])? {
                        false => self.read_function(&function, Some(namespace), hosted)?,
                        true => self.read_custom(&function, Some(namespace))?,
                    }
                }
                Ok(())
            }
            ("custom", Hosted::LeftOut) => self.read_custom(tool, None),
            ("custom", Hosted::Refused) => {
                Err(tool.need("type")?.unsupported("only `/v1/responses` supports tools with plain text input"))
            }
            (kind, Hosted::LeftOut) if is_hosted(kind) => Ok(()),
            (_, Hosted::LeftOut) => {
                Err(tool.need("type")?.wrong("`function`, `custom`, `namespace`, or one of OpenAI's own"))
            }
            (_, Hosted::Refused) => tool.need("type")?.one_of(&[("function", ())]),
        }
    }

    /// Responses are strict unless they say otherwise, as far as that can be.
    fn read_function(&mut self, tool: &Field, namespace: Option<&str>, hosted: Hosted) -> Result<(), ApiError> {
        let function = tool.get("function").unwrap_or_else(|| tool.clone());
        let parameters = function.get("parameters");
        if let Some(parameters) = &parameters {
            parameters.object()?;
        }
        let strict = function.get("strict").map(|strict| strict.flag()).transpose()?;
        let (is_usual, strict) = (strict.is_none() && hosted == Hosted::LeftOut, strict.unwrap_or(false));
        let offered = Tool {
            parameters: parameters.map(|schema| schema.value().clone()),
            strict,
            ..self.named_tool(&function, namespace, false)?
        };
        self.bound.extend(is_usual.then(|| offered.name.clone()));
        self.offer(offered, format!("{}.parameters", function.path()));
        Ok(())
    }

    /// A tool that takes text: any, or that of a grammar.
    fn read_custom(&mut self, tool: &Field, namespace: Option<&str>) -> Result<(), ApiError> {
        let format = tool.get("format");
        let is_grammar = format
            .as_ref()
            .map_or(Ok(false), |format| format.need("type")?.one_of(&[("text", false), ("grammar", true)]))?;
        let (text, place) = match format.filter(|_| is_grammar) {
            None => (TextInput::Any, tool.path().to_owned()),
            Some(grammar) => {
                let definition = grammar.need("definition")?;
                let text = definition.text()?.to_owned();
                let is_regex = grammar.need("syntax")?.one_of(&[("lark", false), ("regex", true)])?;
                let text = if is_regex { TextInput::Regex(text) } else { TextInput::Lark(text) };
                (text, definition.path().to_owned())
            }
        };
        let offered = Tool { text: Some(text), ..self.named_tool(tool, namespace, true)? };
        self.offer(offered, place);
        Ok(())
    }

    fn offer(&mut self, tool: Tool, place: String) {
        self.places.push(place);
        self.offered.push(tool);
    }

    /// What all tools have: a name that no other has, and a description.
    fn named_tool(&mut self, tool: &Field, namespace: Option<&str>, is_custom: bool) -> Result<Tool, ApiError> {
        let name = tool.need("name")?;
        let own_name = checked_name(&name)?;
        let name_in_prompt = Self::name_in_prompt(own_name, namespace);
        let client_knows = Function { name: own_name.to_owned(), namespace: namespace.map(str::to_owned), is_custom };
        if self.functions.insert(name_in_prompt.clone(), client_knows).is_some() {
            return Err(name.error("invalid_value", format!("`{}`: there are two tools `{own_name}`", name.path())));
        }
        Ok(Tool {
            namespace: FUNCTIONS.to_owned(),
            name: name_in_prompt,
            description: tool.get("description").map(|text| text.text()).transpose()?.map(str::to_owned),
            parameters: None,
            strict: false,
            text: None,
        })
    }

    /// Takes what the request says of which may be called; `read` reads that.
    fn choose(
        &mut self,
        body: &Field,
        read: impl FnOnce(&mut Self, &Field) -> Result<ToolChoice, ApiError>,
    ) -> Result<(), ApiError> {
        let choice = match body.get("tool_choice") {
            None => ToolChoice::Auto,
            Some(choice) => {
                let read = read(self, &choice)?;
                let n_callable = self.allowed.as_ref().map_or(self.offered.len(), Vec::len);
                if n_callable == 0 && matches!(read, ToolChoice::Required | ToolChoice::Named(_)) {
                    let message = "`tool_choice` requires a call, but there are no tools";
                    return Err(choice.error("invalid_value", message.to_owned()));
                }
                read
            }
        };
        let has_none = choice == ToolChoice::Auto && self.offered.is_empty();
        self.choice = if has_none { ToolChoice::None } else { choice };
        Ok(())
    }

    fn read_choice(&mut self, choice: &Field) -> Result<ToolChoice, ApiError> {
        type Mode = (&'static str, fn() -> ToolChoice);
        const MODES: [Mode; 3] =
            [("none", || ToolChoice::None), ("auto", || ToolChoice::Auto), ("required", || ToolChoice::Required)];
        if choice.value().is_string() {
            return Ok(choice.one_of(&MODES)?());
        }
        let kind = choice.need("type")?;
        match kind.text()? {
            "function" | "custom" => Ok(ToolChoice::Named(self.named(choice)?)),
            "allowed_tools" => {
                let allowed = choice.get("allowed_tools").unwrap_or_else(|| choice.clone());
                let names = allowed.need("tools")?.list()?;
                self.allowed = Some(names.iter().map(|tool| self.named(tool)).collect::<Result<_, _>>()?);
                Ok(allowed.need("mode")?.one_of(&MODES[1..])?())
            }
            _ => Err(kind.unsupported("only functions and custom tools can be chosen")),
        }
    }

    /// The tool that `{type: "function", name}` or `{type: "custom", name}` names, or the nested form of the former.
    fn named(&self, choice: &Field) -> Result<String, ApiError> {
        let function = choice.get("function").unwrap_or_else(|| choice.clone());
        let name = function.need("name")?;
        let namespace = function.get("namespace").map(|namespace| namespace.text()).transpose()?;
        let name_in_prompt = Self::name_in_prompt(name.text()?, namespace);
        if self.functions.contains_key(&name_in_prompt) {
            return Ok(name_in_prompt);
        }
        // In a namespace, and named without it.
        let own_name = name.text()?;
        let mut alike = self.offered.iter().filter(|tool| self.functions[&tool.name].name == own_name);
        match (alike.next(), alike.next()) {
            (Some(tool), None) => Ok(tool.name.clone()),
            _ => Err(name.wrong("the name of one of the tools")),
        }
    }
}

/// The tools of a request.
fn list<'a>(body: &Field<'a>) -> Result<Vec<Field<'a>>, ApiError> {
    let Some(tools) = body.get("tools") else { return Ok(Vec::new()) };
    let list = tools.list()?;
    if list.len() > MAX_TOOLS {
        let message = format!("`tools` are {}, at most {MAX_TOOLS} are taken", list.len());
        return Err(tools.error("invalid_value", message));
    }
    Ok(list)
}

/// A name that a header can carry, of a tool or of a call.
///
/// # Errors
/// It is none.
pub(crate) fn checked_name<'a>(name: &Field<'a>) -> Result<&'a str, ApiError> {
    let text = name.text()?;
    let wrong = || name.wrong("a name of at most 256 bytes, without white space and any of `<{[\"`");
    is_tool_name(text).then_some(text).ok_or_else(wrong)
}

/// What becomes of tools that are no functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hosted {
    /// They are left out, with a warning.
    LeftOut,
    Refused,
}

/// Tools that OpenAI's own servers have.
const HOSTED: [&str; 12] = [
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "shell",
    "tool_search",
    "web_search",
    "web_search_preview",
];

/// Whether a type is one of them, of any date (`web_search_2025_08_26`). Warns once for each.
fn is_hosted(kind: &str) -> bool {
    static WARNED: Mutex<Vec<&str>> = Mutex::new(Vec::new());
    let is_dated = |known: &&str| {
        kind.strip_prefix(known).is_some_and(|rest| rest.bytes().all(|byte| byte == b'_' || byte.is_ascii_digit()))
    };
    let Some(known) = HOSTED.into_iter().find(is_dated) else { return false };
    let mut warned = WARNED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !warned.contains(&known) {
        tracing::warn!("tools of type `{known}` are dropped: this server has no hosted tools");
        warned.push(known);
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(body: &Value) -> Result<Tools, ApiError> {
        Tools::read(&Field::body(body).expect("an object"), Hosted::LeftOut)
    }

    #[test]
    fn both_forms_of_a_function_are_the_same_tool() {
        let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        let function = json!({"name": "weather", "description": "Tells it.", "parameters": parameters, "strict": true});
        let mut flat = function.clone();
        flat["type"] = "function".into();
        let nested = read(&json!({"tools": [{"type": "function", "function": function}]})).expect("is right");
        assert_eq!(nested.offered, read(&json!({"tools": [flat]})).expect("is right").offered);
        let want = Tool {
            namespace: "functions".into(),
            name: "weather".into(),
            description: Some("Tells it.".into()),
            parameters: Some(parameters),
            strict: true,
            text: None,
        };
        assert_eq!(nested.offered, [want]);
        assert_eq!(nested.choice, ToolChoice::Auto);
    }

    #[test]
    fn a_namespace_is_part_of_the_name_in_the_prompt_and_not_of_the_clients() {
        let tools = json!([
            {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]},
            {"type": "web_search"},
            {"type": "function", "name": "shell"},
        ]);
        let tools =
            read(&json!({"tools": tools, "tool_choice": {"type": "function", "name": "spawn"}})).expect("right");
        let names: Vec<&str> = tools.offered.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["agents__spawn", "shell"]);
        let spawn = tools.function("agents__spawn");
        assert_eq!((spawn.name.as_str(), spawn.namespace.as_deref()), ("spawn", Some("agents")));
        assert_eq!(tools.function("unheard").name, "unheard");
        assert_eq!(tools.choice, ToolChoice::Named("agents__spawn".into()));
    }

    #[test]
    fn a_choice_of_what_is_not_there_is_refused() {
        let f = json!([{"type": "function", "name": "f"}]);
        for (choice, want) in [
            (json!("none"), Ok(ToolChoice::None)),
            (json!("auto"), Ok(ToolChoice::Auto)),
            (json!("required"), Ok(ToolChoice::Required)),
            (json!({"type": "function", "function": {"name": "f"}}), Ok(ToolChoice::Named("f".into()))),
            (json!({"type": "allowed_tools", "mode": "required", "tools": [{"name": "f"}]}), Ok(ToolChoice::Required)),
            (json!("maybe"), Err("tool_choice")),
            (json!({"type": "web_search"}), Err("tool_choice.type")),
            (json!({"type": "function", "name": "g"}), Err("tool_choice.name")),
            (
                json!({"type": "allowed_tools", "mode": "auto", "tools": [{"name": "g"}]}),
                Err("tool_choice.tools[0].name"),
            ),
        ] {
            let body = json!({"tools": f, "tool_choice": choice});
            let found = read(&body).map(|tools| tools.choice).map_err(|error| error.body()["error"]["param"].clone());
            assert_eq!(found, want.map_err(Value::from), "{choice}");
        }
        assert!(read(&json!({"tool_choice": "required"})).is_err());
        assert_eq!(read(&json!({"tool_choice": "auto"})).expect("nothing to call").choice, ToolChoice::None);
    }

    #[test]
    fn names_that_no_header_can_carry_are_refused() {
        for name in ["", "a b", "a<|end|>", "a\nb"] {
            assert!(read(&json!({"tools": [{"type": "function", "name": name}]})).is_err(), "{name:?}");
        }
        read(&json!({"tools": [{"type": "function", "name": "mcp.server:get-it"}]})).expect("a header can carry it");
        assert!(
            read(&json!({"tools": [{"type": "function", "name": "f"}, {"type": "function", "name": "f"}]})).is_err()
        );
    }
}
