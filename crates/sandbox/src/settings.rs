//! `[sandbox]` of the settings: what sessions have that ask for nothing, and what nobody gets more of. Read and checked by `config`, so that
//! a mistake is told when the daemon starts and not to whoever opens a session.

use serde::Deserialize;

use super::{
    Destination, Error, Profile, Rules,
    paths::{self, Protected},
    rules::{LIMITS, is_secret_variable},
};

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "toml::Table")]
pub struct Settings {
    /// What confined sessions have without asking; what callers without the right `admin` may ask for.
    pub defaults: Rules,
    pub max: Rules,
    /// Makes the profile of the defaults the least that any caller gets.
    pub is_floor: bool,
}

/// What is wrong with the settings, and where.
#[derive(Debug, thiserror::Error)]
#[error("in `[{section}]`: {error}")]
pub struct Wrong {
    section: &'static str,
    error: Error,
}

impl Wrong {
    /// The way out.
    pub fn hint(&self) -> &'static str {
        self.error.hint()
    }
}

const DEFAULTS: &str = "sandbox";
const MAX: &str = "sandbox.max";

impl TryFrom<toml::Table> for Settings {
    type Error = Wrong;

    fn try_from(mut table: toml::Table) -> Result<Self, Wrong> {
        let max = match table.remove("max") {
            None => Rules::default(),
            Some(toml::Value::Table(max)) => read(MAX, max)?,
            Some(_) => {
                let error = Error::BadRule { name: "max".to_owned(), expected: "a table with limits" };
                return Err(Wrong { section: DEFAULTS, error });
            }
        };
        let is_floor = match table.remove("floor") {
            None => false,
            Some(toml::Value::Boolean(is_floor)) => is_floor,
            Some(_) => {
                let error = Error::BadRule { name: "floor".to_owned(), expected: "`true` or `false`" };
                return Err(Wrong { section: DEFAULTS, error });
            }
        };
        Ok(Self { defaults: read(DEFAULTS, table)?, max, is_floor })
    }
}

fn read(section: &'static str, table: toml::Table) -> Result<Rules, Wrong> {
    let read = match serde_json::to_value(table) {
        Ok(serde_json::Value::Object(object)) => Rules::read(object),
        _ => Err(Error::NotAWish),
    };
    read.map_err(|error| Wrong { section, error })
}

impl Settings {
    /// The profile that every session has at least, whoever opens it. One that is none by its name was refused by `check`.
    pub fn floor(&self) -> Option<Profile> {
        let profile = self.defaults.profile.as_ref().filter(|_| self.is_floor);
        profile.map(|name| name.parse().unwrap_or(Profile::Sealed))
    }

    /// Whether all of it means something. Paths that are not there yet are left out when a session is opened.
    pub fn check(&self, protected: &Protected) -> Result<(), Wrong> {
        self.check_defaults(protected).map_err(|error| Wrong { section: DEFAULTS, error })?;
        self.check_max().map_err(|error| Wrong { section: MAX, error })
    }

    fn check_defaults(&self, protected: &Protected) -> Result<(), Error> {
        let rules = &self.defaults;
        if let Some(name) = &rules.profile {
            name.parse::<Profile>()?;
        }
        if self.is_floor && self.floor().is_none_or(|floor| !floor.is_confined()) {
            return Err(Error::NoFloor);
        }
        check_limits(rules)?;
        for (paths, writable) in [(&rules.allow_read, false), (&rules.allow_write, true)] {
            for path in paths {
                match protected.check(path, writable) {
                    Ok(_) | Err(paths::Error::Missing { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        for entry in &rules.allow_net {
            if protected.is_own_door(&entry.parse::<Destination>()?) {
                return Err(Error::OwnDoor { entry: entry.clone() });
            }
        }
        match rules.env.iter().find(|name| is_secret_variable(name)) {
            Some(name) => Err(Error::SecretVariable { name: name.clone() }),
            None => Ok(()),
        }
    }

    fn check_max(&self) -> Result<(), Error> {
        let max = &self.max;
        let others = [
            ("profile", max.profile.is_some()),
            ("allow_read", !max.allow_read.is_empty()),
            ("allow_write", !max.allow_write.is_empty()),
            ("allow_net", !max.allow_net.is_empty()),
            ("env", !max.env.is_empty()),
        ];
        match others.iter().find(|(_, is_there)| *is_there) {
            Some((name, _)) => Err(Error::NoLimit { name }),
            None => check_limits(max),
        }
    }

    /// Each that was set, by its name, but the profile, which a caller may choose.
    pub fn shown(&self) -> Vec<(String, String)> {
        let list = |items: Vec<String>| (!items.is_empty()).then(|| items.join(", "));
        let paths = |paths: &[std::path::PathBuf]| list(paths.iter().map(|path| path.display().to_string()).collect());
        let rules = &self.defaults;
        let mut shown = vec![
            ("sandbox.floor".to_owned(), self.is_floor.then(|| "true".to_owned())),
            ("sandbox.allow_read".to_owned(), paths(&rules.allow_read)),
            ("sandbox.allow_write".to_owned(), paths(&rules.allow_write)),
            ("sandbox.allow_net".to_owned(), list(rules.allow_net.clone())),
            ("sandbox.env".to_owned(), list(rules.env.clone())),
        ];
        for (section, rules) in [(DEFAULTS, rules), (MAX, &self.max)] {
            let limits = LIMITS.iter();
            shown.extend(
                limits.map(|limit| (format!("{section}.{}", limit.name), (limit.of)(rules).map(|n| n.to_string()))),
            );
        }
        shown.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

fn check_limits(rules: &Rules) -> Result<(), Error> {
    LIMITS.iter().filter_map(|limit| Some((limit, (limit.of)(rules)?))).try_for_each(|(limit, n)| limit.check(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<Settings, String> {
        let settings: Settings = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        settings.check(&Protected::default()).map_err(|error| error.to_string())?;
        Ok(settings)
    }

    #[test]
    fn what_is_wrong_is_said_by_its_name() {
        for (text, words) in [
            ("profile = 'closed'", "in `[sandbox]`: unknown profile `closed`"),
            ("memroy_mb = 5", "in `[sandbox]`: there is no rule `memroy_mb`"),
            ("memory_mb = 'much'", "`memory_mb` has to be a whole number"),
            ("memory_mb = 9223372036854775807", "more than any machine has"),
            ("tmp_mb = 0", "at least 1"),
            ("allow_net = ['pypi.org']", "`pypi.org` in `allow_net` is not a `host:port`"),
            ("allow_read = 'usr'", "`allow_read` has to be a list of paths"),
            ("allow_read = ['usr']", "`usr` is not an absolute path"),
            ("allow_write = ['/']", "`/` cannot be given"),
            ("env = ['PYLAIR_TOKEN']", "never passed on"),
            ("max = 7", "`max` has to be a table"),
            ("floor = 'sealed'", "`floor` has to be `true` or `false`"),
            ("floor = true", "in `[sandbox]`: `floor` is true, but `profile` is not set"),
            ("floor = true\nprofile = 'open'", "in `[sandbox]`: `floor` is true, but `profile` is not set"),
            ("[max]\nmemory_mb = 1", "in `[sandbox.max]`: `memory_mb` is 1"),
            ("[max]\nopen_files = 99999999", "in `[sandbox.max]`: `open_files`"),
            ("[max]\nallow_net = ['a:1']", "in `[sandbox.max]`: `allow_net` is not a limit"),
        ] {
            let error = checked(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
        let settings = checked("allow_read = ['/no/such', '/usr']\ncpu_s = 9\n[max]\nwall_s = 100").unwrap();
        let shown = settings.shown();
        let shown: Vec<_> = shown.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(
            shown,
            [("sandbox.allow_read", "/no/such, /usr"), ("sandbox.cpu_s", "9"), ("sandbox.max.wall_s", "100")]
        );
    }
}
