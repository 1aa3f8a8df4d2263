//! TLS of our own: a certificate chain and its key from two PEM files, for `pylair serve --tls-cert --tls-key`.

use std::{io, os::unix::fs::MetadataExt, path::Path, sync::Arc};

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot use `{path}` for TLS")]
    File { path: String, source: io::Error },
    #[error("the key `{path}` can be read by others")]
    NotPrivate { path: String },
    #[error("the certificate and the key do not make a TLS server")]
    Refused(#[source] tokio_rustls::rustls::Error),
}

/// Reads both files. Blocks, at start.
pub fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, Error> {
    let failed = |path: &Path, error: &dyn std::fmt::Display| Error::File {
        path: path.display().to_string(),
        source: io::Error::other(error.to_string()),
    };
    let metadata = std::fs::metadata(key).map_err(|error| failed(key, &error))?;
    if metadata.mode() & 0o077 != 0 {
        return Err(Error::NotPrivate { path: key.display().to_string() });
    }
    let chain = CertificateDer::pem_file_iter(certificate).map_err(|error| failed(certificate, &error))?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(|error| failed(certificate, &error))?;
    if chain.is_empty() {
        return Err(failed(certificate, &"there is no certificate in it"));
    }
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, &error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(Error::Refused)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
