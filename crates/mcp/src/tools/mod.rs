//! The table of tools: name, toolset, what it does to the world, schemas and function. Everything that lists or calls tools
//! reads it. The functions are in files by subject.

mod admin;
mod app;
mod attach;
pub mod failures;
mod files;
mod history;
mod look;
mod packages;
mod session;
mod stacks;
mod testing;

use std::{collections::BTreeSet, sync::Arc, sync::LazyLock};

use futures::future::BoxFuture;
use rmcp::model::{CallToolResult, JsonObject, ToolAnnotations};
use schemars::{
    JsonSchema,
    generate::{Contract, SchemaSettings},
};
use serde::de::DeserializeOwned;

use super::{render, server::Call};
use pylair_core::{caller::Door, daemon::targets, rights, session as core};
use pylair_failures::{analysis::Report as Analysis, explain::Debugged, guide, prompt::Prompt};
use pylair_files as core_files;
use pylair_text::arguments;

/// A group of tools that can be chosen with `--tools`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Toolset {
    Run,
    Look,
    Tests,
    Admin,
    Extra,
    Files,
}

impl Toolset {
    const ALL: &[(&str, Self)] = &[
        ("run", Self::Run),
        ("look", Self::Look),
        ("tests", Self::Tests),
        ("admin", Self::Admin),
        ("files", Self::Files),
        ("extra", Self::Extra),
    ];

    /// What is served to whoever does not choose. A client on stdio has files of its own.
    fn default_for(door: Door) -> &'static str {
        match door {
            Door::Bridge | Door::Cli => "run,look,tests,admin",
            Door::Http => "run,look,tests,admin,files",
        }
    }
}

/// Which tools a client is served.
#[derive(Debug, Clone)]
pub struct Selection {
    toolsets: BTreeSet<Toolset>,
    readonly: bool,
}

impl Selection {
    /// From the value of `--tools`, such as `run,look` or `all`; without one, what this door serves by default.
    pub fn parse(tools: Option<&str>, readonly: bool, door: Door) -> Result<Self, String> {
        let mut toolsets = BTreeSet::new();
        for name in
            tools.unwrap_or(Toolset::default_for(door)).split(',').map(str::trim).filter(|name| !name.is_empty())
        {
            if name == "all" {
                toolsets.extend(Toolset::ALL.iter().map(|(_, toolset)| *toolset));
                continue;
            }
            let known = Toolset::ALL.iter().find(|(known, _)| *known == name);
            let Some((_, toolset)) = known else {
                let names: Vec<_> = Toolset::ALL.iter().map(|(name, _)| *name).collect();
                return Err(format!("there is no toolset `{name}`; there are {} and all", names.join(", ")));
            };
            toolsets.insert(*toolset);
        }
        Ok(Self { toolsets, readonly })
    }

    /// Nothing that changes anything, through whichever route.
    pub fn is_readonly(&self) -> bool {
        self.readonly || !self.toolsets.contains(&Toolset::Run)
    }

    /// Files may not be changed either.
    pub fn is_readonly_for_files(&self) -> bool {
        self.is_readonly() && (self.readonly || !self.toolsets.contains(&Toolset::Files))
    }

    fn includes(&self, tool: &Tool) -> bool {
        let looks = tool.effect == Effect::Reads || tool.beyond_looking().is_some();
        self.toolsets.contains(&tool.toolset) && (!self.readonly || looks)
    }
}

/// What a call does to the world; the source of MCP's annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Changes nothing.
    Reads,
    /// Adds something, or the same again.
    Adds,
    /// May change or destroy anything the user can reach.
    RunsCode,
    /// Ends, resets or replaces something; doing it twice is doing it once.
    Ends,
    /// Takes something back; doing it twice takes more back.
    TakesBack,
}

type Function = for<'a> fn(Call<'a>) -> BoxFuture<'a, Result<CallToolResult, ToolError>>;

/// One row of the table.
pub struct Tool {
    pub name: &'static str,
    title: &'static str,
    description: &'static str,
    toolset: Toolset,
    effect: Effect,
    input: fn() -> JsonObject,
    output: Option<fn() -> JsonObject>,
    pub function: Function,
}

impl Tool {
    pub fn only_reads(&self) -> bool {
        self.effect == Effect::Reads
    }

    pub fn input_schema(&self) -> JsonObject {
        (self.input)()
    }

    /// The argument without which the tool only looks.
    fn beyond_looking(&self) -> Option<&'static str> {
        LOOK_WITHOUT.iter().find(|(name, _)| *name == self.name).map(|(_, argument)| *argument)
    }

    /// Why a client that is served nothing but looking does not get this call.
    pub fn refuse_beyond_looking(&self, selection: &Selection, arguments: &JsonObject) -> Result<(), ToolError> {
        let Some(argument) = self.beyond_looking().filter(|_| selection.readonly) else { return Ok(()) };
        let given = arguments.get(argument).is_some_and(|value| !value.is_null() && *value != false);
        if !given {
            return Ok(());
        }
        Err(ToolError {
            kind: "readonly",
            message: format!("pylair was started with --readonly, and {} takes no `{argument}` there", self.name),
            hint: format!("leave out `{argument}`"),
        })
    }
}

/// Tools that change something only with this argument. `--readonly` keeps them and takes the argument away.
const LOOK_WITHOUT: [(&str, &str); 2] = [("screenshot", "code"), ("get_job", "cancel")];

/// Why a tool could not do what was asked; becomes an `isError` result.
#[derive(Debug)]
pub struct ToolError {
    pub kind: &'static str,
    pub message: String,
    pub hint: String,
}

impl From<core::Error> for ToolError {
    fn from(error: core::Error) -> Self {
        Self { kind: error.kind(), message: error.message(), hint: error.hint() }
    }
}

impl From<targets::Error> for ToolError {
    fn from(error: targets::Error) -> Self {
        Self { kind: error.kind(), message: error.message(), hint: error.hint() }
    }
}

impl From<pylair_core::app::Error> for ToolError {
    fn from(error: pylair_core::app::Error) -> Self {
        targets::Error::App(error).into()
    }
}

impl From<rights::Denied> for ToolError {
    fn from(denied: rights::Denied) -> Self {
        Self { kind: rights::Denied::KIND, message: denied.to_string(), hint: denied.hint() }
    }
}

impl From<core_files::Error> for ToolError {
    fn from(error: core_files::Error) -> Self {
        Self { kind: error.kind(), message: error.message(), hint: error.hint().to_owned() }
    }
}

impl From<pylair_core::history::Error> for ToolError {
    fn from(error: pylair_core::history::Error) -> Self {
        match error {
            pylair_core::history::Error::Session(error) => error.into(),
            pylair_core::history::Error::Journal(_) => {
                Self { kind: "history_unavailable", message: error.message(), hint: error.hint() }
            }
            pylair_core::history::Error::Removed { .. } => {
                Self { kind: "unknown_session", message: error.message(), hint: error.hint() }
            }
            pylair_core::history::Error::BadArgument(_) => {
                Self { kind: "bad_argument", message: error.message(), hint: error.hint() }
            }
        }
    }
}

impl ToolError {
    /// The client took the request back before anything was done.
    pub fn cancelled() -> Self {
        Self {
            kind: "cancelled",
            message: "the request was cancelled before it began".to_owned(),
            hint: "nothing was done".to_owned(),
        }
    }

    pub fn into_result(self) -> CallToolResult {
        render::error(self.kind, &self.message, &self.hint)
    }
}

pub static TABLE: &[Tool] = &[
    Tool {
        name: "execute",
        title: "Run Python",
        description: "Run Python code in a persistent session, or inside a running app, and return what it printed, the value of the last expression \
                      and the traceback if it raised. Variables, imports and top-level await tasks survive between calls.",
        toolset: Toolset::Run,
        effect: Effect::RunsCode,
        input: input::<session::ExecuteArgs>,
        output: None,
        function: |call| Box::pin(session::execute(call)),
    },
    Tool {
        name: "run_file",
        title: "Run a Python file",
        description: "Run a file in a session as `python FILE ARGS` would (argv, __main__, __file__); its names stay for later cells.",
        toolset: Toolset::Run,
        effect: Effect::RunsCode,
        input: input::<session::RunFileArgs>,
        output: None,
        function: |call| Box::pin(session::run_file(call)),
    },
    Tool {
        name: "get_job",
        title: "Wait for a running cell",
        description: "Go on waiting for a cell that answered `running`, or stop it with cancel.",
        toolset: Toolset::Run,
        effect: Effect::Adds,
        input: input::<session::GetJobArgs>,
        output: None,
        function: |call| Box::pin(session::get_job(call)),
    },
    Tool {
        name: "interrupt",
        title: "Interrupt",
        description: "Stop what a session runs, or your calls in an app. Variables are kept.",
        toolset: Toolset::Run,
        effect: Effect::Ends,
        input: input::<session::InterruptArgs>,
        output: Some(schema::<core::Interrupted>),
        function: |call| Box::pin(session::interrupt(call)),
    },
    Tool {
        name: "open_session",
        title: "Open a session",
        description: "Open a new, isolated Python session and return its name and handle. Not needed for the default session, \
                      which the first execute opens. At most 200 sessions by default; one unused for 8 hours is closed.",
        toolset: Toolset::Run,
        effect: Effect::Adds,
        input: input::<session::OpenArgs>,
        output: Some(schema::<session::Opened>),
        function: |call| Box::pin(session::open(call)),
    },
    Tool {
        name: "restart_session",
        title: "Restart a session",
        description: "Start a session anew: a fresh interpreter, all variables gone, its name and settings kept.",
        toolset: Toolset::Run,
        effect: Effect::Ends,
        input: input::<session::RestartArgs>,
        output: Some(schema::<session::Restarted>),
        function: |call| Box::pin(session::restart(call)),
    },
    Tool {
        name: "close_session",
        title: "Close a session",
        description: "End a session and every process it started, or leave an app that was attached to.",
        toolset: Toolset::Run,
        effect: Effect::Ends,
        input: input::<session::CloseArgs>,
        output: Some(schema::<session::Closed>),
        function: |call| Box::pin(session::close(call)),
    },
    Tool {
        name: "undo",
        title: "Undo",
        description: "Set a session's variables back to where they were before its newest cell, or after a named one. \
                      Cells that came too quickly for a checkpoint each are undone together, and the answer names them. \
                      Files, databases and the network are not undone.",
        toolset: Toolset::Run,
        effect: Effect::TakesBack,
        input: input::<session::UndoArgs>,
        output: Some(schema::<core::Undone>),
        function: |call| Box::pin(session::undo(call)),
    },
    Tool {
        name: "branch_session",
        title: "Branch a session",
        description: "Make a second session out of one, with the same variables, to try something without risk.",
        toolset: Toolset::Run,
        effect: Effect::Adds,
        input: input::<session::BranchArgs>,
        output: Some(schema::<core::Status>),
        function: |call| Box::pin(session::branch(call)),
    },
    Tool {
        name: "save_session",
        title: "Save a session",
        description: "Save a session's variables to disk and say which could be saved and were verified; \
                      open_session(restore=…) brings them back.",
        toolset: Toolset::Run,
        effect: Effect::Adds,
        input: input::<session::TargetArgs>,
        output: Some(schema::<core::SaveReport>),
        function: |call| Box::pin(session::save(call)),
    },
    Tool {
        name: "get_history",
        title: "History",
        description: "Show what was run in a session, also a closed one: the newest cells with code, outcome, time, output, and \
                      what happened between them.",
        toolset: Toolset::Run,
        effect: Effect::Reads,
        input: input::<history::HistoryArgs>,
        output: Some(schema::<pylair_core::history::HistoryPage>),
        function: |call| Box::pin(history::get_history(call)),
    },
    Tool {
        name: "export_session",
        title: "Export a session",
        description: "Give a session's cells as a notebook, a script that runs, or a page. Undone cells are left out.",
        toolset: Toolset::Run,
        effect: Effect::Reads,
        input: input::<history::ExportArgs>,
        output: Some(schema::<history::Exported>),
        function: |call| Box::pin(history::export_session(call)),
    },
    Tool {
        name: "install_packages",
        title: "Install packages",
        description: "Install Python packages with uv or pip into a session's environment, or into one of its own if its \
                      interpreter belongs to the system. They can be imported at once.",
        toolset: Toolset::Run,
        effect: Effect::RunsCode,
        input: input::<packages::InstallArgs>,
        output: Some(schema::<pylair_core::packages::Installed>),
        function: |call| Box::pin(packages::install(call)),
    },
    Tool {
        name: "list_targets",
        title: "List targets",
        description: "List the live Python targets you can use: sessions, and apps (running programs to look into), with their state.",
        toolset: Toolset::Look,
        effect: Effect::Reads,
        input: input::<session::ListArgs>,
        output: Some(schema::<session::Targets>),
        function: |call| Box::pin(session::list(call)),
    },
    Tool {
        name: "inspect",
        title: "Inspect a value",
        description: "Show what is at a path: type, signature, structure, first and last items. Runs no property and changes nothing; \
                      works while a cell runs. Without a path, the variables, or what an app registered.",
        toolset: Toolset::Look,
        effect: Effect::Reads,
        input: input::<look::InspectArgs>,
        output: Some(schema::<look::Inspection>),
        function: |call| Box::pin(look::inspect(call)),
    },
    Tool {
        name: "read_source",
        title: "Read source",
        description: "Show the source of a function, class, method or module that lives in a target, also of what cells defined.",
        toolset: Toolset::Look,
        effect: Effect::Reads,
        input: input::<look::SourceArgs>,
        output: Some(schema::<look::Source>),
        function: |call| Box::pin(look::read_source(call)),
    },
    Tool {
        name: "dump_stacks",
        title: "Dump stacks",
        description: "Show what every thread of a session, app or any Python process (`pid:4711`) is doing: its stack with variables, \
                      who holds the GIL, and asyncio tasks with who waits for whom. Reads memory only: nothing is stopped or run.",
        toolset: Toolset::Look,
        effect: Effect::Reads,
        input: input::<stacks::StacksArgs>,
        output: Some(schema::<pylair_stacks::Stacks>),
        function: |call| Box::pin(stacks::dump_stacks(call)),
    },
    Tool {
        name: "attach",
        title: "Attach to a process",
        description: "Start a probe in a running CPython (3.8 or newer) that was not prepared for it, and return the target it is from now on. \
                      A thread of it is held for about a millisecond, others may wait some milliseconds while the probe loads.",
        toolset: Toolset::Look,
        effect: Effect::Adds,
        input: input::<attach::AttachArgs>,
        output: Some(schema::<attach::Attached>),
        function: |call| Box::pin(attach::attach(call)),
    },
    Tool {
        name: "complete_code",
        title: "Complete code",
        description: "Names, attributes, keys, arguments, modules and paths that could come at the cursor, from the live target.",
        toolset: Toolset::Extra,
        effect: Effect::Reads,
        input: input::<look::CompleteArgs>,
        output: Some(schema::<look::Completion>),
        function: |call| Box::pin(look::complete(call)),
    },
    Tool {
        name: "set_variable",
        title: "Set a variable",
        description: "Set a variable, attribute or item to a JSON value or the value of an expression.",
        toolset: Toolset::Look,
        effect: Effect::RunsCode,
        input: input::<session::SetArgs>,
        output: None,
        function: |call| Box::pin(session::set_variable(call)),
    },
    Tool {
        name: "call",
        title: "Call a function",
        description: "Call a function or method that lives in a target and return its result.",
        toolset: Toolset::Look,
        effect: Effect::RunsCode,
        input: input::<session::CallArgs>,
        output: None,
        function: |call| Box::pin(session::call(call)),
    },
    Tool {
        name: "read_logs",
        title: "Read logs",
        description: "Read the records that an app made with Python's logging, newest last, or wait for new ones.",
        toolset: Toolset::Look,
        effect: Effect::Reads,
        input: input::<app::LogsArgs>,
        output: Some(schema::<app::Logs>),
        function: |call| Box::pin(app::read_logs(call)),
    },
    Tool {
        name: "screenshot",
        title: "Screenshot",
        description: "See what an app looks like now, if it has said how to take its picture.",
        toolset: Toolset::Look,
        effect: Effect::RunsCode,
        input: input::<app::ScreenshotArgs>,
        output: None,
        function: |call| Box::pin(app::screenshot(call)),
    },
    Tool {
        name: "get_status",
        title: "Status",
        description: "Show the state of pylair itself, or of one target.",
        toolset: Toolset::Admin,
        effect: Effect::Reads,
        input: input::<admin::StatusArgs>,
        output: Some(schema::<admin::Status>),
        function: |call| Box::pin(admin::get_status(call)),
    },
    Tool {
        name: "run_tests",
        title: "Run tests",
        description: "Run pytest in your project, with nothing installed there. Every failure is recorded with its values and, where possible, frozen: execute(code, target=\"failure:ID\") runs in the failing frame.",
        toolset: Toolset::Tests,
        effect: Effect::RunsCode,
        input: input::<testing::RunArgs>,
        output: Some(schema::<testing::Ran>),
        function: |call| Box::pin(testing::run_tests(call)),
    },
    Tool {
        name: "list_failures",
        title: "List failures",
        description: "List recorded test failures, last seen first.",
        toolset: Toolset::Tests,
        effect: Effect::Reads,
        input: input::<failures::ListArgs>,
        output: Some(schema::<failures::Listed>),
        function: |call| Box::pin(failures::list(call)),
    },
    Tool {
        name: "get_failure",
        title: "Get a failure",
        description: "Show all that is known of a failure: frames with values, output, history, likely causes with their evidence, a next step, what was analysed, and whether it is frozen.",
        toolset: Toolset::Tests,
        effect: Effect::Reads,
        input: input::<failures::GetArgs>,
        output: Some(schema::<pylair_core::daemon::frozen::FailureDetail>),
        function: |call| Box::pin(failures::get(call)),
    },
    Tool {
        name: "debug_failure",
        title: "Debug a failure",
        description: "Record what you found out about a failure under one of the nine debugging rules, or its status. `resolved` is refused until its test has passed on changed code.",
        toolset: Toolset::Tests,
        effect: Effect::Adds,
        input: input::<failures::DebugArgs>,
        output: Some(schema::<Debugged>),
        function: |call| Box::pin(failures::debug(call)),
    },
    Tool {
        name: "analyze_failures",
        title: "Analyze failures",
        description: "Group failures, count them, show trends, places and likely causes, and say what to look at first.",
        toolset: Toolset::Tests,
        effect: Effect::Reads,
        input: input::<failures::AnalyzeArgs>,
        output: Some(schema::<Analysis>),
        function: |call| Box::pin(failures::analyze(call)),
    },
    Tool {
        name: "write_debug_prompt",
        title: "Write a debugging prompt",
        description: "Write a prompt for debugging a failure or a group, made of its evidence.",
        toolset: Toolset::Tests,
        effect: Effect::Reads,
        input: input::<failures::PromptArgs>,
        output: Some(schema::<Prompt>),
        function: |call| Box::pin(failures::write_prompt(call)),
    },
    Tool {
        name: "record_failure",
        title: "Record a failure",
        description: "Record a failure that no run reported.",
        toolset: Toolset::Extra,
        effect: Effect::Adds,
        input: input::<failures::RecordArgs>,
        output: Some(schema::<failures::Recorded>),
        function: |call| Box::pin(failures::record(call)),
    },
    Tool {
        name: "read_docs",
        title: "Read the manual",
        description: "Read how pylair is used with test failures, by topic.",
        toolset: Toolset::Admin,
        effect: Effect::Reads,
        input: input::<failures::DocsArgs>,
        output: Some(schema::<guide::Page>),
        function: |call| Box::pin(async move { failures::read_docs(&call) }),
    },
    Tool {
        name: "list_files",
        title: "List files",
        description: "List a directory of the session's workspace, without what .gitignore names and tools cache.",
        toolset: Toolset::Files,
        effect: Effect::Reads,
        input: input::<files::ListArgs>,
        output: Some(schema::<files::Listed>),
        function: |call| Box::pin(files::list(call)),
    },
    Tool {
        name: "read_file",
        title: "Read a file",
        description: "Read a file of the session's workspace: text in pages, PNG and JPEG as images, the rest as base64.",
        toolset: Toolset::Files,
        effect: Effect::Reads,
        input: input::<files::ReadArgs>,
        output: None,
        function: |call| Box::pin(files::read(call)),
    },
    Tool {
        name: "write_file",
        title: "Write a file",
        description: "Write a file in the session's workspace, at once and as a whole; missing directories are made.",
        toolset: Toolset::Files,
        effect: Effect::Ends,
        input: input::<files::WriteArgs>,
        output: Some(schema::<files::Wrote>),
        function: |call| Box::pin(files::write(call)),
    },
    Tool {
        name: "delete_file",
        title: "Delete a file",
        description: "Delete a file, a symlink or an empty directory of the session's workspace.",
        toolset: Toolset::Files,
        effect: Effect::Ends,
        input: input::<files::DeleteArgs>,
        output: Some(schema::<core_files::Deleted>),
        function: |call| Box::pin(files::delete(call)),
    },
];

/// The tool of this name, if the client is served it.
pub fn find(name: &str, selection: &Selection) -> Option<&'static Tool> {
    TABLE.iter().find(|tool| tool.name == name && selection.includes(tool))
}

static LISTED: LazyLock<Vec<rmcp::model::Tool>> = LazyLock::new(|| TABLE.iter().map(describe).collect());

/// The tools as MCP lists them, in the order of the table.
pub fn listed(selection: &Selection) -> Vec<rmcp::model::Tool> {
    let included = TABLE.iter().zip(&*LISTED).filter(|(tool, _)| selection.includes(tool));
    let listed = included.map(|(tool, listed)| match tool.beyond_looking().filter(|_| selection.readonly) {
        Some(argument) => only_looking(tool, listed.clone(), argument),
        None => listed.clone(),
    });
    listed.collect()
}

/// A tool as it is listed where it only looks.
fn only_looking(tool: &Tool, mut listed: rmcp::model::Tool, argument: &str) -> rmcp::model::Tool {
    let mut schema = (*listed.input_schema).clone();
    if let Some(serde_json::Value::Object(properties)) = schema.get_mut("properties") {
        properties.remove(argument);
    }
    listed.input_schema = Arc::new(schema);
    listed.annotations = Some(annotations(tool, Effect::Reads));
    listed
}

fn annotations(tool: &Tool, effect: Effect) -> ToolAnnotations {
    ToolAnnotations::with_title(tool.title)
        .read_only(effect == Effect::Reads)
        .destructive(matches!(effect, Effect::RunsCode | Effect::Ends | Effect::TakesBack))
        .idempotent(matches!(effect, Effect::Reads | Effect::Ends))
        .open_world(effect == Effect::RunsCode)
}

fn describe(tool: &Tool) -> rmcp::model::Tool {
    let mut described = rmcp::model::Tool::new(tool.name, tool.description, tool.input_schema())
        .with_annotations(annotations(tool, tool.effect));
    if let Some(output) = tool.output {
        described = described.with_raw_output_schema(Arc::new(output()));
    }
    described
}

/// An input schema: leaving an argument out is how nothing is said, so no type has to name `null`.
fn input<T: JsonSchema>() -> JsonObject {
    fn without_null(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Object(object) => {
                if let Some(serde_json::Value::Array(types)) = object.get_mut("type") {
                    types.retain(|kind| kind != "null");
                    if let [only] = types.as_slice() {
                        object["type"] = only.clone();
                    }
                }
                if let Some(serde_json::Value::Array(choices)) = object.get_mut("enum") {
                    choices.retain(|choice| !choice.is_null());
                }
                object.values_mut().for_each(without_null);
            }
            serde_json::Value::Array(items) => items.iter_mut().for_each(without_null),
            _ => {}
        }
    }
    let mut schema = serde_json::Value::Object(short_schema::<T>(Contract::Deserialize));
    without_null(&mut schema);
    match schema {
        serde_json::Value::Object(schema) => schema,
        _ => JsonObject::new(),
    }
}

/// An output schema: of what is said, which is not always what could be read back.
fn schema<T: JsonSchema>() -> JsonObject {
    short_schema::<T>(Contract::Serialize)
}

/// A schema as short as it can be said: models pay for every word, and validators stumble over `format: uint64`.
fn short_schema<T: JsonSchema>(contract: Contract) -> JsonObject {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.contract = contract;
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    simplify(&mut schema);
    match schema {
        serde_json::Value::Object(mut object) => {
            object.remove("title");
            object.remove("description");
            object.entry("type").or_insert_with(|| "object".into());
            object.entry("properties").or_insert_with(|| serde_json::json!({}));
            object
        }
        _ => JsonObject::new(),
    }
}

fn simplify(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(object) => {
            // Other names are understood and not advertised.
            object.remove(arguments::ALSO);
            for key in ["format", "default"] {
                // A property may have such a name; a keyword's value is no object.
                if object.get(key).is_some_and(|value| !value.is_object()) {
                    object.remove(key);
                }
            }
            // What every number of its kind has says nothing.
            if object.get("minimum") == Some(&0.into()) {
                object.remove("minimum");
            }
            if object.get("maximum").is_some_and(|most| *most == u8::MAX || *most == u16::MAX) {
                object.remove("maximum");
            }
            // "Anything" is said by leaving it out: validators of single-type dialects stumble over a bare `true`.
            for key in ["items", "additionalProperties"] {
                if object.get(key) == Some(&serde_json::Value::Bool(true)) {
                    object.remove(key);
                }
            }
            if let Some(serde_json::Value::Object(properties)) = object.get_mut("properties") {
                for property in properties.values_mut().filter(|property| **property == true) {
                    *property = serde_json::json!({});
                }
            }
            object.values_mut().for_each(simplify);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(simplify),
        _ => {}
    }
}

/// Arguments as the tool wants them, or what is wrong with them.
fn parse<T: DeserializeOwned + JsonSchema>(call: &Call<'_>) -> Result<T, ToolError> {
    let bad = |message: Option<String>, error: Option<serde_json::Error>| {
        let schema = arguments::schema::<T>();
        let message = message.or_else(|| arguments::wrong(&schema, &call.arguments)).unwrap_or_else(|| {
            let why = error.map(|error| format!(": {error}")).unwrap_or_default();
            format!("the arguments of {} are not valid{why}", call.tool)
        });
        let hint = format!("{} takes {}", call.tool, arguments::takes(&schema));
        ToolError { kind: "bad_argument", message, hint }
    };
    let given = serde_json::from_value(serde_json::Value::Object(call.arguments.clone()));
    let given = given.map_err(|error| bad(None, Some(error)))?;
    let listed = LISTED.iter().find(|tool| tool.name == call.tool);
    let beyond = listed.and_then(|tool| arguments::beyond(&tool.input_schema, &call.arguments));
    match beyond {
        Some(wrong) => Err(bad(Some(wrong), None)),
        None => Ok(given),
    }
}

#[cfg(test)]
mod tests {
    use pylair_core::audit::deed;

    use super::*;
    use pylair_core::caller::Scope;

    #[test]
    fn readonly_leaves_only_tools_that_read() {
        let selection = Selection::parse(Some("all"), true, Door::Bridge).unwrap();
        let names: Vec<_> = listed(&selection).iter().map(|tool| tool.name.to_string()).collect();
        for name in ["list_targets", "get_status", "list_files", "read_file", "screenshot", "get_job"] {
            assert!(names.iter().any(|listed| listed == name), "{name} in {names:?}");
        }
        for name in ["execute", "write_file", "delete_file"] {
            assert!(find(name, &selection).is_none(), "{name}");
        }
        assert!(selection.is_readonly_for_files());
        for tool in listed(&selection) {
            assert_eq!(tool.annotations.unwrap().read_only_hint, Some(true), "{}", tool.name);
        }
    }

    #[test]
    fn what_goes_beyond_looking_is_neither_listed_nor_taken_where_nothing_is_changed() {
        let selection = |readonly| Selection::parse(Some("all"), readonly, Door::Bridge).unwrap();
        for (name, argument) in LOOK_WITHOUT {
            let takes = |readonly| {
                let listed = listed(&selection(readonly)).into_iter().find(|tool| tool.name == name).unwrap();
                listed.input_schema["properties"].get(argument).is_some()
            };
            assert!(takes(false) && !takes(true), "{name}");
            let tool = find(name, &selection(true)).unwrap();
            let given = |value: serde_json::Value| JsonObject::from_iter([(argument.to_owned(), value)]);
            let is_refused = |readonly, value| tool.refuse_beyond_looking(&selection(readonly), &given(value)).is_err();
            assert!(
                is_refused(true, true.into()) && !is_refused(true, false.into()) && !is_refused(false, true.into())
            );
        }
    }

    #[test]
    fn every_tool_says_what_it_needs_and_only_what_changes_nothing_needs_read() {
        for tool in TABLE {
            let scope = rights::of_tool(tool.name).unwrap_or_else(|| panic!("{} is missing in rights.rs", tool.name));
            assert!(scope != Scope::Read || tool.only_reads(), "{} changes something", tool.name);
            assert!(scope != Scope::Run || !tool.only_reads(), "{} changes nothing", tool.name);
        }
    }

    #[test]
    fn what_may_be_left_out_is_not_required() {
        let required = |name: &str| {
            let tool = TABLE.iter().find(|tool| tool.name == name).unwrap();
            tool.input_schema().get("required").cloned().unwrap_or_default()
        };
        assert_eq!(required("run_tests"), serde_json::Value::Null);
        assert_eq!(required("open_session"), serde_json::Value::Null);
        assert_eq!(required("debug_failure"), serde_json::json!(["id"]));
        assert_eq!(required("execute"), serde_json::json!(["code"]));
    }

    #[test]
    fn toolsets_are_chosen_by_name() {
        let select = |tools, door| Selection::parse(tools, false, door).unwrap();
        let names = |tools| listed(&select(Some(tools), Door::Bridge)).len();
        assert_eq!(names("all"), TABLE.len());
        let of = |toolset| TABLE.iter().filter(|tool| tool.toolset == toolset).count();
        assert_eq!(names("look, admin"), of(Toolset::Look) + of(Toolset::Admin));
        assert_eq!(
            Selection::parse(Some("walk"), false, Door::Http).unwrap_err(),
            "there is no toolset `walk`; there are run, look, tests, admin, files, extra and all"
        );
    }

    #[test]
    fn files_are_served_over_http_and_to_whoever_asks_for_them() {
        let serves = |tools, door| find("write_file", &Selection::parse(tools, false, door).unwrap()).is_some();
        assert!(serves(None, Door::Http) && !serves(None, Door::Bridge));
        assert!(serves(Some("files"), Door::Bridge) && serves(Some("all"), Door::Bridge));
        let only_files = Selection::parse(Some("files"), false, Door::Http).unwrap();
        assert!(only_files.is_readonly() && !only_files.is_readonly_for_files());
    }

    #[test]
    fn every_tool_is_annotated_and_described_briefly() {
        for tool in listed(&Selection::parse(Some("all"), false, Door::Http).unwrap()) {
            let annotations = tool.annotations.unwrap();
            assert!(annotations.read_only_hint.is_some() && annotations.destructive_hint.is_some(), "{}", tool.name);
            assert!(tool.description.unwrap().len() < 300, "{}", tool.name);
            assert_eq!(tool.input_schema["type"], "object", "{}", tool.name);
        }
    }

    /// What a model reads of every tool before it has done anything.
    fn tokens(tools: &str) -> usize {
        let listed = listed(&Selection::parse(Some(tools), false, Door::Bridge).unwrap());
        let read = |tool: &rmcp::model::Tool| serde_json::json!({"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema});
        let text = serde_json::to_string(&listed.iter().map(read).collect::<Vec<_>>()).unwrap();
        tiktoken_rs::cl100k_base().unwrap().encode_ordinary(&text).len()
    }

    #[test]
    fn the_tools_cost_a_model_little() {
        let (usual, all) = (tokens("run,look,tests,admin"), tokens("all"));
        assert!(usual <= 4_500 && all <= 6_000, "{usual} tokens by default, {all} in all");
    }

    #[test]
    fn schemas_hold_nothing_that_validators_stumble_over() {
        let text = serde_json::to_string(&listed(&Selection::parse(Some("all"), false, Door::Http).unwrap())).unwrap();
        // Of a format only the keyword, whose value is text, does harm: an argument may be called so.
        for word in ["\"format\":\"", "$schema", "$ref", "$defs", "\"items\":true", "\"additionalProperties\":true"] {
            assert!(!text.contains(word), "{word} in {text}");
        }
    }

    /// A tool that changes something, or an argument, which nobody has thought about fails here.
    #[test]
    fn every_tool_says_what_it_did_with_every_argument() {
        for tool in TABLE {
            let known = deed::recorded(tool.name).map(Vec::from_iter);
            assert!(known.is_some() || tool.only_reads(), "{} changes something and is not recorded", tool.name);
            let Some(known) = known else { continue };
            let schema = tool.input_schema();
            let properties =
                schema.get("properties").and_then(serde_json::Value::as_object).cloned().unwrap_or_default();
            for argument in properties.keys() {
                assert!(known.contains(&argument.as_str()), "{}: what of `{argument}`?", tool.name);
            }
        }
    }
}
