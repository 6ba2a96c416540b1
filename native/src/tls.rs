//! TLS: the server's certificate and, optionally, verification of clients' certificates.

use crate::status::Failure;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// Return an acceptor of TLS connections with a certificate chain and its key; with `authorities`, clients must have a
/// certificate from one of them; all are PEM.
pub fn acceptor(chain: &[u8], key: &[u8], authorities: Option<&[u8]>) -> Result<TlsAcceptor, Failure> {
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match authorities {
        None => builder.with_no_client_auth(),
        Some(authorities) => {
            let roots = Arc::new(roots(authorities)?);
            builder.with_client_cert_verifier(WebPkiClientVerifier::builder_with_provider(roots, provider).build()?)
        }
    };
    let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<_, _>>()?;
    let mut config = builder.with_single_cert(chain, PrivateKeyDer::from_pem_slice(key)?)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    // No session resumption: a resumed session would not be checked against changed authorities.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn roots(authorities: &[u8]) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities) {
        roots.add(authority?)?;
    }
    Ok(roots)
}
