//! What an address leads to: this machine, a private network, or the public internet.
//!
//! Whoever owns a name decides what it resolves to, so `proxy` follows a name only to public addresses. `paths` uses the list of this
//! machine's own addresses to recognise the daemon's own port.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ptr,
};

/// Addresses at which clouds tell a machine its secrets, besides the link-local one.
const METADATA: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254))];

/// IPv4 ranges that are not on the public internet: IANA's special-purpose registry, multicast and the reserved rest.
const SPECIAL_V4: &[(Ipv4Addr, u32)] = &[
    (Ipv4Addr::UNSPECIFIED, 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// The only IPv6 range whose addresses are routed on the public internet.
const GLOBAL_V6: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// Special ranges within it: protocol assignments (Teredo, benchmarks, identifiers), and examples in documentation.
const SPECIAL_V6: &[(Ipv6Addr, u32)] = &[
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// The prefixes of IPv6 addresses that stand for an IPv4 address, and the octet at which that begins: IPv4-compatible, IPv4-mapped,
/// behind a translator (NAT64), and 6to4.
const EMBEDDING: &[(Ipv6Addr, u32, usize)] = &[
    (Ipv6Addr::UNSPECIFIED, 96, 12),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96, 12),
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96, 12),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, 2),
];

/// Where an address that is not public leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Inward {
    #[error("an address of this machine")]
    Machine,
    #[error("an address of a private or reserved network")]
    Private,
}

/// Tells where an address leads; none for one on the public internet. `own` are the addresses of this machine's interfaces.
pub fn inward(address: IpAddr, own: &[IpAddr]) -> Option<Inward> {
    let address = meant(address);
    if address.is_loopback() || address.is_unspecified() || own.contains(&address) {
        return Some(Inward::Machine);
    }
    let is_special = METADATA.contains(&address)
        || match address {
            IpAddr::V4(v4) => SPECIAL_V4.iter().any(|range| is_v4_in(v4, *range)),
            IpAddr::V6(v6) => !is_v6_in(v6, GLOBAL_V6) || SPECIAL_V6.iter().any(|range| is_v6_in(v6, *range)),
        };
    is_special.then_some(Inward::Private)
}

/// The IPv4 address that an IPv6 address stands for, or the address itself.
fn meant(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    if v6.is_loopback() || v6.is_unspecified() {
        return address;
    }
    let embedding = EMBEDDING.iter().find(|(prefix, bits, _)| is_v6_in(v6, (*prefix, *bits)));
    embedding.map_or(address, |(.., at)| {
        let octets = v6.octets();
        Ipv4Addr::new(octets[*at], octets[at + 1], octets[at + 2], octets[at + 3]).into()
    })
}

fn is_v4_in(address: Ipv4Addr, (prefix, bits): (Ipv4Addr, u32)) -> bool {
    (address.to_bits() ^ prefix.to_bits()).leading_zeros() >= bits
}

fn is_v6_in(address: Ipv6Addr, (prefix, bits): (Ipv6Addr, u32)) -> bool {
    (address.to_bits() ^ prefix.to_bits()).leading_zeros() >= bits
}

/// The addresses of all interfaces of this machine.
pub fn own() -> io::Result<Vec<IpAddr>> {
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: getifaddrs writes one pointer, to a list that is ours until it is freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: `next` is null or an entry of the list.
    while let Some(entry) = unsafe { next.as_ref() } {
        found.extend(address_of(entry));
        next = entry.ifa_next;
    }
    // SAFETY: the list is freed once, and nothing of it is used afterwards.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

fn address_of(entry: &libc::ifaddrs) -> Option<IpAddr> {
    // SAFETY: null or a socket address, whose length and layout its family decides.
    match i32::from(unsafe { entry.ifa_addr.as_ref() }?.sa_family) {
        libc::AF_INET => {
            // SAFETY: as above; read unaligned because the list promises no alignment.
            let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_lead_outward() {
        let own = ["93.184.216.77".parse().unwrap(), "2606:2800::77".parse().unwrap()];
        let of = |address: &str| inward(address.parse().unwrap(), &own);
        for machine in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::1",
            "93.184.216.77",
            "::ffff:93.184.216.77",
            "64:ff9b::5db8:d84d",
            "2002:5db8:d84d::1",
            "2606:2800::77",
        ] {
            assert_eq!(of(machine), Some(Inward::Machine), "{machine}");
        }
        for private in [
            "10.0.0.5",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "100.100.100.200",
            "169.254.169.254",
            "0.1.2.3",
            "192.0.0.1",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "fe80::1",
            "fec0::1",
            "fd00:ec2::254",
            "fc00::1",
            "ff02::1",
            "100::1",
            "2001::1",
            "2001:2::1",
            "2001:db8::1",
            "3fff::1",
            "64:ff9b:1::1",
            "64:ff9b::a00:5",
            "::ffff:10.0.0.5",
            "2002:c0a8:101::1",
        ] {
            assert_eq!(of(private), Some(Inward::Private), "{private}");
        }
        for outward in ["93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:2800::1", "64:ff9b::5db8:d822"] {
            assert_eq!(of(outward), None, "{outward}");
        }
    }

    #[test]
    fn loopback_is_among_the_addresses_of_this_machine() {
        let own = own().expect("the kernel lists interfaces");
        assert!(own.iter().any(IpAddr::is_loopback), "{own:?}");
    }
}
