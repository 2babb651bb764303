//! schemathesis sends what `docs/openapi.json` allows, and what it does not. Every answer must be described, and none may
//! be a failure of larder.

use tokio::process::Command;

use crate::live::Live;

/// Cases for each operation and phase.
const MAX_EXAMPLES: &str = "200";

pub(crate) async fn problems(live: &Live) -> Vec<String> {
    let Some(program) = std::env::var_os("LARDER_SCHEMATHESIS") else {
        return vec!["LARDER_SCHEMATHESIS names no program: run tests/long/run openapi".to_owned()];
    };
    let admin = live.larder.admin();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(program);
    command.current_dir(folder.path()).kill_on_drop(true).args(["run", &format!("{admin}/admin/v1/openapi.json")]);
    command.args(["--url", &admin, "--header", &format!("Authorization: Bearer {}", live.larder.token())]);
    let checks = [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "unsupported_method",
        "allow_header_conformance",
    ];
    command.args(["--checks", &checks.join(","), "--max-examples", MAX_EXAMPLES, "--seed", "7", "--no-color"]);
    let hooks = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/operators");
    command.env("PYTHONPATH", hooks).env("PYTHONDONTWRITEBYTECODE", "1").env("SCHEMATHESIS_HOOKS", "tar_bodies");
    command.args(["--continue-on-failure", "--request-timeout", "60", "--warnings", "off"]);
    let status = command.status().await.unwrap();
    let mut problems = Vec::new();
    if !status.success() {
        problems.push(format!("schemathesis ended with {status}"));
    }
    live.larder.get("/readyz").await.expect(200);
    problems
}
