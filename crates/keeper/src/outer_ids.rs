//! Users that sessions are outside, where the daemon is root's. The daemon gives the ids, the nursery maps them.

/// Under root, each session is somebody else outside. These ids belong to nobody: systemd and the tools that hand out ranges to
/// containers stay below.
pub const OUTER_IDS: std::ops::Range<u32> = 0x7000_0000..0x7040_0000;
/// Whether sessions can be somebody else outside: under root, where the ids for it exist. In a container without root of its own they
/// mostly do not, and a session is the daemon's user there, as it is for everybody else. The nursery is this process's child, so it
/// finds the same.
pub fn gives_ids() -> bool {
    let known = |map: &str| std::fs::read_to_string(map).is_ok_and(|map| knows_outer_ids(&map));
    rustix::process::geteuid().is_root() && known("/proc/self/uid_map") && known("/proc/self/gid_map")
}

/// Reads a map of ids: a line says the first id here, the first outside, and how many.
fn knows_outer_ids(map: &str) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map_while(|number| number.parse::<u64>().ok());
        let (Some(first), Some(_), Some(count)) = (numbers.next(), numbers.next(), numbers.next()) else {
            return false;
        };
        first <= OUTER_IDS.start.into() && first + count >= OUTER_IDS.end.into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_given_where_they_exist() {
        assert!(knows_outer_ids("         0          0 4294967295\n"));
        assert!(!knows_outer_ids("         0       1000          1\n         1     100000      65536\n"));
        assert!(!knows_outer_ids(""));
    }
}
