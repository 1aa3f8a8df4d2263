//! `pylair token`: the tokens of the HTTP door. Works on the files; a running daemon sees the change with its next request.

use jiff::Timestamp;
use serde_json::json;

use super::{Exit, Failure, Surroundings, say};
use crate::cli::{JsonArgs, TokenAddArgs, TokenArgs, TokenCommand};
use pylair_core::caller::{Scope, own_owner};
use pylair_text::plain::{shown, with_causes};
use pylair_web::{
    token::{self, OWN, Wanted},
    visitors::read_uses,
};

impl From<token::Error> for Failure {
    fn from(error: token::Error) -> Self {
        Self::new(with_causes(&error), error.hint())
    }
}

pub fn token(args: &TokenArgs, surroundings: &Surroundings) -> Result<Exit, Failure> {
    let places = &surroundings.places;
    places.create()?;
    match &args.command {
        None => say(&token::load_or_create(&places.token())?)?,
        Some(TokenCommand::Rotate) => say(&token::rotate(&places.token())?)?,
        Some(TokenCommand::Add(args)) => add(args, surroundings)?,
        Some(TokenCommand::List(args)) => list(args, surroundings)?,
        Some(TokenCommand::Revoke { name }) => {
            token::revoke(places, name)?;
            say(&format!("the token {} opens nothing from now on", shown(name)))?;
        }
    }
    Ok(Exit::Ok)
}

fn add(args: &TokenAddArgs, surroundings: &Surroundings) -> Result<(), Failure> {
    let mut scopes: Vec<_> =
        Scope::ALL.into_iter().filter(|scope| args.scope.iter().any(|name| name == scope.name())).collect();
    scopes.dedup();
    let owner = token::owner_named(args.owner.as_deref().unwrap_or(&args.name));
    let lasts = args.expires.as_deref().map(token::parse_time).transpose()?;
    if lasts.is_some_and(|lasts| lasts.is_zero()) {
        let message =
            format!("a token that expires after {} would never open anything", args.expires.as_deref().unwrap_or("0"));
        return Err(Failure::new(
            message,
            "pass how long it is to last, such as --expires 30d, or leave --expires out".to_owned(),
        ));
    }
    say(&token::add(&surroundings.places, &Wanted { name: &args.name, owner: &owner, scopes: &scopes, lasts })?)
}

fn list(args: &JsonArgs, surroundings: &Surroundings) -> Result<(), Failure> {
    let places = &surroundings.places;
    let uses = read_uses(&places.token_uses());
    let used = |name: &str| uses.get(name).and_then(|at| Timestamp::from_second(*at).ok());
    let own = token::load_own(&places.token())?.map(|_| {
        json!({"name": OWN, "owner": own_owner(), "scopes": [Scope::Admin], "created": null, "expires": null, "last_used": used(OWN)})
    });
    let more = token::load(&places.tokens())?;
    let more = more.iter().map(|kept| {
        json!({
            "name": kept.name, "owner": kept.owner, "scopes": kept.scopes, "created": kept.created,
            "expires": kept.expires, "expired": kept.is_over(), "last_used": used(&kept.name),
        })
    });
    let tokens: Vec<_> = own.into_iter().chain(more).collect();
    if args.json {
        return say(&json!({ "tokens": tokens }).to_string());
    }
    let mut rows = vec![["NAME", "OWNER", "SCOPES", "EXPIRES", "LAST USED"].map(str::to_owned)];
    for token in &tokens {
        let text = |key: &str| token[key].as_str().map_or_else(|| "-".to_owned(), shown);
        let scopes: Vec<_> =
            token["scopes"].as_array().into_iter().flatten().filter_map(|scope| scope.as_str()).collect();
        let expires = if token["expired"] == true { "over".to_owned() } else { text("expires") };
        rows.push([text("name"), text("owner"), scopes.join(","), expires, text("last_used")]);
    }
    let widths = [0, 1, 2, 3, 4].map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    for row in rows {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        say(cells.join("  ").trim_end())?;
    }
    Ok(())
}
