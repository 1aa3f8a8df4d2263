//! `pylair serve`: the daemon in the foreground with the HTTP door open.

use super::{
    Exit, Failure, Surroundings,
    client::Client,
    complain,
    daemon::{LOGGED, THREADS_TIMEOUT, runtime},
    log_to_stderr, say,
};
use crate::{
    cli::ServeArgs,
    config::{Flags, HttpFlags},
    lifecycle::{self, Run},
};
use pylair_core::{caller::Door, daemon::DaemonStatus};
use pylair_mcp::tools::Selection;
use pylair_os::inherited;

pub fn serve(args: &ServeArgs, surroundings: Surroundings) -> Result<Exit, Failure> {
    log_to_stderr(LOGGED);
    let descriptors = inherited::Descriptors::hide()?;
    let (config, http) = surroundings.configs(&Flags {
        host: args.host.clone(),
        port: args.port,
        http: HttpFlags {
            behind_proxy: args.behind_proxy,
            allowed_hosts: args.allowed_host.clone(),
            tls_cert: args.tls_cert.clone(),
            tls_key: args.tls_key.clone(),
        },
        tools: args.tools.tools.clone(),
        readonly: args.tools.readonly,
    })?;
    let selection = Selection::parse(config.caller.tools.as_deref(), config.caller.readonly, Door::Http)
        .map_err(|message| Failure::new(message, "see `pylair serve --help`"))?;
    replace_idle_daemon(&surroundings)?;
    let token = surroundings.places.token();
    let name = http.allowed_hosts.first().map_or("localhost", |name| name.split(':').next().unwrap_or(name)).to_owned();
    let run = Run { config, http, places: surroundings.places, selection, foreground: true };
    let runtime = runtime()?;
    let served = runtime.block_on(async {
        let opened = lifecycle::open(run, &surroundings.program).await?;
        descriptors.close();
        // All addresses of a machine are no address to ask; its name is.
        let address = opened.address.clone().unwrap_or_default();
        let address = address.replace("//0.0.0.0:", &format!("//{name}:")).replace("//[::]:", &format!("//{name}:"));
        let token = token.display();
        say(&format!(
            "MCP endpoint:  {address}/mcp\n\
             Token:         {token}\n\
             Claude Code:   claude mcp add --transport http pylair {address}/mcp --header \"Authorization: Bearer $(cat {token})\"\n\
             Codex:         PYLAIR_TOKEN=$(cat {token}) codex mcp add pylair --url {address}/mcp --bearer-token-env-var PYLAIR_TOKEN\n\
             Over stdio no token and no server are needed: claude mcp add pylair -- pylair mcp"
        ))?;
        opened.run().await?;
        Ok(Exit::Ok)
    });
    runtime.shutdown_timeout(THREADS_TIMEOUT);
    served
}

/// A daemon that was started on demand and holds nothing makes room; one that holds sessions does not.
fn replace_idle_daemon(surroundings: &Surroundings) -> Result<(), Failure> {
    let Some(mut client) = Client::connect(surroundings)? else { return Ok(()) };
    let status: DaemonStatus = client.get("/api/status")?;
    if status.sessions == 0 && status.bridges == 0 && status.http.is_none() {
        drop(client);
        super::daemon::stop(surroundings)?;
        return Ok(());
    }
    let what = match &status.http {
        Some(address) => format!("it serves {address}/mcp"),
        None => format!("it holds {} sessions and serves {} clients", status.sessions, status.bridges),
    };
    complain(&Failure::new(
        format!("a daemon is running already (pid {}): {what}", status.pid),
        "use it, or end it and its sessions with `pylair stop` and start again",
    ));
    std::process::exit(Exit::Failed as i32);
}
