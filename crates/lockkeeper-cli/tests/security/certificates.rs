//! Authorities and certificates for the tests.

use std::fs::Permissions;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use lockkeeper_net::tls::KeyPair;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, SanType, date_time_ymd};

/// A certificate authority.
pub struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, rcgen::KeyPair>,
    pub file: PathBuf,
}

impl Authority {
    pub fn new(folder: &Path, name: &str) -> Authority {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let file = folder.join(format!("{name}-ca.pem"));
        std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { folder: folder.to_owned(), issuer: Issuer::new(params, key), file }
    }

    /// Issues a certificate for a name, and addresses or DNS names.
    pub fn issue(&self, name: &str, addresses: &[&str]) -> KeyPair {
        self.make(name, addresses, |_| {})
    }

    /// Issues an expired certificate.
    pub fn issue_expired(&self, name: &str, addresses: &[&str]) -> KeyPair {
        self.make(name, addresses, |params| {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        })
    }

    fn make(&self, name: &str, addresses: &[&str], change: impl Fn(&mut CertificateParams)) -> KeyPair {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        for address in addresses {
            let host = address.rsplit_once(':').map_or(*address, |(host, _)| host);
            params.subject_alt_names.push(match host.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(host.try_into().unwrap()),
            });
        }
        change(&mut params);
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let stem = self.file.file_stem().unwrap().to_string_lossy().into_owned();
        let pair = KeyPair {
            certificate: self.folder.join(format!("{stem}-{name}.pem")),
            key: self.folder.join(format!("{stem}-{name}.key")),
        };
        // Written beside and renamed, like a renewal.
        for (path, text) in [(&pair.certificate, signed.pem()), (&pair.key, key.serialize_pem())] {
            let beside = path.with_extension("new");
            std::fs::write(&beside, text).unwrap();
            // A node refuses a key that everybody can read.
            std::fs::set_permissions(&beside, Permissions::from_mode(0o600)).unwrap();
            std::fs::rename(&beside, path).unwrap();
        }
        pair
    }
}
