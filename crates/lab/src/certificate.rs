//! A certificate that signs itself, for servers of an experiment and of tests.

use aws_lc_rs::rand::{SystemRandom, fill};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use rcgen::{
    BasicConstraints, CertificateParams, IsCa, PKCS_ECDSA_P256_SHA256, PublicKeyData, SerialNumber,
    SignatureAlgorithm, SigningKey,
};

const SERIAL_BYTES: usize = 16;

/// A self-signed certificate and its key, both as PEM.
pub struct SelfSigned {
    /// The certificate.
    pub certificate: String,
    /// Its private key, as PKCS #8.
    pub key: String,
}

impl SelfSigned {
    /// A certificate of a server with these names or addresses.
    pub fn server(names: Vec<String>) -> Result<SelfSigned, String> {
        SelfSigned::new(names, IsCa::NoCa)
    }

    /// A certificate of an authority (CA:TRUE).
    pub fn authority(names: Vec<String>) -> Result<SelfSigned, String> {
        SelfSigned::new(names, IsCa::Ca(BasicConstraints::Unconstrained))
    }

    fn new(names: Vec<String>, is_ca: IsCa) -> Result<SelfSigned, String> {
        let made = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING);
        let key = Key(made.map_err(|error| error.to_string())?);
        let mut parameters = CertificateParams::new(names).map_err(|error| error.to_string())?;
        let mut serial = [0; SERIAL_BYTES];
        fill(&mut serial).map_err(|error| error.to_string())?;
        // A serial number is positive.
        serial[0] &= 0x7f;
        parameters.serial_number = Some(SerialNumber::from_slice(&serial));
        parameters.is_ca = is_ca;
        let certificate = parameters.self_signed(&key).map_err(|error| error.to_string())?;
        let pkcs8 = key.0.to_pkcs8v1().map_err(|error| error.to_string())?;
        let key = pem::encode(&pem::Pem::new("PRIVATE KEY", pkcs8.as_ref()));
        Ok(SelfSigned { certificate: certificate.pem(), key })
    }
}

/// Signs by aws-lc-rs. (rcgen can do that itself, but its feature for it adds 14 packages to the lock file that
/// are never compiled.)
struct Key(EcdsaKeyPair);

impl PublicKeyData for Key {
    fn der_bytes(&self) -> &[u8] {
        self.0.public_key().as_ref()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl SigningKey for Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        let signature = self.0.sign(&SystemRandom::new(), message);
        signature
            .map(|signature| signature.as_ref().to_vec())
            .map_err(|_| rcgen::Error::RemoteKeyError)
    }
}
