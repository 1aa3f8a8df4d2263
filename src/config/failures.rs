//! Settings of test runs and failures: where they are kept, and how much of them.

use std::{path::PathBuf, time::Duration};

use super::{Error, Resolver};
use pylair_core::settings::{FailuresSettings, FrozenLimits};
use pylair_failures::{Database, Git, Limits};

const EXPECTED: &str = "`postgres://…`, or the path of a file for SQLite";

pub(super) fn failures(resolver: &mut Resolver) -> Result<FailuresSettings, Error> {
    let usual = Limits::default();
    let text = resolver.pick("database", None, |file| file.database.clone(), String::new(), EXPECTED)?;
    let address = text.strip_prefix("sqlite://").or(text.strip_prefix("sqlite:")).unwrap_or(&text);
    let database = match address {
        "" => None,
        address if address.starts_with("postgres://") || address.starts_with("postgresql://") => {
            let shown = pylair_failures::without_password(address);
            // `doctor` and `get_status` show settings, and nobody is to read the password there.
            resolver
                .settings
                .iter_mut()
                .filter(|setting| setting.key == "database")
                .for_each(|setting| setting.value.clone_from(&shown));
            Some(Database::Postgres(address.to_owned()))
        }
        path if path.starts_with('/') => Some(Database::Sqlite(PathBuf::from(path))),
        _ => {
            let shown = pylair_failures::without_password(&text);
            return Err(resolver.invalid("database", &shown, EXPECTED));
        }
    };
    let day = Duration::from_hours(24);
    let days = resolver.pick(
        "failures_days",
        None,
        |file| file.failures_days,
        usual.max_age.as_secs() / day.as_secs(),
        "days",
    )?;
    let kept =
        resolver.pick("failures_kept", None, |file| file.failures_kept, usual.max_failures, "a number of failures")?;
    let megabytes = resolver.pick("failures_mb", None, |file| file.failures_mb, usual.max_bytes >> 20, "megabytes")?;
    let limits = Limits {
        max_age: day.saturating_mul(u32::try_from(days.max(1)).unwrap_or(u32::MAX)),
        max_failures: kept.max(1),
        max_bytes: megabytes.max(1).saturating_mul(1 << 20),
    };
    let git = Git {
        path: resolver.env.get("PATH").map(Into::into),
        scratch: resolver.env.get("TMPDIR").map_or_else(|| "/tmp".into(), PathBuf::from),
    };
    Ok(FailuresSettings { database, limits, frozen: frozen(resolver)?, git })
}

fn frozen(resolver: &mut Resolver) -> Result<FrozenLimits, Error> {
    let usual = FrozenLimits::default();
    let copies =
        resolver.pick("frozen_failures", None, |file| file.frozen_failures, usual.copies, "a number of copies")?;
    let megabytes = resolver.pick("frozen_mb", None, |file| file.frozen_mb, usual.megabytes, "megabytes")?;
    let minutes =
        resolver.pick("frozen_minutes", None, |file| file.frozen_minutes, usual.age.as_secs() / 60, "minutes")?;
    Ok(FrozenLimits { copies, megabytes, age: Duration::from_secs(minutes.saturating_mul(60)) })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::Path};

    use super::*;
    use crate::config::{Flags, resolve};
    use pylair_core::settings::{Config, Places};

    fn config(database: &str) -> Result<Config, Error> {
        let env = BTreeMap::from([("PYLAIR_DATABASE".to_owned(), database.to_owned())]);
        Ok(resolve(&Flags::default(), &env, None, &Places::resolve(&BTreeMap::new(), 0))?.0)
    }

    #[test]
    fn a_database_is_a_server_or_a_file() {
        let places = Places::resolve(&BTreeMap::new(), 0);
        let of = |text: &str| config(text).map(|config| config.failures.database(&places));
        assert_eq!(of("").unwrap(), Database::Sqlite(places.failures()));
        assert_eq!(of("/srv/f.db").unwrap(), Database::Sqlite(Path::new("/srv/f.db").into()));
        assert_eq!(of("sqlite:///srv/f.db").unwrap(), Database::Sqlite(Path::new("/srv/f.db").into()));
        assert!(matches!(of("postgres://ann:pw@db/x").unwrap(), Database::Postgres(_)));
        assert!(of("mysql://ann:s3cret@db/x").is_err_and(|error| !error.to_string().contains("s3cret")));
        assert!(of("relative.db").is_err());
    }

    #[test]
    fn nobody_is_shown_the_password() {
        let config = config("postgres://ann:s3cret@db.example/x").unwrap();
        let shown = config.settings.iter().find(|setting| setting.key == "database").unwrap();
        assert_eq!(shown.value, "postgres://db.example/x");
    }
}
