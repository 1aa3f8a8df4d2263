//! Which scope a call needs: the one place that decides, asked by every door before anything is done.
//!
//! What a call names is judged here; what it turns out to mean (the profile of the session it reaches) the core judges again,
//! with `Session::open_to` and in `Sessions::open`. What is not in these tables needs `admin`. Where the settings have a floor, what
//! needs `admin` is refused to everybody, because that is what leaves a sandbox.

use serde_json::{Map, Value};

use crate::caller::{Caller, Door, Scope};
use pylair_sandbox::{Profile, rules::FLOOR_HINT};

/// Why a call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.message())]
pub struct Denied {
    pub what: &'static str,
    pub needs: Scope,
    /// The floor of the settings, if that is why.
    pub floor: Option<Profile>,
}

impl Denied {
    pub const KIND: &str = "not_allowed";

    fn message(&self) -> String {
        let what = self.what;
        match self.floor {
            Some(floor) => {
                format!("nobody may {what}: the settings confine every caller to the profile `{}`", floor.name())
            }
            None => format!("this caller may not {what}"),
        }
    }

    pub fn hint(&self) -> String {
        if self.floor.is_some() {
            return FLOOR_HINT.to_owned();
        }
        let scope = self.needs.name();
        format!(
            "it needs the scope `{scope}`; whoever runs this server makes tokens with `pylair token add NAME --scope {scope}`"
        )
    }
}

/// Tools by the least they need, and what they do in the words of a refusal.
const TOOLS: &[(Scope, &str, &[&str])] = &[
    (
        Scope::Read,
        "look at sessions",
        &[
            "complete_code",
            "dump_stacks",
            "export_session",
            "get_history",
            "get_status",
            "inspect",
            "list_files",
            "list_targets",
            "read_docs",
            "read_file",
            "read_source",
        ],
    ),
    (
        Scope::Run,
        "run code or change sessions",
        &[
            "branch_session",
            "call",
            "close_session",
            "delete_file",
            "execute",
            "get_job",
            "install_packages",
            "interrupt",
            "open_session",
            "restart_session",
            "run_file",
            "save_session",
            "set_variable",
            "undo",
            "write_file",
        ],
    ),
    (
        Scope::Tests,
        "run tests or work on failures",
        &[
            "analyze_failures",
            "debug_failure",
            "get_failure",
            "list_failures",
            "record_failure",
            "run_tests",
            "write_debug_prompt",
        ],
    ),
    (Scope::Admin, "reach processes outside of pylair", &["attach", "read_logs", "screenshot"]),
];

const OTHER_PYTHON: &str = "choose an interpreter by its path; name a version, such as 3.12";

/// Routes of the HTTP door by the tool that does the same. `/mcp` judges each call by itself.
const ROUTES: &[(&str, &str, &str)] = &[
    ("GET", "/api/status", "get_status"),
    ("POST", "/api/execute", "execute"),
    ("POST", "/api/interrupt", "interrupt"),
    ("GET", "/api/sessions", "list_targets"),
    ("POST", "/api/sessions", "open_session"),
    ("POST", "/api/sessions/close", "close_session"),
    ("POST", "/api/sessions/find", "execute"),
    ("GET", "/api/output/", "get_history"),
    ("GET", "/api/history", "get_history"),
    ("GET", "/api/export", "export_session"),
    ("GET", "/api/events", "get_history"),
    ("POST", "/api/complete", "complete_code"),
    ("GET", "/api/failures", "list_failures"),
    ("POST", "/api/failures", "record_failure"),
    ("GET", "/api/failures/", "get_failure"),
    ("POST", "/api/failures/", "debug_failure"),
    ("POST", "/api/debug", "debug_failure"),
    ("GET", "/api/analytics", "analyze_failures"),
    ("GET", "/api/prompt", "write_debug_prompt"),
    ("GET", "/api/prompts/", "write_debug_prompt"),
    ("GET", "/api/docs", "read_docs"),
    ("GET", "/api/groups", "analyze_failures"),
    ("GET", "/api/groups/", "analyze_failures"),
    ("POST", "/api/groups/", "debug_failure"),
    ("GET", "/api/runs", "list_failures"),
    ("GET", "/api/runs/", "get_failure"),
    ("POST", "/api/runs/", "record_failure"),
    ("POST", "/files/upload", "write_file"),
    ("GET", "/files/download/", "read_file"),
];

/// The least a tool needs, whatever its arguments; none for one that nobody has thought about.
pub fn of_tool(tool: &str) -> Option<Scope> {
    TOOLS.iter().find(|(_, _, tools)| tools.contains(&tool)).map(|(scope, _, _)| *scope)
}

/// Whether a caller could call a tool at all: what it is shown.
pub fn could_call(caller: &Caller, tool: &str) -> bool {
    let least = of_tool(tool).unwrap_or(Scope::Admin);
    if least == Scope::Admin && caller.floor.is_some() {
        return false;
    }
    is_at_home(caller) || is_for_all(tool) || is_for_tests(caller, tool) || caller.may(least)
}

/// Whoever came with a token is judged here. The local sockets are the owner's own, for whom `--readonly` is a choice of tools.
fn is_at_home(caller: &Caller) -> bool {
    caller.may(Scope::Admin) || caller.door != Door::Http
}

/// How things are used may be read by whoever has any token.
fn is_for_all(tool: &str) -> bool {
    tool == "read_docs"
}

/// Who may run tests may wait for them; that it is no other job, `get_job` sees to.
fn is_for_tests(caller: &Caller, tool: &str) -> bool {
    tool == "get_job" && caller.may(Scope::Tests)
}

/// The scope that this call needs, and for what.
pub fn required(tool: &str, arguments: &Map<String, Value>) -> Denied {
    let text = |name: &str| arguments.get(name).and_then(Value::as_str);
    let given = |name: &str| arguments.get(name).is_some_and(|value| !is_nothing(value));
    let admin = |what| Denied { what, needs: Scope::Admin, floor: None };
    let Some((scope, what, _)) = TOOLS.iter().find(|(_, _, tools)| tools.contains(&tool)) else {
        return admin("do that");
    };
    if text("target").is_some_and(is_outside) || given("pid") {
        return admin("reach processes outside of pylair");
    }
    match tool {
        "open_session" => {
            let from_cwd = arguments.get("from").and_then(|from| from.get("cwd"));
            if profile_of(arguments) == Some("open") {
                return admin("open sessions without a sandbox");
            }
            if given("launcher") {
                return admin("start sessions with a launcher");
            }
            // Files of the machine are looked at to find an interpreter, and what it is installed in is shown to the session.
            if text("python").is_some_and(|python| !is_plain_python(python)) {
                return admin(OTHER_PYTHON);
            }
            if given("cwd") || from_cwd.is_some_and(|cwd| !is_nothing(cwd)) {
                return admin("choose the directory of a session");
            }
            if given("preload") {
                return admin("preload modules");
            }
            let env = arguments.get("env").and_then(Value::as_object);
            if env.is_some_and(|env| env.keys().any(|name| shapes_start(name))) {
                return admin("set environment variables that change how an interpreter starts");
            }
        }
        // Without a word about it they run in a sandbox: see `Daemon::run_tests`.
        "run_tests" if profile_of(arguments) == Some("open") => {
            return admin("run tests without a sandbox");
        }
        "run_tests" if text("python").is_some_and(|python| !is_plain_python(python)) => {
            return admin(OTHER_PYTHON);
        }
        _ => {}
    }
    Denied { what, needs: *scope, floor: None }
}

/// Lets a call pass, or says what is missing.
pub fn check(caller: &Caller, tool: &str, arguments: &Map<String, Value>) -> Result<(), Denied> {
    if caller.floor.is_some() {
        check_floor(caller, tool, arguments)?;
    }
    if is_at_home(caller) || is_for_all(tool) || is_for_tests(caller, tool) {
        return Ok(());
    }
    let required = required(tool, arguments);
    if caller.may(required.needs) { Ok(()) } else { Err(required) }
}

/// Refuses what leaves a sandbox, also to those at home.
fn check_floor(caller: &Caller, tool: &str, arguments: &Map<String, Value>) -> Result<(), Denied> {
    let mut arguments = arguments.clone();
    if caller.door != Door::Http {
        // Where a local caller is says nothing about where its session is to be.
        arguments.remove("from");
    }
    let required = required(tool, &arguments);
    if required.needs != Scope::Admin || caller.door == Door::Http && !caller.has(Scope::Admin) {
        return Ok(());
    }
    Err(Denied { floor: caller.floor, ..required })
}

/// The tool that a route stands for.
pub fn route(method: &str, path: &str) -> Option<&'static str> {
    let is_meant = |known: &str| known == path || (known.ends_with('/') && path.starts_with(known));
    ROUTES.iter().find(|(verb, known, _)| *verb == method && is_meant(known)).map(|(_, _, tool)| *tool)
}

/// The profile that a call names, alone or with rules.
fn profile_of(arguments: &Map<String, Value>) -> Option<&str> {
    let sandbox = arguments.get("sandbox")?;
    sandbox.as_str().or_else(|| sandbox.get("profile")?.as_str())
}

/// Whether a variable changes how an interpreter starts.
pub fn shapes_start(name: &str) -> bool {
    ["PYTHON", "LD_", "GLIBC_"].iter().any(|prefix| name.starts_with(prefix))
}

/// A target that is no session.
pub fn is_outside(target: &str) -> bool {
    ["app:", "pid:", "failure:"].iter().any(|kind| target.trim().starts_with(kind))
}

/// A version or the name of a command that is an interpreter, as opposed to a path.
pub fn is_plain_python(python: &str) -> bool {
    let rest = python.strip_prefix("python").unwrap_or(python);
    rest.chars().all(|c| c.is_ascii_digit() || c == '.') && rest != "." && rest != ".."
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::settings::CallerSettings;

    fn needs(tool: &str, arguments: &Value) -> Scope {
        required(tool, arguments.as_object().unwrap()).needs
    }

    #[test]
    fn what_leaves_the_sandbox_needs_admin() {
        for (tool, arguments) in [
            ("open_session", json!({"sandbox": "open"})),
            ("open_session", json!({"sandbox": {"profile": "open", "memory_mb": 100}})),
            ("open_session", json!({"launcher": "ssh host"})),
            ("open_session", json!({"python": "/tmp/evil"})),
            ("open_session", json!({"python": "../x"})),
            ("open_session", json!({"python": "evil"})),
            ("open_session", json!({"python": ".."})),
            ("open_session", json!({"cwd": "/home/me"})),
            ("open_session", json!({"from": {"cwd": "/home/me"}})),
            ("open_session", json!({"preload": ["numpy"]})),
            ("open_session", json!({"env": {"PYTHONPATH": "/x"}})),
            ("open_session", json!({"env": {"LD_PRELOAD": "/x.so"}})),
            ("execute", json!({"code": "1", "target": "app:web"})),
            ("inspect", json!({"target": " app:web@1"})),
            ("execute", json!({"code": "1", "target": "failure:k3n7"})),
            ("dump_stacks", json!({"target": "pid:1"})),
            ("attach", json!({"pid": 1})),
            ("run_tests", json!({"sandbox": "open"})),
            ("run_tests", json!({"sandbox": {"profile": "open"}})),
            ("run_tests", json!({"python": "/tmp/evil"})),
            ("run_tests", json!({"target": "app:web"})),
            ("read_logs", json!({"target": "main"})),
            ("a tool nobody has thought about", json!({})),
        ] {
            assert_eq!(needs(tool, &arguments), Scope::Admin, "{tool} {arguments}");
        }
    }

    fn local(door: Door, scope: Scope) -> Caller {
        Caller {
            owner: "me".into(),
            client: "test".to_owned(),
            door,
            scopes: vec![scope],
            cwd: None,
            env: std::sync::Arc::default(),
            default_session: crate::caller::DefaultSession::Main,
            sender: crate::order::Sender::new(crate::order::SenderId::new_bridge()),
            credential: None,
            floor: Some(Profile::Sealed),
            settings: std::sync::Arc::new(CallerSettings::usual()),
            program: None,
        }
    }

    #[test]
    fn a_floor_holds_for_everybody() {
        for door in [Door::Bridge, Door::Cli, Door::Http] {
            let caller = local(door, Scope::Admin);
            for (tool, arguments) in [
                ("open_session", json!({"sandbox": "open"})),
                ("open_session", json!({"cwd": "/home/me"})),
                ("open_session", json!({"preload": ["numpy"]})),
                ("open_session", json!({"python": "/tmp/evil"})),
                ("open_session", json!({"env": {"LD_PRELOAD": "/x.so"}})),
                ("run_tests", json!({"sandbox": "open"})),
                ("attach", json!({"pid": 1})),
                ("execute", json!({"code": "1", "target": "app:web"})),
                ("dump_stacks", json!({"target": "pid:1"})),
            ] {
                let denied = check(&caller, tool, arguments.as_object().unwrap()).unwrap_err();
                let (message, hint) = (denied.to_string(), denied.hint());
                assert!(message.contains("`sealed`") && hint.contains("`floor`"), "{tool}: {message}; {hint}");
            }
            for (tool, arguments) in [
                ("open_session", json!({"sandbox": {"memory_mb": 100}})),
                ("execute", json!({"code": "1"})),
                ("run_tests", json!({})),
            ] {
                check(&caller, tool, arguments.as_object().unwrap()).unwrap();
            }
            assert!(!could_call(&caller, "attach") && could_call(&caller, "execute"));
        }
        let from_here = json!({"from": {"cwd": "/home/me"}});
        check(&local(Door::Cli, Scope::Admin), "open_session", from_here.as_object().unwrap()).unwrap();
        // A choice of tools stays one.
        check(&local(Door::Bridge, Scope::Read), "list_failures", &Map::new()).unwrap();
        // A token without rights to lose is told what it lacks.
        let denied = check(&local(Door::Http, Scope::Run), "attach", &Map::new()).unwrap_err();
        assert!(denied.hint().contains("`admin`"), "{}", denied.hint());
    }

    #[test]
    fn what_stays_inside_needs_what_its_tool_needs() {
        for (tool, arguments, scope) in [
            ("open_session", json!({}), Scope::Run),
            (
                "open_session",
                json!({"sandbox": "sealed", "python": "3.12", "env": {"A": "b"}, "cwd": null}),
                Scope::Run,
            ),
            ("open_session", json!({"python": "python3.11", "preload": []}), Scope::Run),
            // Rules on top of a profile are bounded by what the server allows, in `sandbox`.
            ("open_session", json!({"sandbox": {"profile": "workspace", "allow_net": ["pypi.org:443"]}}), Scope::Run),
            ("open_session", json!({"sandbox": {"memory_mb": 100}}), Scope::Run),
            ("execute", json!({"code": "1", "target": "session:main"}), Scope::Run),
            ("inspect", json!({"path": "x"}), Scope::Read),
            ("dump_stacks", json!({"target": "main"}), Scope::Read),
            ("run_tests", json!({}), Scope::Tests),
            ("run_tests", json!({"target": "main", "python": "3.12"}), Scope::Tests),
            ("run_tests", json!({"sandbox": "sealed"}), Scope::Tests),
            ("run_tests", json!({"sandbox": {"profile": "sealed"}}), Scope::Tests),
            ("list_failures", json!({}), Scope::Tests),
        ] {
            assert_eq!(needs(tool, &arguments), scope, "{tool} {arguments}");
        }
    }

    #[test]
    fn routes_stand_for_tools_and_unknown_ones_for_none() {
        assert_eq!(route("GET", "/api/output/abc-1"), Some("get_history"));
        assert_eq!(route("GET", "/api/sessions"), Some("list_targets"));
        assert_eq!(route("POST", "/api/sessions"), Some("open_session"));
        assert_eq!(route("POST", "/api/stop"), None);
        assert_eq!(route("GET", "/api/statusx"), None);
        for (_, _, tool) in ROUTES {
            assert!(of_tool(tool).is_some(), "{tool}");
        }
    }
}
